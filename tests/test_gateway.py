"""The whole server before scripted upstreams: fallback, credentials, clients that leave, silence."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import CHAT, Server, running_server
from tests.support.sse import chunks, content
from tests.support.two_upstreams import serving_two
from tests.support.upstream import (
    DONE,
    Cut,
    Hang,
    Upstream,
    Wait,
    chat_json,
    chunk,
    chunked,
    error,
    event,
    raw,
    sse,
)


def test_fallback_before_the_first_token_and_an_error_chunk_after(tmp_path: Path) -> None:
    half = sse([chunk({"content": "Hel"})], done=False, end=False)
    with serving_two(tmp_path) as (server, a, b):
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
    with serving_two(tmp_path) as (server, a, _):
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
    with serving_two(tmp_path_factory.mktemp("shared")) as (server, a, _):
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
    with serving_two(tmp_path) as (server, a, _):
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
