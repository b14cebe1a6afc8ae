"""Faulty upstreams before the whole server: what its clients see of them."""

from __future__ import annotations

import http.client
import json
import resource
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import CHAT, Server, eventually, running_server
from tests.support.sse import chunks, content, data_lines
from tests.support.two_upstreams import serving_two
from tests.support.upstream import (
    DONE,
    Cut,
    Upstream,
    chat_json,
    chat_stream,
    chunk,
    chunked,
    error,
    event,
    response,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Upstream]]:
    with serving_two(tmp_path_factory.mktemp("shared")) as (server, a, _):
        yield server, a


def _chunk_json(**more: object) -> bytes:
    base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "up"}
    return b"data: " + json.dumps({**base, **more}).encode() + b"\n\n"


def _delta(text: str, finish: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}]}


STOP = event(chunk({}, "stop"))


def test_half_an_event_is_never_passed_on(shared: tuple[Server, Upstream]) -> None:
    """G11: the error lands in an event of its own."""
    server, a = shared
    half = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"par'
    a.enqueue(chunked([_chunk_json(**_delta("hi")), half], end=False).then(Cut()))
    _, body = server.chat(stream=True)
    assert content(body) == "hi"
    assert chunks(body)[-1]["error"]["code"] == 502
    assert "[DONE]" not in body


@pytest.mark.parametrize("stream", [True, False])
def test_half_a_surrogate_from_upstream_breaks_nothing(shared: tuple[Server, Upstream], stream: bool) -> None:
    """G16."""
    server, a = shared
    half = _chunk_json(**_delta("HALF")).replace(b"HALF", rb"x\ud83d")
    whole = chat_json("HALF").steps[0]
    assert isinstance(whole, bytes)
    body = whole.partition(b"\r\n\r\n")[2].replace(b"HALF", rb"x\ud83d")
    a.enqueue(chunked([half, event(chunk({"content": "y"})), STOP, DONE]) if stream else response(200, body))
    status, answer = server.chat(stream=stream)
    assert status == 200
    text = content(answer) if stream else answer["choices"][0]["message"]["content"]
    assert text[0] == "x"
    assert text.endswith("y" if stream else text[-1])
    assert len(text) == (3 if stream else 2)
    if stream:
        assert data_lines(answer)[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [True, False])
def test_infinite_logprobs_leave_as_strict_json(shared: tuple[Server, Upstream], stream: bool) -> None:
    """G17."""
    server, a = shared
    logprobs = '{"content":[{"token":"a","logprob":-Infinity,"bytes":null,"top_logprobs":[]}]}'
    if stream:
        raw_event = _chunk_json(**_delta("a")).replace(
            b'"finish_reason"', f'"logprobs":{logprobs},"finish_reason"'.encode()
        )
        a.enqueue(chunked([raw_event, STOP, DONE]))
    else:
        whole = json.dumps(
            {
                "id": "c",
                "choices": [
                    {"index": 0, "message": {"content": "a"}, "logprobs": 0, "finish_reason": "stop"}
                ],
            }
        )
        a.enqueue(response(200, whole.replace('"logprobs": 0', f'"logprobs": {logprobs}')))
    status, answer = server.chat(stream=stream, logprobs=True)
    assert status == 200
    first = (chunks(answer)[0] if stream else answer)["choices"][0]
    assert first["logprobs"]["content"][0]["logprob"] in (None, -9999.0)


def test_an_error_inside_a_stream_is_no_success(shared: tuple[Server, Upstream]) -> None:
    """G25."""
    server, a = shared
    failure = _chunk_json(error={"code": 502, "message": "worker limit reached"}, choices=[])
    a.enqueue(chunked([_chunk_json(**_delta("Hel")), failure, DONE]))
    _, body = server.chat(stream=True)
    *_, last = chunks(body)
    assert content(body) == "Hel"
    assert last["error"]["code"] == 502
    assert "worker limit reached" in last["error"]["message"]
    assert last["choices"][0]["finish_reason"] == "error"
    assert not any(c["choices"] and c["choices"][0]["finish_reason"] == "stop" for c in chunks(body))


def test_a_role_alone_commits_nothing(tmp_path: Path) -> None:
    """G39: a role chunk and then an error fail before the first token: a real status, no SSE bytes."""
    with serving_two(tmp_path) as (server, a, b):
        a.default = error(503)
        role = event(chunk({"role": "assistant", "content": ""}))
        b.default = chunked([role, _chunk_json(error={"message": "overloaded", "code": 503})])
        status, body = server.chat(stream=True)
        assert status == 503
        assert body["error"]["code"] == 503


def test_when_all_are_limited_the_soonest_wait_is_told(tmp_path: Path) -> None:
    """G63: also to the second caller, whom nobody is asked for."""
    with serving_two(tmp_path) as (server, a, b):
        a.default = error(429, headers={"Retry-After": "20"})
        b.default = error(429, headers={"Retry-After": "45"})
        for _ in range(2):
            connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
            connection.request(
                "POST", "/api/v1/chat/completions", json.dumps(CHAT), {"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            body = json.loads(answer.read())
            assert answer.status == 429
            assert 15 <= int(answer.headers["Retry-After"]) <= 20
            assert (body["error"]["code"], body["error"]["type"]) == (429, "rate_limit_error")
            assert body["error"]["param"] is None
            assert "UP-KEY" not in json.dumps(body)
        assert len(a.requests) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_half_a_surrogate_in_a_prompt_is_nobodys_fault(shared: tuple[Server, Upstream], stream: bool) -> None:
    """G143: the upstream gets JSON it can read, and its health does not suffer."""
    server, a = shared
    a.enqueue(chat_stream(["ok"]) if stream else chat_json("ok"))
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    flag = "true" if stream else "false"
    body = f'{{"model":"m","stream":{flag},"messages":[{{"role":"user","content":"a\\ud83d"}}]}}'
    connection.request("POST", "/api/v1/chat/completions", body, {"Content-Type": "application/json"})
    assert connection.getresponse().status == 200
    sent = a.requests[-1].json()["messages"][0]["content"]
    assert sent[0] == "a"
    sent.encode()


@pytest.mark.parametrize("status", [400, 404, 408, 429, 500, 502, 503, 504])
def test_every_failure_is_a_strict_envelope(tmp_path: Path, status: int) -> None:
    """G150."""
    with Upstream(error(status)) as up:
        routes = (
            f"providers: {{ a: {{ type: openai, base_url: {up.base_url} }} }}\n"
            "models: { m: { endpoints: [ { provider: a } ] } }\n"
        )
        with running_server(tmp_path, routes) as server:
            found, body = server.chat()
    assert found == {404: 502, 408: 504, 500: 502}.get(status, status)
    failure = body["error"]
    assert failure["code"] == found
    assert type(failure["code"]) is int
    assert isinstance(failure["message"], str)
    assert failure["message"]
    assert isinstance(failure["type"], str)
    assert failure["param"] is None
    assert "None" not in json.dumps(body)


def test_errors_of_routing_say_in_the_route_header_what_was_tried(tmp_path: Path) -> None:
    routes = """
providers:
  bad: { type: fake, name: Bad, options: { status: 503 } }
  worse: { type: fake, name: Worse, options: { status: 429 } }
models:
  acme/m: { endpoints: [{ provider: bad }, { provider: worse }] }
"""
    with running_server(tmp_path, routes) as server:
        tried = _refused(server, {"provider": {"order": ["bad", "worse"]}})
        nowhere = _refused(server, {"provider": {"only": ["nobody"]}})
    assert tried["X-Ionrouter-Route"] == "none; tried bad/acme/m: 503, worse/acme/m: 429"
    assert nowhere["X-Ionrouter-Route"] == "none; no endpoint may serve this request"


def _refused(server: Server, more: dict[str, Any]) -> Any:
    body = {"model": "acme/m", "messages": [{"role": "user", "content": "hi"}], **more}
    request = urllib.request.Request(
        f"{server.url}/api/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request, timeout=30)
    return raised.value.headers


def test_a_full_table_of_files_is_no_fault_of_the_upstream(tmp_path: Path) -> None:
    """The engine inside, or who has a connection already, may still answer; nobody is benched for it."""
    with serving_two(tmp_path) as (server, a, _):
        connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
        connection.connect()
        files = Path(f"/proc/{server.process.pid}/fd")
        _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        opened = sorted(int(file.name) for file in files.iterdir())
        most = opened[-1] + 8  # others' connections fill the holes, and what is left
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (most, hard))
        others = [socket.create_connection((server.host, server.port)) for _ in range(most - len(opened))]
        eventually(lambda: len(list(files.iterdir())), lambda found: found >= most)
        for _ in range(4):
            connection.request("POST", "/api/v1/chat/completions", json.dumps(CHAT), JSON)
            answer = connection.getresponse()
            told = json.loads(answer.read())["error"]
            assert (answer.status, told["metadata"]["provider_code"]) == (503, "no_file")
            assert answer.headers["Retry-After"] == "1"
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (4096, hard))
        for other in others:
            other.close()
        assert content(server.chat(stream=True)[1]) == "from a"
        server.wait_for_event("request_finished", 5)
        assert {name for done in server.events("request_finished")[:4] for _, name in done["attempts"]} == {
            "own_limit"
        }
        assert len(a.requests) == 1


JSON = {"Content-Type": "application/json"}
