"""The scripted upstream itself: what it plays is what it was told, and it sees clients come and go."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request

import pytest

from tests.support.upstream import (
    Cut,
    Hang,
    Reset,
    Upstream,
    WaitFor,
    chat_json,
    chat_stream,
    chunked,
    error,
    refused_url,
    together_stream,
)


def post(url: str, body: dict[str, object]) -> bytes:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        data: bytes = answer.read()
    return data


def test_it_answers_and_records_the_request() -> None:
    with Upstream(chat_json("hello")) as up:
        answer = json.loads(post(f"{up.base_url}/chat/completions", {"model": "m"}))
    assert answer["choices"][0]["message"]["content"] == "hello"
    assert up.requests[0].path == "/v1/chat/completions"
    assert up.requests[0].json() == {"model": "m"}
    assert up.requests[0].headers["content-type"] == "application/json"


def test_queued_answers_come_before_the_default() -> None:
    with Upstream(chat_json("later")) as up:
        up.enqueue(error(503, headers={"Retry-After": "7"}))
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(up.base_url, {})
        assert caught.value.code == 503
        assert caught.value.headers["Retry-After"] == "7"
        assert b"later" in post(up.base_url, {})


@pytest.mark.parametrize("script", [chat_stream(["A", "B"]), together_stream(["A", "B"])])
def test_a_stream_is_well_formed_sse(script: object) -> None:
    with Upstream(script) as up:  # type: ignore[arg-type]
        events = post(up.base_url, {}).decode().split("\n\n")
    assert events[-1] == ""
    assert events[-2] == "data: [DONE]"
    assert all(json.loads(e.removeprefix("data: "))["object"] == "chat.completion.chunk" for e in events[:-2])


def test_the_moment_a_client_leaves_is_seen_while_a_script_hangs() -> None:
    with Upstream(chunked([b": hello\n\n", Hang()])) as up:
        with socket.create_connection(("127.0.0.1", up.port)) as client:
            client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            assert client.recv(15) == b"HTTP/1.1 200 OK"
            request = up.wait_for_requests()[0]
            assert not request.closed.is_set()
        assert request.wait_closed()
        assert request.closed_at is not None


def test_a_cut_ends_the_body_early_and_a_reset_kills_the_socket() -> None:
    with Upstream() as up:
        up.enqueue(chunked([b"half", Cut()]), chunked([b"half", Reset()]))
        seen = []
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", up.port)) as client:
                client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                data = b""
                try:
                    while part := client.recv(4096):
                        data += part
                    seen.append("fin")
                except ConnectionResetError:
                    seen.append("rst")
            assert not data.endswith(b"0\r\n\r\n")
    assert seen == ["fin", "rst"]


def test_a_gate_holds_the_script_until_the_test_opens_it() -> None:
    gate = threading.Event()
    with (
        Upstream(chunked([b"a", WaitFor(gate), b"b"])) as up,
        socket.create_connection(("127.0.0.1", up.port)) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        data = b""
        while b"a\r\n" not in data:
            data += client.recv(4096)
        assert b"b\r\n" not in data
        gate.set()
        while part := client.recv(4096):
            data += part
    assert data.endswith(b"1\r\nb\r\n0\r\n\r\n")


def test_one_connection_carries_several_requests() -> None:
    with Upstream(chat_json("x")) as up:
        with socket.create_connection(("127.0.0.1", up.port)) as client:
            for _ in range(3):
                client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                data = b""
                while not data.endswith(b"}}"):
                    data += client.recv(4096)
        assert [r.connection for r in up.requests] == [1, 1, 1]
        assert up.requests[-1].wait_closed()


def test_a_refused_address_refuses() -> None:
    url, held = refused_url()
    with held, pytest.raises(urllib.error.URLError, match="refused"):
        post(url, {})
