"""The whole server in its own process, before scripted upstreams: routing, leaving, reload, drain, start."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ionrouter.store.keys import KeyStore
from tests.support.server import CHAT, ROOT, Server, environment, running_server
from tests.support.sse import chunks, content, data_lines
from tests.support.upstream import (
    DONE,
    Cut,
    Hang,
    Upstream,
    Wait,
    WaitFor,
    chat_json,
    chat_stream,
    chunk,
    chunked,
    error,
    event,
    raw,
    sse,
)

FAKE = """
providers:
  fake: { type: fake, name: Fake, options: { text: "hello there" } }
models:
  m: { endpoints: [ { provider: fake } ] }
"""


def two_upstreams(a: Upstream, b: Upstream) -> str:
    """Model m at a, and at b, which is so dear that it is only ever the fallback."""
    return f"""
providers:
  a: {{ type: openai, name: Aye, base_url: {a.base_url}, keys: [A_KEY] }}
  b: {{ type: openai, name: Bee, base_url: {b.base_url} }}
routing: {{ explore: 0 }}
models:
  m:
    endpoints:
      - {{ provider: a, model: up-a, prices: {{ prompt: 1, completion: 2 }} }}
      - {{ provider: b, model: up-b, prices: {{ prompt: 3000, completion: 4000 }} }}
"""


@contextmanager
def _serving_two(folder: Path, **settings: object) -> Iterator[tuple[Server, Upstream, Upstream]]:
    a, b = Upstream(chat_stream(["from", " a"])), Upstream(chat_stream(["from", " b"]))
    with (
        a,
        b,
        running_server(folder, two_upstreams(a, b), env={"A_KEY": "UP-KEY-123456"}, **settings) as server,
    ):
        yield server, a, b


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


def test_fallback_before_the_first_token_and_an_error_chunk_after(tmp_path: Path) -> None:
    half = sse([chunk({"content": "Hel"})], done=False, end=False)
    with _serving_two(tmp_path) as (server, a, b):
        a.enqueue(error(503))
        status, stream = server.chat(stream=True)
        assert (status, content(stream)) == (200, "from b")
        assert {(c["model"], c["provider"]) for c in chunks(stream)} == {("m", "Bee")}
        a.enqueue(half.then(Cut()))
        status, broken = server.chat(stream=True)
        assert (status, content(broken)) == (200, "Hel")
        assert "[DONE]" not in broken
        assert chunks(broken)[-1]["error"]["code"] == 502
        assert chunks(broken)[-1]["choices"][0]["finish_reason"] == "error"
        assert len(b.requests) == 1


def test_callers_credentials_stay_here(tmp_path: Path) -> None:
    """G125: the upstream sees its own key and nothing of the caller's."""
    with _serving_two(tmp_path) as (server, a, _):
        connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
        headers = {
            "Content-Type": "application/json", "Authorization": "Bearer GW-KEY", "X-Api-Key": "GW-KEY2",
            "Api-Key": "x", "Cookie": "s=1", "X-Forwarded-For": "1.2.3.4",
        }  # fmt: skip
        connection.request("POST", "/api/v1/chat/completions", json.dumps({**CHAT, "stream": True}), headers)
        assert connection.getresponse().read()
        (seen,) = a.requests
        assert seen.headers["authorization"] == "Bearer UP-KEY-123456"
        everything = json.dumps(seen.raw_headers) + seen.body.decode()
        for secret in ("GW-KEY", "s=1", "1.2.3.4"):
            assert secret not in everything
        assert "UP-KEY-123456" not in server.log


@pytest.mark.parametrize(
    "extra",
    [
        {"api_base": "URL"}, {"base_url": "URL"}, {"api_key": "stolen"}, {"custom_llm_provider": "openai"},
        {"model_list": [{"litellm_params": {"api_base": "URL"}}]}, {"extra_body": {"api_base": "URL"}},
        {"fallbacks": [{"model": "openai/x", "api_base": "URL"}]}, {"metadata": {"api_base": "URL"}},
        {"extra_headers": {"Authorization": "Bearer x", "Host": "evil"}},
        {"tools": [{"type": "function", "function": {"name": "f"}, "api_base": "URL"}]},
    ],
    ids=lambda extra: next(iter(extra)),
)  # fmt: skip
def test_a_caller_cannot_send_the_call_elsewhere(shared: tuple[Server, Upstream], extra: dict) -> None:  # type: ignore[type-arg]
    """G127, G128."""
    server, a = shared
    with Upstream(chat_json("stolen")) as thief:
        body = json.loads(json.dumps(extra).replace("URL", thief.base_url))
        before = len(a.requests)
        status, _ = server.chat(stream=True, **body)
        assert status in (200, 400)
        assert thief.requests == []
        for seen in a.requests[before:]:
            assert seen.headers["authorization"] == "Bearer UP-KEY-123456"
            assert seen.headers["host"] == f"127.0.0.1:{a.port}"


@pytest.mark.parametrize("name", ["user", "session_id", "model"])
def test_line_breaks_in_values_reach_no_header(shared: tuple[Server, Upstream], name: str) -> None:
    """G130."""
    server, a = shared
    before = len(a.requests)
    status, _ = server.chat(stream=True, **{name: "m\r\nX-Evil: 1"})
    assert status in (200, 400)
    assert all("x-evil" not in seen.headers for seen in a.requests[before:])
    assert server.chat(stream=True)[0] == 200  # nobody's health suffered


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Upstream]]:
    with _serving_two(tmp_path_factory.mktemp("shared")) as (server, a, _):
        yield server, a


def _open_stream(server: Server) -> socket.socket:
    body = json.dumps({**CHAT, "stream": True})
    raw = socket.create_connection((server.host, server.port), timeout=30)
    head = (
        f"POST /api/v1/chat/completions HTTP/1.1\r\nHost: {server.host}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    raw.sendall((head + body).encode())
    return raw


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("when", ["before_headers", "before_first_token", "mid_stream"])
def test_a_client_that_leaves_closes_the_upstream_within_a_second(
    tmp_path: Path, how: str, when: str
) -> None:
    """G96, G97, in the server as it is run: its handlers are cancelled, unlike aiohttp's default."""
    slow = {
        "before_headers": raw(Hang()),
        "before_first_token": sse([], done=False, end=False).then(Hang()),
        "mid_stream": sse([chunk({"content": "x"})] * 600, pause_s=0.05),
    }[when]
    with _serving_two(tmp_path) as (server, a, _):
        a.default = slow
        client = _open_stream(server)
        (seen,) = a.wait_for_requests(1)
        if when == "mid_stream":
            while b"data: " not in client.recv(65536):
                pass
        if how == "rst":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        left_at = time.monotonic()
        client.close()
        assert seen.wait_closed()
        assert seen.closed_at is not None
        assert seen.closed_at - left_at < 1.0
        (record,) = server.wait_for_event("request_finished")
        assert record["status"] == 499
        assert "never retrieved" not in server.log


def test_the_file_is_taken_over_when_it_changes_and_kept_when_it_is_wrong(tmp_path: Path) -> None:
    with running_server(tmp_path, FAKE) as server:
        server.config.write_text(FAKE.replace("hello there", "second edition"))
        server.wait_for_event("routes_reloaded")
        assert server.chat()[1]["choices"][0]["message"]["content"] == "second edition"
        server.config.write_text(FAKE.replace("provider: fake", "provider: nobody"))
        server.wait_for_event("routes_refused")
        assert "nobody" in server.get("/health")[1]["routes"]["problem"]
        assert server.chat()[0] == 200
        status, answer = server.post("/api/v1/admin/reload", {}, server.management_key())
        assert status == 400
        assert any("nobody" in problem for problem in answer["error"]["metadata"]["problems"])
        server.config.write_text(FAKE.replace("hello there", "third edition"))
        server.signal(signal.SIGHUP)
        server.wait_for_event("routes_reloaded", 2)
        assert server.get("/health")[1]["routes"]["problem"] is None
        assert server.chat()[1]["choices"][0]["message"]["content"] == "third edition"


def test_a_request_keeps_the_routes_it_began_with(tmp_path: Path) -> None:
    """G154: a fails after the reload took it away; b, of the old table, still answers."""
    with _serving_two(tmp_path) as (server, a, _):
        gate = threading.Event()
        a.default = raw(WaitFor(gate), *error(500).steps)
        answers: list[tuple[int, str]] = []
        caller = threading.Thread(target=lambda: answers.append(server.chat(stream=True)))
        caller.start()
        a.wait_for_requests(1)
        server.config.write_text(FAKE)
        server.post("/api/v1/admin/reload", {}, server.management_key())
        assert content(server.chat(stream=True)[1]) == "hello there"
        gate.set()
        caller.join(60)
        assert content(answers[0][1]) == "from b"
        assert chunks(answers[0][1])[-1]["usage"]["cost"] > 0


SLOW = """
providers:
  fake: { type: fake, name: Fake, options: { tokens: 400, gap_s: 0.05 } }
models:
  m: { endpoints: [ { provider: fake } ] }
"""


def test_sigterm_drains(tmp_path: Path) -> None:
    """Readiness 503 at once, listener open for the delay, requests finish."""
    slow = SLOW.replace("400", "30")
    with running_server(tmp_path, slow, drain_delay_s=1.5) as server:
        answers: list[tuple[int, str]] = []
        caller = threading.Thread(target=lambda: answers.append(server.chat(stream=True)))
        caller.start()
        while server.get("/health")[1]["in_flight"] == 0:
            time.sleep(0.02)
        server.signal(signal.SIGTERM)
        server.wait_for_event("drain_started")
        status, body = server.get("/health")
        assert (status, body["status"]) == (503, "draining")
        assert server.get("/livez")[0] == 200
        caller.join(60)
        assert server.wait() == 0
        assert data_lines(answers[0][1])[-1] == "[DONE]"
        assert chunks(answers[0][1])[-1]["usage"]["completion_tokens"] == 30


def test_what_outlasts_the_drain_ends_with_one_error_event(tmp_path: Path) -> None:
    with running_server(tmp_path, SLOW, drain_timeout_s=0.3) as server:
        answers: list[tuple[int, object]] = []
        callers = [
            threading.Thread(target=lambda stream=stream: answers.append(server.chat(stream=stream)))
            for stream in (True, False)
        ]
        for caller in callers:
            caller.start()
        while server.get("/health")[1]["in_flight"] < 2:
            time.sleep(0.02)
        server.signal(signal.SIGTERM)
        for caller in callers:
            caller.join(60)
        assert server.wait() == 0
    streamed = next(str(body) for _, body in answers if isinstance(body, str))
    assert chunks(streamed)[-1]["error"]["code"] == 503
    assert "[DONE]" not in streamed
    status, whole = next((status, body) for status, body in answers if isinstance(body, dict))
    assert (status, whole["error"]["code"]) == (503, 503)


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with running_server(tmp_path, SLOW, drain_timeout_s=600) as server:
        caller = threading.Thread(target=lambda: _ignoring_the_cut(server), daemon=True)
        caller.start()
        while server.get("/health")[1]["in_flight"] == 0:
            time.sleep(0.02)
        server.signal(signal.SIGTERM)
        server.wait_for_event("drain_started")
        server.signal(signal.SIGTERM)
        assert server.wait() == 128 + signal.SIGTERM


def _ignoring_the_cut(server: Server) -> None:
    with suppress(OSError, http.client.HTTPException):
        server.chat(stream=True)


def test_a_failed_local_model_is_told_and_the_rest_serves(tmp_path: Path) -> None:
    routes = FAKE + "  local-m: { endpoints: [ { provider: ion, weights: ./none.gguf } ] }\n"
    routes = routes.replace("providers:", "providers:\n  ion: { type: ion }")
    with running_server(tmp_path, routes) as server:
        (local,) = server.get("/health")[1]["local"]
        assert local["ready"] is False
        assert "none.gguf" in local["reason"]
        assert server.chat()[0] == 200
        assert server.chat(model="local-m")[0] == 503


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


def test_without_a_writable_state_folder_a_loopback_server_still_serves(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with running_server(
        tmp_path, FAKE, env={"IONROUTER_STATE_DIR": str(tmp_path / "file" / "state")}
    ) as server:
        assert server.chat()[0] == 200
        assert server.events("state_unavailable")
        assert server.post("/api/v1/admin/reload", {}, "sk-or-v1-any")[0] == 401


def test_keys_guard_a_server_that_asks_for_them(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    store = KeyStore.open(tmp_path / "state" / "ionrouter.db")
    plain, _ = store.create("app", "inference", 1.0)
    with running_server(tmp_path, FAKE, "--require-keys", wait_until_ready=False) as server:
        assert server.wait_for("/health", 200) == {"status": "ok"}  # the reasons are for those with a key
        assert server.chat()[0] == 401
        assert server.post("/api/v1/chat/completions", CHAT, plain)[0] == 200
        assert server.get("/health", plain)[1]["version"]
        fresh, _ = store.create("late", "inference", 2.0)
        assert server.post("/api/v1/chat/completions", CHAT, fresh)[0] == 200
        store.set_disabled("late", True)
        assert server.post("/api/v1/chat/completions", CHAT, fresh)[0] == 401
        assert plain not in server.log
        (record, _) = server.wait_for_event("request_finished", 2)
        assert record["status"] == 200


def test_a_slow_upstream_is_waited_for_with_comments(tmp_path: Path) -> None:
    """G104, through the whole server."""
    with Upstream(
        chunked([Wait(1.5), event(chunk({"content": "ok"})), event(chunk({}, "stop")), DONE])
    ) as up:
        routes = (
            f"providers: {{ a: {{ type: openai, base_url: {up.base_url} }} }}\n"
            "routing: { heartbeat_after: 0.3 }\nmodels: { m: { endpoints: [ { provider: a } ] } }\n"
        )
        with running_server(tmp_path, routes, heartbeat_interval_s=0.3) as server:
            _, body = server.chat(stream=True)
    assert body.count(": OPENROUTER PROCESSING\n\n") >= 2
    assert content(body) == "ok"
