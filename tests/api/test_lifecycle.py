"""Signals and the drain, on a server in a process of its own."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.file_server import FileServer, Served
from tests.support.server import CHAT, Server, running_server
from tests.support.sse import chunks, data_lines

SLOW = """
providers:
  fake: { type: fake, name: Fake, options: { tokens: 400, gap_s: 0.05 } }
models:
  m: { endpoints: [ { provider: fake } ] }
"""


@pytest.mark.parametrize(("host", "reached"), [("::", "both"), ("[0::0]", "both"), ("::1", "IPv6")])
def test_all_addresses_are_those_of_ipv4_too(tmp_path: Path, host: str, reached: str) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with running_server(tmp_path, SLOW, "--host", host, wait_until_ready=False, no_auth="true") as server:
        for address, is_reached in (("::1", True), ("127.0.0.1", reached == "both")):
            connection = http.client.HTTPConnection(address, server.port, timeout=30)
            try:
                connection.request("GET", "/livez")
                assert connection.getresponse().status == 200
                assert is_reached
            except ConnectionRefusedError:
                assert not is_reached
        assert server.url.startswith("http://[::")


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
        connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
        connection.request("GET", "/livez")
        assert connection.getresponse().headers["Connection"] == "close"
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
    told = [(event["status"], event["error"]) for event in server.events("request_finished")]
    assert told == [(503, "the server is shutting down; try again")] * 2  # as their clients were
    attempts = [event["attempts"] for event in server.events("request_finished")]
    assert [failure for tried in attempts for _, failure in tried] == ["stopped"] * 2


def test_a_client_that_reads_slowly_and_outlasts_the_drain_has_not_left(tmp_path: Path) -> None:
    """The server waits for it and not for the upstream."""
    quick = SLOW.replace("400", "1000000").replace("0.05", "0")
    body = json.dumps({**CHAT, "stream": True}).encode()
    with running_server(tmp_path, quick, drain_timeout_s=0.3) as server:
        with socket.create_connection((server.host, server.port)) as client:
            head = f"POST /api/v1/chat/completions HTTP/1.1\r\nHost: {server.host}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            assert client.recv(64).startswith(b"HTTP/1.1 200")
            time.sleep(0.5)  # until the buffers between us are full
            server.signal(signal.SIGTERM)
            server.wait_for_event("requests_aborted")
            while client.recv(1 << 16):
                pass
        assert server.wait() == 0
    (finished,) = server.events("request_finished")
    assert (finished["status"], finished["attempts"][0][1]) == (503, "stopped")


def test_a_request_that_is_still_being_uploaded_is_waited_for(tmp_path: Path) -> None:
    quick = SLOW.replace("400", "2")
    with running_server(tmp_path, quick, drain_timeout_s=600) as server, _upload(server) as connection:
        server.signal(signal.SIGTERM)
        assert server.wait_for_event("drain_started")[0]["in_flight"] == 1
        _wait_until_deaf(server)  # a drain that waited for nobody would end now
        time.sleep(0.3)
        connection.send(BODY[10:])
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Connection"]) == (200, "close")
        answer.read()
        assert server.wait() == 0
    assert [event["status"] for event in server.events("request_finished")] == [200]


def test_an_upload_that_outlasts_the_drain_ends_with_the_error_of_running_answers(tmp_path: Path) -> None:
    with running_server(tmp_path, SLOW, drain_timeout_s=0.3) as server, _upload(server) as connection:
        server.signal(signal.SIGTERM)
        answer = connection.getresponse()
        assert answer.status == json.load(answer)["error"]["code"] == 503
        assert server.wait() == 0
    assert server.events("requests_aborted")[0]["count"] == 1
    assert [event["status"] for event in server.events("request_refused")] == [503]


BODY = json.dumps(CHAT).encode()


@contextmanager
def _upload(server: Server) -> Iterator[http.client.HTTPConnection]:
    """Send a request's head and the first bytes of its body, and wait until the server has them."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    connection.putrequest("POST", "/api/v1/chat/completions")
    for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(BODY)))):
        connection.putheader(name, value)
    connection.putheader("Expect", "100-continue")  # is answered once the head was read
    connection.endheaders()
    assert connection.sock.recv(64).startswith(b"HTTP/1.1 100")
    connection.send(BODY[:10])
    with closing(connection):
        yield connection


def _wait_until_deaf(server: Server) -> None:
    while True:
        try:
            socket.create_connection((server.host, server.port), timeout=60).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.02)


def test_three_hundred_callers_at_once_are_let_in_while_the_server_is_busy(tmp_path: Path) -> None:
    with running_server(tmp_path, SLOW) as server, ExitStack() as stack:
        server.signal(signal.SIGSTOP)
        try:
            for _ in range(300):  # one too many would be tried again after a second
                stack.enter_context(socket.create_connection((server.host, server.port), timeout=0.9))
        finally:
            server.signal(signal.SIGCONT)
        assert server.get("/livez")[0] == 200


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


STARTING = """
providers:
  local: { type: ion }
  together: { type: litellm, litellm_provider: together_ai, keys: [TOGETHER_API_KEY] }
models:
  small: { endpoints: [ { provider: local, weights: "hf:org/repo/model.gguf" } ] }
  large: { endpoints: [ { provider: together, model: x, prices: { prompt: 1, completion: 1 } } ] }
"""


def test_a_server_that_is_still_fetching_and_importing_stops_at_once_and_in_silence(tmp_path: Path) -> None:
    """No drain delay either: nobody was told that it is ready."""
    path = "/org/repo/resolve/main/model.gguf"
    with FileServer() as hub:
        headers = {"X-Repo-Commit": "a" * 40}
        hub.files[path] = Served(bytes(1 << 20), headers=headers, stall=threading.Event())
        env = {"HF_ENDPOINT": hub.url, "TOGETHER_API_KEY": "key", "IONROUTER_DRAIN_DELAY_S": "600"}
        cache = tmp_path / "cache"
        with running_server(tmp_path, STARTING, env=env, wait_until_ready=False, cache_dir=cache) as server:
            while not hub.seen_of(path):
                time.sleep(0.02)
            server.signal(signal.SIGTERM)
            assert server.wait() == 0, server.log
            assert server.events("drain_finished")
            assert "Traceback" not in server.log and "terminate called" not in server.log


def _ignoring_the_cut(server: Server) -> None:
    with suppress(OSError, http.client.HTTPException):
        server.chat(stream=True)


def test_an_idle_connection_of_a_client_is_closed_and_a_busy_one_is_not(tmp_path: Path) -> None:
    slow = SLOW.replace("400", "30")  # an answer takes three times as long as a connection may be idle
    body = json.dumps({**CHAT, "stream": True})
    headers = {"Content-Type": "application/json"}
    with running_server(tmp_path, slow, client_keepalive_s=0.5) as server:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
        connection.connect()
        first = connection.sock
        for _ in range(2):  # the second on the same connection
            connection.request("POST", "/api/v1/chat/completions", body, headers)
            assert b"[DONE]" in connection.getresponse().read()
            time.sleep(0.2)
        assert connection.sock is first
        ended_at = time.monotonic()
        assert first.recv(1) == b""  # it is closed in the end
        assert time.monotonic() - ended_at < 5
