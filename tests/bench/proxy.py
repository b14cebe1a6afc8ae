"""This router beside its peers, in one run: `python -m tests.bench.proxy` prints docs/performance.md's table.

Peers come from the environment, and one without a place is left out: BENCH_LITELLM, BENCH_VLLM, BENCH_SGLANG
(virtual environments with litellm[proxy], vllm-router, sglang-router), BENCH_PORTKEY (a folder where npm put
@portkey-ai/gateway); nginx when it is on the PATH. The floor, an aiohttp pass-through, is always there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ionrouter.benchmark.processes import Target, free_port, started
from ionrouter.benchmark.proxies import conditions, measure, table
from ionrouter.commands.bench import CONFIGURATION, router, tell, upstream

FLOOR = Path(__file__).with_name("floor_aiohttp.py")
MODELS = ("mock-model", "mock-paced", "mock-ttft")


@dataclass(frozen=True)
class Peer:
    """How to start one."""

    name: str
    command: tuple[str, ...]
    port: int
    headers: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


def peers(upstream_port: int, folder: Path) -> Iterator[Peer]:
    """Every peer that this machine has."""
    base = f"http://127.0.0.1:{upstream_port}"
    port = free_port()
    yield Peer(
        "aiohttp pass-through", (sys.executable, str(FLOOR), str(port), f"{base}/v1/chat/completions"), port
    )
    if nginx := shutil.which("nginx"):
        port = free_port()
        yield Peer("nginx", (nginx, "-c", str(nginx_conf(folder, port, upstream_port))), port)
    for name, variable in (("vllm-router", "BENCH_VLLM"), ("sglang-router", "BENCH_SGLANG")):
        if place := os.environ.get(variable):
            port = free_port()
            module = f"{name.replace('-', '_')}.launch_router"
            asked = (
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                "--worker-urls",
                base,
                "--policy",
                "round_robin",
            )
            yield Peer(name, (f"{place}/bin/python", "-m", module, *asked), port)
    if place := os.environ.get("BENCH_LITELLM"):
        port = free_port()
        asked = ("--config", str(litellm_conf(folder, base)), "--host", "127.0.0.1", "--port", str(port))
        env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR"}
        headers = ("Authorization: Bearer sk-bench",)
        yield Peer(
            "LiteLLM proxy", (f"{place}/bin/litellm", *asked, "--num_workers", "1"), port, headers, env
        )
    if (place := os.environ.get("BENCH_PORTKEY")) and (node := shutil.which("node")):
        port = free_port()
        script = f"{place}/node_modules/@portkey-ai/gateway/build/start-server.js"
        headers = (
            "x-portkey-provider: openai",
            f"x-portkey-custom-host: {base}/v1",
            "Authorization: Bearer x",
        )
        yield Peer("Portkey", (node, script, "--headless", f"--port={port}"), port, headers)


def nginx_conf(folder: Path, port: int, upstream_port: int) -> Path:
    path = folder / "nginx.conf"
    temporary = " ".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    path.write_text(
        f"daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.err;\n"
        f"events {{ worker_connections 2048; }}\nhttp {{ access_log off; {temporary}\n"
        f"upstream up {{ server 127.0.0.1:{upstream_port}; keepalive 512; }}\n"
        f"server {{ listen 127.0.0.1:{port}; keepalive_requests 1000000; location / {{ proxy_pass http://up;\n"
        f'proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }} }} }}\n'
    )
    return path


def litellm_conf(folder: Path, base: str) -> Path:
    path = folder / "litellm.yaml"
    entry = (
        "  - {{model_name: {0}, litellm_params: "
        "{{model: openai/{0}, api_base: '{1}/v1', api_key: sk-mock}}}}\n"
    )
    path.write_text(
        "model_list:\n"
        + "".join(entry.format(model, base) for model in MODELS)
        + "litellm_settings: {num_retries: 0, telemetry: false}\ngeneral_settings: {master_key: sk-bench}\n"
    )
    return path


@contextmanager
def running(peer: Peer) -> Iterator[Target]:
    with started(peer.command, peer.port, env={**os.environ, **peer.env}) as (pid, start_s):
        url = f"http://127.0.0.1:{peer.port}/v1/chat/completions"
        yield Target(peer.name, url, peer.headers, pid, start_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--no-ramp", action="store_true")
    args = parser.parse_args()
    plan = {"rounds": args.rounds, "seconds": args.seconds, "tell": tell}
    print("".join(conditions(args.rounds, args.seconds)), CONFIGURATION, sep="\n", end="\n\n", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ionrouter-bench-")))
        port = stack.enter_context(upstream())
        direct = Target("direct", f"http://127.0.0.1:{port}/v1/chat/completions")
        base = measure(direct, with_ramp=False, **plan)
        with router(port) as ours:
            rows = [measure(ours, with_ramp=not args.no_ramp, **plan)]
        for peer in peers(port, folder):
            with running(peer) as target:
                rows.append(measure(target, with_ramp=not args.no_ramp, **plan))
    print(table(rows, base))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
