"""Processes under measurement: started, pinned, their time and memory read from /proc, ended. Linux only."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ionrouter.benchmark.load import Figures
from ionrouter.errors import ConfigError

START_S = 120.0  # LiteLLM's proxy takes 16 s
GATEWAY_CORE, LOAD_CORE = 1, 0


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Target:
    """Something that answers POST chat/completions."""

    name: str
    url: str
    headers: tuple[str, ...] = ()
    pid: int | None = None
    start_s: float | None = None  # exec to the first accepted connection


@contextmanager
def started(
    command: Sequence[str], port: int, *, env: Mapping[str, str] | None = None, core: int = GATEWAY_CORE
) -> Iterator[tuple[int, float]]:
    """Start a server on its own core and wait until it accepts; yields its pid and how long that took."""
    begun_at = time.perf_counter()
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        pin(process.pid, core)
        _wait_for(port, process, begun_at + START_S)
        yield process.pid, time.perf_counter() - begun_at
    finally:
        end(process)


def pin(pid: int, core: int) -> None:
    """Give a process one core, where there are two to give."""
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(pid, {core})


def _wait_for(port: int, process: subprocess.Popen[bytes], until: float) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            return
        except OSError:
            if process.poll() is not None:
                raise ConfigError(f"{process.args!r} ended with {process.returncode}") from None
            if time.perf_counter() > until:
                raise ConfigError(f"{process.args!r} does not listen on {port}") from None
            time.sleep(0.002)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it started."""
    for number, patience_s in ((signal.SIGINT, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, number)
            process.wait(patience_s)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def load(target: Target, kind: str, connections: int, seconds: float) -> tuple[Figures, float | None]:
    """Load a target from a process of its own; returns its figures and the target's CPU seconds meanwhile."""
    command = (
        sys.executable,
        "-m",
        "ionrouter.benchmark.load",
        target.url,
        kind,
        str(connections),
        str(seconds),
    )
    before = cpu_s(target.pid)
    process = subprocess.Popen([*command, *target.headers], stdout=subprocess.PIPE)
    pin(process.pid, LOAD_CORE)
    out, _ = process.communicate(timeout=seconds + 90)
    if process.returncode:
        raise ConfigError(f"the load on {target.name} failed")
    after = cpu_s(target.pid)
    return Figures(**json.loads(out)), None if before is None or after is None else after - before


def cpu_s(pid: int | None) -> float | None:
    """CPU seconds of a process tree, by the scheduler's own account, so that others disturb it little."""
    if pid is None:
        return None
    total = 0
    for member in tree(pid):
        for task in Path(f"/proc/{member}/task").glob("*/schedstat"):
            try:
                total += int(task.read_text().split()[0])
            except OSError:
                continue  # ended just now
    return total / 1e9


def rss_mb(pid: int) -> float:
    """Resident memory of a process tree."""
    pages = 0
    for member in tree(pid):
        try:
            pages += int(Path(f"/proc/{member}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for member in found:
        for children in Path(f"/proc/{member}/task").glob("*/children"):
            try:
                found += map(int, children.read_text().split())
            except OSError:
                continue
    return found
