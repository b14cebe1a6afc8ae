"""Threads that ask what never answers: closing leaves them behind, and so does the end of the process."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ionrouter.process import Threads
from tests.support.postgres import free_port
from tests.support.server import GUARD_S, ROOT, Server, environment, eventually, running_server
from tests.support.two_upstreams import FAKE

HANGING_NAMES = """
import socket, sys, threading
from ionrouter.cli import main

real = socket.getaddrinfo

def hangs(host, *args, **more):
    if host == "upstream.invalid":
        print("asked", flush=True)
        threading.Event().wait()
    return real(host, *args, **more)

socket.getaddrinfo = hangs
sys.exit(main(["serve", "--config", sys.argv[1], "--port", "0"]))
"""
DISCOVERS = """
providers: { up: { type: openai, base_url: "https://upstream.invalid/v1", discover: true } }
models: { m: { endpoints: [ { provider: up, model: m } ] } }
"""


def test_threads_are_waited_for_and_then_left() -> None:
    gate = threading.Event()
    threads = Threads(1, "test", close_timeout_s=0.01)
    work, waits = threads.submit(gate.wait), threads.submit(gate.wait)
    while not work.running():
        time.sleep(0.001)
    assert not threads.close()
    assert waits.cancelled()
    with pytest.raises(RuntimeError):
        threads.submit(gate.wait)
    gate.set()
    assert Threads(1, "idle").close()
    assert work.result(GUARD_S)


def test_a_server_whose_names_are_never_found_ends_with_its_exit_code(tmp_path: Path) -> None:
    config = tmp_path / "routes.yaml"
    config.write_text(DISCOVERS)
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING_NAMES, str(config)],
        cwd=ROOT, env=environment(tmp_path / "state", cache_dir=tmp_path / "cache"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None and process.stdout.readline() == "asked\n"
        process.terminate()
        _, said = process.communicate(timeout=GUARD_S)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert '"threads_abandoned"' in said and '"drain_finished"' in said


def test_a_server_may_open_as_many_files_as_the_system_allows() -> None:
    script = """
import resource
from ionrouter import process
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for num in (64, 256):
    resource.setrlimit(resource.RLIMIT_NOFILE, (num, 256))
    process.raise_file_limit()
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, timeout=GUARD_S)
    assert ended.stdout.split() == [b"256"] * 4, ended.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_serve_asks_for_files_beyond_the_ordinary_limit(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        routes = "providers: { up: { type: fake } }\nmodels: { m: { endpoints: [ { provider: up } ] } }\n"
        with running_server(tmp_path, routes) as server:
            limits = Path(f"/proc/{server.process.pid}/limits").read_text()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    found = next(line.split() for line in limits.splitlines() if line.startswith("Max open files"))
    assert int(found[3]) > 256


@pytest.mark.parametrize("missing", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_server_without_standard_streams_serves_and_stops(tmp_path: Path, missing: tuple[int, ...]) -> None:
    """Their numbers went to the database or the event loop, which could not be closed any more."""
    config, port = tmp_path / "routes.yaml", free_port()
    config.write_text(FAKE)
    process = subprocess.Popen(
        [sys.executable, "-m", "ionrouter", "serve", "--config", str(config), "--port", str(port)],
        cwd=ROOT,
        env=environment(tmp_path / "state"),
        preexec_fn=lambda: [os.close(descriptor) for descriptor in missing] and None,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        server = Server(url, process, tmp_path / "state", config, tmp_path / "none.log")
        eventually(lambda: process.poll() is not None or _answers(server))
        assert server.chat()[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(GUARD_S) == 0
    finally:
        process.kill()
        process.wait()


def _answers(server: Server) -> bool:
    try:
        return server.get("/health")[0] == 200
    except OSError:
        return False
