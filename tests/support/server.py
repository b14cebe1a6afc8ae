"""The whole server as its users start it: `python -m ionrouter serve`, its own process, a free port."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[2]
GUARD_S = 120.0  # how long a start or stop may take before the test is wrong; never a bound under test
ANNOUNCED = re.compile(r"listens on (http://\S+) ")

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@dataclass
class Server:
    """A running server: its address, its process, its folders."""

    url: str
    process: subprocess.Popen[bytes]
    state: Path
    config: Path
    log_path: Path

    @property
    def base_url(self) -> str:
        return f"{self.url}/api/v1"

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://").rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log's events of one name."""
        lines = [line for line in self.log.splitlines() if line.startswith("{")]
        return [found for line in lines if (found := json.loads(line)).get("event") == name]

    def management_key(self) -> str:
        return (self.state / "management.key").read_text().strip()

    def get(self, path: str, key: str | None = None) -> tuple[int, Any]:
        return self._open(urllib.request.Request(self.url + path, headers=headers(key)))

    def post(self, path: str, body: Any, key: str | None = None) -> tuple[int, Any]:
        data = json.dumps(body).encode()
        return self._open(urllib.request.Request(self.url + path, data=data, headers=headers(key)))

    def chat(self, **body: Any) -> tuple[int, Any]:
        return self.post("/api/v1/chat/completions", {**CHAT, **body})

    def _open(self, request: urllib.request.Request) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=GUARD_S) as answer:
                return answer.status, _read(answer)
        except urllib.error.HTTPError as error:
            return error.code, _read(error)

    def wait_for(self, path: str, status: int) -> Any:
        """Ask until a path answers with a status."""
        deadline = time.monotonic() + GUARD_S
        while time.monotonic() < deadline:
            found, body = self.get(path)
            if found == status:
                return body
            time.sleep(0.05)
        raise TimeoutError(f"{path} did not answer {status}\n{self.log}")

    def wait_for_event(self, name: str, count: int | str = 1) -> list[dict[str, Any]]:
        """Wait for so many events of a name, or for the one of a request; returns all of the name."""
        deadline = time.monotonic() + GUARD_S
        while time.monotonic() < deadline:
            found = self.events(name)
            if any(e.get("request") == count for e in found) or (
                isinstance(count, int) and len(found) >= count
            ):
                return found
            time.sleep(0.05)
        raise TimeoutError(f"no {name} in the log\n{self.log}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(GUARD_S)


Found = TypeVar("Found")


def eventually(ask: Callable[[], Found], wanted: Callable[[Found], Any] = bool) -> Found:
    """Ask until the answer is as `wanted`, and return it; an assertion fails where it never is."""
    deadline = time.monotonic() + GUARD_S
    while not wanted(found := ask()):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


def headers(key: str | None) -> dict[str, str]:
    return {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}


def _read(answer: Any) -> Any:
    data = answer.read()
    is_json = answer.headers.get("Content-Type") == "application/json"
    return json.loads(data) if is_json else data.decode()


def environment(state: Path, **settings: Any) -> dict[str, str]:
    """A clean environment: no key or setting of whoever runs the tests reaches the server."""
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("IONROUTER_", "OTEL_")) and not k.endswith("_API_KEY")
    }
    named = {f"IONROUTER_{name.upper()}": str(value) for name, value in settings.items()}
    return {**kept, "IONROUTER_STATE_DIR": str(state), "IONROUTER_LOG_FORMAT": "json", **named}


@contextmanager
def running_server(
    folder: Path,
    routes: str | Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    wait_until_ready: bool = True,
    **settings: Any,
) -> Iterator[Server]:
    """Start a server with these routes (YAML text, or a file) and stop it at the end, whatever happened."""
    config = routes if isinstance(routes, Path) else folder / "routes.yaml"
    if isinstance(routes, str):
        config.write_text(routes)
    log_path = folder / "serve.log"
    command = [sys.executable, "-m", "ionrouter", "serve", "--config", str(config), "--port", "0", *arguments]
    state = folder / "state"
    with log_path.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environment(state, **{"drain_delay_s": 0, **settings}), **(env or {})},
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=_end_with_the_tests,
        )
    try:
        server = Server(_announced(process, log_path), process, state, config, log_path)
        if wait_until_ready:
            server.wait_for("/health", 200)
        yield server
    finally:
        _end(process)


def _end_with_the_tests() -> None:
    """Ask the kernel to kill the server when the tests die without a chance to stop it (Linux)."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG, linux/prctl.h
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _announced(process: subprocess.Popen[bytes], log_path: Path) -> str:
    deadline = time.monotonic() + GUARD_S
    while time.monotonic() < deadline:
        if found := ANNOUNCED.search(log_path.read_text()):
            return found[1]
        assert process.poll() is None, f"the server ended with {process.returncode}\n{log_path.read_text()}"
        time.sleep(0.02)
    raise TimeoutError(f"the server did not start\n{log_path.read_text()}")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
