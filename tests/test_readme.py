"""The README's commands, run as a newcomer would: a server started by `make serve`, each block as written.

Only the port differs, so that the test can run beside a server that is already there.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"<!-- run: (\w+) -->\n```\w+\n(.*?)```", re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "README.md").read_text())

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("readme")]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the server was not ready within 300 s\n{log.read_text()}")


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    number = _free_port()
    state = tmp_path_factory.mktemp("state")
    log = state / "serve.log"
    env = {**os.environ, "IONROUTER_PORT": str(number), "IONROUTER_STATE_DIR": str(state)}
    with log.open("wb") as out:
        server = subprocess.Popen(
            ["make", "serve"], cwd=ROOT, env=env, stdout=out, stderr=out, start_new_session=True
        )
        try:
            _wait_until_ready(number, server, log)
            yield number
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()


def _command(kind: str, code: str, folder: Path) -> list[str]:
    if kind == "python":
        return [sys.executable, "-c", code]
    if kind == "node":
        script = ROOT / "tests" / "clients" / "node" / f".readme-{os.getpid()}.mjs"
        script.write_text(code)
        return ["node", str(script)]
    return ["bash", "-euo", "pipefail", "-c", code]


def test_the_readme_has_a_block_for_every_client() -> None:
    assert [kind for kind, _ in BLOCKS].count("python") >= 2
    assert {"curl", "python", "node", "shell"} <= {kind for kind, _ in BLOCKS}


@pytest.mark.parametrize(("kind", "code"), BLOCKS, ids=[f"{i}-{kind}" for i, (kind, _) in enumerate(BLOCKS)])
def test_each_block_runs_as_written(kind: str, code: str, port: int, tmp_path: Path) -> None:
    code = code.replace("127.0.0.1:8080", f"127.0.0.1:{port}")
    if kind == "curl":
        code = code.replace("curl -s ", "curl -sf ")
    env = {**os.environ, "IONROUTER_PORT": str(port)}
    command = _command(kind, code, tmp_path)
    try:
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    finally:
        if kind == "node":
            Path(command[1]).unlink()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip(), "the block printed nothing"
