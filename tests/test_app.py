"""The whole server in its own process: starting, serving, keys, failing to start."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ionrouter.store.keys import KeyStore
from ionrouter.store.sqlite_file import SqliteFile
from tests.support.server import CHAT, ROOT, environment, eventually, running_server
from tests.support.sse import chunks, content, data_lines
from tests.support.two_upstreams import FAKE


def test_one_server_from_start_to_stop(tmp_path: Path) -> None:
    with running_server(tmp_path, FAKE) as server:
        status, whole = server.chat()
        assert (status, whole["choices"][0]["message"]["content"]) == (200, "hello there")
        status, stream = server.chat(stream=True)
        assert (status, content(stream), data_lines(stream)[-1]) == (200, "hello there", "[DONE]")
        assert chunks(stream)[-1]["usage"]["completion_tokens"] == 2
        assert server.post("/v1/completions", {"model": "m", "prompt": "x"})[1]["choices"][0]["text"]
        assert [m["id"] for m in server.get("/api/v1/models")[1]["data"]] == ["m"]
        assert server.get("/health")[1]["routes"]["problem"] is None
        assert 'ionrouter_requests_total{endpoint="fake/m"' in server.get("/metrics")[1]
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert len(server.events("request_finished")) == 3
        assert "hello there" not in server.log  # never an answer
        assert '"hi"' not in server.log  # never a prompt


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_requests_that_were_answered_are_not_kept(tmp_path: Path) -> None:
    with running_server(tmp_path, FAKE) as server:
        for number in range(60):
            assert server.chat(prompt_cache_key=f"{number}{'x' * 3_000_000}")[0] == 200
            if number == 9:
                before = _resident_bytes(server.process.pid)
        assert _resident_bytes(server.process.pid) - before < 60_000_000


def _resident_bytes(pid: int) -> int:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line)
    return int(line.split()[1]) * 1024


def test_a_failed_local_model_is_told_and_the_rest_serves(tmp_path: Path) -> None:
    routes = FAKE + "  local-m: { endpoints: [ { provider: ion, weights: ./none.gguf } ] }\n"
    routes = routes.replace("providers:", "providers:\n  ion: { type: ion }")
    with running_server(tmp_path, routes) as server:
        (local,) = server.get("/health")[1]["local"]
        assert local["ready"] is False
        assert "none.gguf" in local["reason"]
        assert server.chat()[0] == 200
        assert server.chat(model="local-m")[0] == 503


def test_a_model_on_a_gpu_that_is_not_there_fails_by_its_place_in_the_file(tmp_path: Path) -> None:
    offer = "{ provider: ion, weights: ./none.gguf, device: cuda }"
    routes = FAKE + f"  local-m: {{ endpoints: [ {offer} ] }}\n"
    routes = routes.replace("providers:", "providers:\n  ion: { type: ion }")
    missing = {"IONROUTER_CUDA_LIBRARY": str(tmp_path / "libion_cuda.so")}
    with running_server(tmp_path, routes, env=missing) as server:
        (local,) = server.get("/health")[1]["local"]
        (failed,) = server.events("engine_load_failed")
    place = "models.local-m.endpoints[0].device: cuda cannot be had"
    assert failed["error"].startswith(f"{place}: there is no {tmp_path}/libion_cuda.so")
    assert (local["ready"], local["device"], local["reason"]) == (False, None, f"failed: {failed['error']}")


def test_a_server_with_nothing_to_serve_is_not_ready(tmp_path: Path) -> None:
    endpoint = "{ provider: ion, weights: ./x.gguf }"
    routes = f"providers: {{ ion: {{ type: ion }} }}\nmodels: {{ m: {{ endpoints: [ {endpoint} ] }} }}\n"
    with running_server(tmp_path, routes, wait_until_ready=False) as server:
        server.wait_for_event("server_ready")
        status, body = server.get("/health")
        assert (status, body["status"]) == (503, "unavailable")
        assert server.get("/livez")[0] == 200


def _serve(folder: Path, *arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    config = folder / "routes.yaml"
    config.write_text(FAKE)
    return subprocess.run(
        [sys.executable, "-m", "ionrouter", "serve", "--config", str(config), *arguments],
        cwd=ROOT, env=environment(folder / "state", **settings), capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "0.0.0.0"], "refusing to listen on 0.0.0.0 without keys"),
        (["--require-keys"], "refusing to listen on 127.0.0.1 without keys"),
        (["--no-auth", "--require-keys"], "contradict each other"),
        (["--host", "203.0.113.1", "--no-auth", "--port", "0"], "cannot listen on 203.0.113.1:0"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml"),
    ],
)
def test_a_server_that_cannot_start_says_why_in_one_line(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    done = _serve(tmp_path, *arguments)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(lines) == 1
    assert lines[0].startswith("ionrouter: ")
    assert says in lines[0]
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_a_clear_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = _serve(tmp_path, "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert re.search(r"ionrouter: cannot listen on 127\.0\.0\.1:\d+: .*in use", done.stderr)
    assert "server_ready" not in done.stderr


def test_a_server_is_ready_once_it_listens(tmp_path: Path) -> None:
    with running_server(tmp_path, FAKE) as server:
        server.wait_for_event("server_ready")
        assert server.log.index("listens on") < server.log.index("server_ready")


def test_without_a_writable_state_folder_a_loopback_server_still_serves(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with running_server(
        tmp_path, FAKE, env={"IONROUTER_STATE_DIR": str(tmp_path / "file" / "state")}
    ) as server:
        assert server.chat()[0] == 200
        assert server.events("state_unavailable")
        assert server.post("/api/v1/admin/reload", {}, "sk-or-v1-any")[0] == 401


def test_a_second_server_on_one_sqlite_file_serves_and_warns_of_the_first(tmp_path: Path) -> None:
    state = {"IONROUTER_STATE_DIR": str(tmp_path / "state")}
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    with running_server(tmp_path / "first", FAKE, env=state) as first:
        with running_server(tmp_path / "second", FAKE, env=state) as second:
            assert [server.chat()[0] for server in (first, second)] == [200, 200]
            (warned,) = second.events("state_shared")
            assert (warned["path"], warned["num_servers"]) == (state["IONROUTER_STATE_DIR"], 1)
        assert not first.events("state_shared")


def test_keys_guard_a_server_that_asks_for_them(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    store = KeyStore.open(SqliteFile(tmp_path / "state" / "ionrouter.db"))
    plain, _ = store.create("app", "inference", 1.0)
    with running_server(tmp_path, FAKE, "--require-keys", wait_until_ready=False) as server:
        assert server.wait_for("/health", 200) == {"status": "ok"}  # the reasons are for those with a key
        assert server.chat()[0] == 401
        assert server.post("/api/v1/chat/completions", CHAT, plain)[0] == 200
        assert server.get("/health", plain)[1]["version"]
        fresh, _ = store.create("late", "inference", 2.0)
        assert server.post("/api/v1/chat/completions", CHAT, fresh)[0] == 200
        store.set_disabled("late", True)
        eventually(lambda: server.post("/api/v1/chat/completions", CHAT, fresh)[0] == 401)
        assert plain not in server.log
        records = server.wait_for_event("request_finished", 2)
        assert {record["status"] for record in records} == {200}  # the refused ones never came so far
