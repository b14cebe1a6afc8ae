"""`ionrouter serve` with one local model: how soon it answers, and how it carries many streams at once."""

from __future__ import annotations

import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ionrouter.benchmark.processes import cpu_s, end, free_port
from ionrouter.benchmark.stream_load import Plan, Seen
from ionrouter.errors import ConfigError

MODEL = "bench/model"
POISSON_SHARE = 0.7  # of the rate at which all streams at once were answered
_STREAMS_A_PROCESS = 128
_BEGIN_S = 1.5  # until the load's processes have started and connected
_PATIENCE_S = 900.0  # for a server to answer at all
_ASK_EVERY_S = 0.01
_seeds = itertools.count(1)  # no prompt twice: it would be found in the prefix cache


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from exec to the first token of the first answer; `load_s` of them loaded the model."""

    first_token_s: float
    load_s: float


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    port: int
    pid: int
    start: Start


@dataclass(frozen=True, slots=True)
class Burst:
    """Streams over HTTP: all at once, or as a Poisson process. Times in seconds."""

    num_streams: int
    rate: float  # requests a second; 0: all at once
    tokens_per_s: float
    whole_s: float
    first_p50_s: float
    first_p99_s: float
    least_single_share: float  # of the chunks that carry text, at least so many carry one token
    server_cpu_us: float | None  # a token
    load_cpu_share: float  # of the busiest load process: near 1 it is the load that is measured
    num_bad: int
    first_fault: str


def routes_yaml(settings: Mapping[str, Any]) -> str:
    """One provider, one model."""
    offer = {"provider": "local", **{key: value for key, value in settings.items() if value is not None}}
    endpoint = json.dumps(offer)  # YAML reads JSON
    return (
        "providers:\n  local: {type: ion, name: Ion}\n"
        f"models:\n  {MODEL}:\n    endpoints:\n      - {endpoint}\n"
    )


@contextmanager
def served(settings: Mapping[str, Any]) -> Iterator[Server]:
    """Start a server and wait for its first token; `settings` are the endpoint's in routes.yaml."""
    with tempfile.TemporaryDirectory(prefix="ionrouter-bench-") as folder, open(f"{folder}/log", "wb") as log:
        routes = Path(folder) / "routes.yaml"
        routes.write_text(routes_yaml(settings))
        env = {
            **{name: value for name, value in os.environ.items() if name not in _OURS},
            "IONROUTER_CONFIG": str(routes),
            "IONROUTER_STATE_DIR": folder,
            "IONROUTER_LOG_FORMAT": "json",
        }
        port = free_port()
        command = (sys.executable, "-m", "ionrouter", "serve", "--port", str(port))
        begun_at = time.perf_counter()
        process = subprocess.Popen(
            command, env=env, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
        )
        try:
            _await_token(port, process, Path(log.name), begun_at + _PATIENCE_S)
            spent_s = time.perf_counter() - begun_at
            yield Server(port, process.pid, Start(spent_s, _load_s(Path(log.name))))
        finally:
            end(process)


_OURS = ("IONROUTER_CONFIG", "IONROUTER_STATE_DIR", "IONROUTER_LOG_FORMAT", "IONROUTER_PORT")


def _await_token(port: int, process: subprocess.Popen[bytes], log: Path, until: float) -> None:
    """Ask for one token until it comes."""
    body = json.dumps({"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 1, "stream": True}).encode()
    head = (
        f"POST /api/v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    last = b""
    while time.perf_counter() < until:
        if process.poll() is not None:
            break
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2) as connection:
            connection.settimeout(_PATIENCE_S)
            connection.sendall(head.encode() + body)
            last = connection.recv(65536)
            if last.startswith(b"HTTP/1.1 200"):
                while b"data: {" not in last and (more := connection.recv(65536)):
                    last += more
                return
            if b"failed" in last:
                break
        time.sleep(_ASK_EVERY_S)
    tail = log.read_text("utf-8", "replace")[-1000:]
    raise ConfigError(f"the server gave no token: {last[-500:].decode('utf-8', 'replace')}\n{tail}")


def _load_s(log: Path) -> float:
    """What the server's log says of its model; it is written a moment after the first token may be read."""
    until = time.perf_counter() + 5.0
    while time.perf_counter() < until:
        for line in log.read_bytes().splitlines():
            if b'"engine_started"' in line:
                return float(json.loads(line)["load_s"])
        time.sleep(_ASK_EVERY_S)
    return float("nan")


def start_times(settings: Mapping[str, Any], rounds: int) -> list[Start]:
    """Start a server that is not counted, then others."""
    found = []
    for _ in range(1 + rounds):
        with served(settings) as server:
            found.append(server.start)
    return found[1:]


def burst(server: Server, plan: Plan) -> Burst:
    """Follow a plan with as many load processes as it takes; Poisson streams come from one."""
    num_processes = 1 if plan.rate else -(-plan.num_streams // _STREAMS_A_PROCESS)
    shares = [len(range(i, plan.num_streams, num_processes)) for i in range(num_processes)]
    begin_at = time.monotonic() + _BEGIN_S
    plans = [
        asdict(replace(plan, port=server.port, begin_at=begin_at, num_streams=share, seed=next(_seeds)))
        for share in shares
    ]
    before = cpu_s(server.pid)
    command = (sys.executable, "-m", "ionrouter.benchmark.stream_load")
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in plans]
    for process, given in zip(processes, plans, strict=True):
        assert process.stdin is not None
        process.stdin.write(json.dumps(given).encode())
        process.stdin.close()
        process.stdin = None
    told = [process.communicate(timeout=plan.patience_s + 60)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise ConfigError("a load process failed")
    after = cpu_s(server.pid)
    spent = None if before is None or after is None else after - before
    return _summed([Seen(**json.loads(out)) for out in told], plan, begin_at, spent)


def _summed(seen: list[Seen], plan: Plan, begin_at: float, server_s: float | None) -> Burst:
    whole_s = max(max(each.last_at for each in seen) - begin_at, 1e-9)
    firsts = sorted(first for each in seen for first in each.first_s) or [float("nan")]
    num_tokens, num_events = sum(each.num_tokens for each in seen), sum(each.num_events for each in seen)
    num_joined = max(0, num_tokens - num_events)  # each in a chunk that carries two or more
    return Burst(
        plan.num_streams,
        plan.rate,
        num_tokens / whole_s,
        whole_s,
        statistics.median(firsts),
        firsts[min(int(0.99 * len(firsts)), len(firsts) - 1)],
        max(0.0, 1 - num_joined / max(num_events, 1)),
        None if server_s is None else server_s / max(num_tokens, 1) * 1e6,
        max(each.cpu_s for each in seen) / whole_s,
        sum(each.num_bad for each in seen),
        next((each.first_fault for each in seen if each.first_fault), ""),
    )


def measure(server: Server, plan: Plan, seconds: float) -> tuple[Burst, Burst]:
    """All at once (the second of two tries), then a Poisson load of `seconds` at a share of that rate."""
    burst(server, plan)
    at_once = burst(server, plan)
    rate = POISSON_SHARE * plan.num_streams / at_once.whole_s
    count = max(plan.num_streams, round(rate * seconds))
    return at_once, burst(server, replace(plan, num_streams=count, rate=rate))
