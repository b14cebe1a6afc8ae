"""`ionrouter bench proxy`: this router on this machine, before a mock upstream. Prints a Markdown table."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ionrouter.benchmark.processes import LOAD_CORE, Target, free_port, started
from ionrouter.benchmark.proxies import conditions, measure, table
from ionrouter.commands.numbers import require_positive, require_range
from ionrouter.errors import ConfigError

NUM_ROUTES = 20
CONFIGURATION = (
    f"Configuration: keys on, {NUM_ROUTES} routes (type openai, priced), statistics, generation store "
    "(SQLite, store_sync normal) and access log (JSON) on."
)


def proxy(*, rounds: int, seconds: float, with_ramp: bool) -> int:
    """Measure and print; returns the exit code. Raises ConfigError."""
    if not sys.platform.startswith("linux"):
        raise ConfigError("bench proxy reads /proc: it runs on Linux only")
    require_range("--rounds", rounds, 1)
    require_positive("--seconds", seconds)
    print("".join(conditions(rounds, seconds)), CONFIGURATION, sep="\n", end="\n\n", flush=True)
    with upstream() as port, router(port) as ours:
        direct = Target("direct", f"http://127.0.0.1:{port}/v1/chat/completions")
        base = measure(direct, rounds=rounds, seconds=seconds, with_ramp=False, tell=tell)
        row = measure(ours, rounds=rounds, seconds=seconds, with_ramp=with_ramp, tell=tell)
    print(table([row], base))
    return 0


def tell(what: str) -> None:
    """Progress, on stderr, so that stdout is the table alone."""
    print(
        f"\r\033[K{what}" if sys.stderr.isatty() else what,
        file=sys.stderr,
        end="" if sys.stderr.isatty() else "\n",
    )


@contextmanager
def upstream() -> Iterator[int]:
    """The mock upstream, in a process of its own; yields its port."""
    port = free_port()
    command = (sys.executable, "-m", "ionrouter.benchmark.mock_upstream", str(port))
    with started(command, port, core=LOAD_CORE):
        yield port


@contextmanager
def router(upstream_port: int) -> Iterator[Target]:
    """A server of ours in front of the upstream, with a state folder of its own."""
    with tempfile.TemporaryDirectory(prefix="ionrouter-bench-") as folder:
        routes = Path(folder) / "routes.yaml"
        routes.write_text(routes_yaml(upstream_port))
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("IONROUTER_")},
            "IONROUTER_CONFIG": str(routes),
            "IONROUTER_STATE_DIR": folder,
            "IONROUTER_REQUIRE_KEYS": "true",
            "IONROUTER_LOG_FORMAT": "json",
            "MOCK_KEY": "sk-mock-upstream",
        }
        key = _key(env)
        port = free_port()
        command = (sys.executable, "-m", "ionrouter", "serve", "--port", str(port))
        with started(command, port, env=env) as (pid, start_s):
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            yield Target("ionrouter", url, (f"Authorization: Bearer {key}",), pid, start_s)


def routes_yaml(upstream_port: int) -> str:
    """Twenty models at one provider of type openai; three of them are used."""
    names = ["mock-model", "mock-paced", "mock-ttft", *(f"other-{i}" for i in range(NUM_ROUTES - 3))]
    models = "".join(
        f"  {name}:\n    endpoints:\n"
        f"      - {{provider: mock, model: {name}, prices: {{prompt: 1.0, completion: 2.0}}}}\n"
        for name in names
    )
    url = f"http://127.0.0.1:{upstream_port}/v1"
    provider = f"  mock: {{type: openai, name: Mock, base_url: '{url}', keys: [MOCK_KEY]}}\n"
    return f"providers:\n{provider}models:\n{models}"


def _key(env: dict[str, str]) -> str:
    command = (sys.executable, "-m", "ionrouter", "keys", "create", "bench")
    made = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    key = next((word for word in made.stdout.split() if word.startswith("sk-or-v1-")), None)
    if key is None:
        raise ConfigError(f"no key could be made: {made.stderr.strip()}")
    return key
