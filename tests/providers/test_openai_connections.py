"""The lean relay's connections: what is sent where, and who closes what when."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest

from ionrouter.errors import FailureClass
from ionrouter.providers.openai_http import OpenAIProvider
from ionrouter.providers.outgoing import Outgoing
from tests.support.certificate import self_signed
from tests.support.endpoints import ask, collect, make_endpoint, make_request
from tests.support.resolver import fixed
from tests.support.upstream import (
    DONE,
    Hang,
    Upstream,
    chat_json,
    chat_stream,
    chunk,
    chunked,
    error,
    event,
    json_response,
    raw,
    response,
)

F = FailureClass
HI, STOP = chunk({"content": "hi"}), chunk({}, "stop")

GUARD_S = 20.0  # beyond any machine's slowness


async def test_the_upstream_sees_built_headers_only(provider: OpenAIProvider) -> None:
    """G125."""
    with Upstream() as up:
        up.enqueue(response(200, json.dumps({"error": "x"}), {"Set-Cookie": "s=1"}), chat_json("x"))
        request = ask(up, endpoint={"key_variable": "UP_KEY", "headers": {"X-Title": "t"}}, stream=False)
        await collect(provider, request)
        await collect(provider, request)
        seen = up.requests[1].headers
    assert set(seen) == {
        "host", "user-agent", "accept", "content-type", "x-title", "authorization", "content-length",
        "accept-encoding",
    }  # fmt: skip
    assert seen["authorization"] == "Bearer UP-KEY-12345"


async def test_a_changed_key_or_header_counts_from_the_next_request_on() -> None:
    """Heads are remembered, by all that goes into them."""
    env = {"UP_KEY": "UP-KEY-12345", "OTHER": "OTHER-KEY-6789"}
    provider = OpenAIProvider(env)
    with Upstream(chat_json("x")) as up:
        for endpoint in (
            {"key_variable": "UP_KEY"},
            {"key_variable": "OTHER"},
            {"key_variables": ("NOT_SET", "OTHER")},
            {"key_variable": "UP_KEY", "headers": {"X-Title": "t"}},
            {},
        ):
            await collect(provider, ask(up, endpoint=endpoint, stream=False))
        env["UP_KEY"] = " NEW-KEY-12345\n"
        await collect(provider, ask(up, endpoint={"key_variable": "UP_KEY"}, stream=False))
        up.enqueue(error(401, {"error": {"message": "no NEW-KEY-12345"}}))
        raised = (await collect(provider, ask(up, endpoint={"key_variable": "UP_KEY"}))).error
        sent = [request.headers for request in up.requests]
    await provider.close()
    assert [headers.get("authorization", "").removeprefix("Bearer ") for headers in sent] == [
        *("UP-KEY-12345", "OTHER-KEY-6789", "OTHER-KEY-6789", "UP-KEY-12345", ""),
        *("NEW-KEY-12345", "NEW-KEY-12345"),
    ]
    assert [headers.get("x-title") for headers in sent] == [None, None, None, "t", None, None, None]
    assert sent[-1]["accept"] == "text/event-stream, application/json"
    assert raised is not None and "NEW-KEY" not in f"{raised.message}{raised.raw}"


async def test_no_more_heads_are_remembered_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ionrouter.providers.openai_http.MAX_HEADS", 2)
    env: dict[str, str] = {}
    provider = OpenAIProvider(env)
    with Upstream(chat_json("x")) as up:
        for number in range(5):
            env["UP_KEY"] = f"UP-KEY-{number}"
            await collect(provider, ask(up, endpoint={"key_variable": "UP_KEY"}, stream=False))
            assert len(provider._heads) <= 2
        assert [request.headers["authorization"][-1] for request in up.requests] == list("01234")
    await provider.close()


async def test_the_queue_is_the_wait_for_a_connection_under_the_cap() -> None:
    provider = OpenAIProvider({}, outgoing=Outgoing(max_connections=1))
    with Upstream(chat_json("x")) as up:
        up.enqueue(raw(Hang()))
        first, second, third = (ask(up, stream=False) for _ in range(3))
        holding = asyncio.create_task(collect(provider, first))
        await up.requests_soon(1)
        waiting = asyncio.create_task(collect(provider, second))
        await asyncio.sleep(0.05)
        holding.cancel()
        await asyncio.wait([holding])
        await waiting
        await collect(provider, third)  # on the connection that is there
        sent = make_request(third.endpoint, stream=False)
        headers = {"Content-Type": "application/json"}
        async with aclosing(
            provider.carry(sent, f"{up.base_url}/chat/completions", headers, b"{}")
        ) as carried:
            assert [batch async for batch in carried]
    await provider.close()
    assert sent.queue.seconds == 0.0  # built elsewhere, sent the same way
    assert first.queue.seconds is None  # no answer came
    assert second.queue.seconds is not None and second.queue.seconds >= 0.04
    assert third.queue.seconds == 0.0


async def test_a_stream_asks_for_no_compression(provider: OpenAIProvider) -> None:
    with Upstream(chat_stream(["A"])) as up:
        await collect(provider, ask(up))
        assert up.requests[0].headers["accept-encoding"] == "identity"


async def test_an_echoed_key_is_not_shown(provider: OpenAIProvider) -> None:
    with Upstream(error(401, {"error": {"message": "bad key UP-KEY-12345"}})) as up:
        raised = (await collect(provider, ask(up, endpoint={"key_variable": "UP_KEY"}))).error
    assert raised is not None
    assert "UP-KEY-12345" not in f"{raised.message}{raised.raw}"


@pytest.mark.parametrize(
    "endpoint",
    [{"key_variable": "NOT_SET"}, {"headers": {"X-A": "a\r\nX-Evil: 1"}}, {"headers": {"Host": "x"}}],
)
async def test_an_endpoint_that_cannot_be_used_is_refused_before_any_byte(
    provider: OpenAIProvider, endpoint: dict[str, Any]
) -> None:
    """G130."""
    with Upstream() as up:
        answer = await collect(provider, ask(up, endpoint=endpoint))
        assert up.requests == []
    assert answer.error is not None
    assert (answer.error.failure, answer.error.code) == (F.DOMAIN, "config")


@pytest.mark.parametrize("url", ["http://8.8.8.8/v1", "ftp://x/", "", None])
async def test_a_forbidden_address_is_refused(provider: OpenAIProvider, url: str | None) -> None:
    answer = await collect(provider, make_request(make_endpoint(url)))
    assert answer.error is not None
    assert (answer.error.failure, answer.error.code) == (F.DOMAIN, "config")


async def test_a_name_that_leads_to_a_public_address_is_not_called_over_http() -> None:
    """A rebound name: the address that would be connected to is what counts."""
    provider = OpenAIProvider({}, outgoing=Outgoing(fixed("8.8.8.8")))
    answer = await collect(provider, make_request(make_endpoint("http://rebound.example/v1")))
    await provider.close()
    assert answer.error is not None
    assert (answer.error.failure, answer.error.code) == (F.DOMAIN, "config")


async def test_a_certificate_nobody_vouches_for_is_refused(provider: OpenAIProvider) -> None:
    with Upstream(chat_json("x"), tls=self_signed()) as up:
        answer = await collect(provider, ask(up, stream=False))
        assert up.requests == []
    assert answer.error is not None
    assert (answer.error.failure, answer.error.code) == (F.TRANSIENT, "tls")
    words = "the upstream's certificate is not trusted: self-signed certificate"
    assert answer.error.message == words  # and not what the operating system calls OpenSSL's number


async def test_a_local_name_over_http_is_reached(provider: OpenAIProvider) -> None:
    with Upstream(chat_json("x")) as up:
        endpoint = make_endpoint(f"http://localhost:{up.port}/v1/")
        answer = await collect(provider, make_request(endpoint, stream=False))
        assert up.requests[0].path == "/v1/chat/completions"
    assert answer.error is None


async def test_done_ends_the_answer_while_the_socket_stays_open(provider: OpenAIProvider) -> None:
    """G30: and the connection is closed, not kept."""
    with Upstream(chunked([event(HI), event(STOP), DONE, Hang()])) as up:
        answer = await collect(provider, ask(up))
        assert answer.error is None
        assert await up.requests[0].closed_soon()
        assert not up.requests[0].finished.is_set() or up.requests[0].closed_at is not None


async def test_a_connection_whose_answer_ended_is_used_again(provider: OpenAIProvider) -> None:
    with Upstream(chat_stream(["A"])) as up:
        for _ in range(3):
            await collect(provider, ask(up))
            await is_kept(provider)  # the body's end may come a read after [DONE]
        assert [r.connection for r in up.requests] == [1, 1, 1]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("script", "connections"),
    [
        (error(400), [1, 1, 1]),
        (chunked([b"{}"], status=429), [1, 1, 1]),
        (error(503), [1, 2, 3]),
        (json_response([]), [1, 2, 3]),
    ],
)
async def test_a_refusal_leaves_its_connection_and_a_fault_does_not(
    provider: OpenAIProvider, script: Any, connections: list[int], stream: bool
) -> None:
    with Upstream(script) as up:
        for _ in range(3):
            assert (await collect(provider, ask(up, stream=stream))).error is not None
        assert [r.connection for r in up.requests] == connections


async def is_kept(provider: OpenAIProvider) -> None:
    for _ in range(int(GUARD_S / 0.01)):
        if any(provider._outgoing._pool._free.values()):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("no connection was kept")


async def test_leaving_in_the_middle_closes_the_upstream(provider: OpenAIProvider) -> None:
    """G97, G105."""
    with Upstream(chunked([event(HI), Hang()])) as up:
        async with aclosing(provider.stream(ask(up))) as events:
            await anext(events)
        assert await up.requests[0].closed_soon()


@pytest.mark.parametrize("script", [raw(Hang()), chunked([Hang()])])
@pytest.mark.parametrize("stream", [True, False])
async def test_cancelling_before_the_first_event_closes_the_upstream(
    provider: OpenAIProvider, script: Any, stream: bool
) -> None:
    """G96: while waiting for headers, and while waiting for the first event."""
    with Upstream(script) as up:
        task = asyncio.create_task(collect(provider, ask(up, stream=stream)))
        await up.requests_soon()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await up.requests[0].closed_soon()


async def test_an_unread_stream_stops_the_upstream_and_is_not_buffered(provider: OpenAIProvider) -> None:
    """G101: the upstream can push only what sockets and our small buffer hold."""
    piece = event(chunk({"content": "x" * 60_000})) * 16  # about 1 MB
    with Upstream(chunked([piece] * 200)) as up:
        async with aclosing(provider.stream(ask(up))) as events:
            await anext(events)
            request = up.requests[0]
            sent = -1
            while sent != request.sent_bytes:  # until the upstream no longer gets anything out
                sent = request.sent_bytes
                await asyncio.sleep(0.3)
            assert sent < 40 * 1024 * 1024
            assert not request.finished.is_set()
        assert await request.closed_soon()


async def test_many_streams_at_once_stay_apart(provider: OpenAIProvider) -> None:
    with Upstream(lambda r: chat_stream([r.json()["messages"][0]["content"]] * 5, pause_s=0.005)) as up:
        requests = [ask(up, body={"messages": [{"role": "user", "content": str(i)}]}) for i in range(150)]
        answers = await asyncio.gather(*(collect(provider, request) for request in requests))
    assert [a.text() for a in answers] == [str(i) * 5 for i in range(150)]


async def test_a_large_body_goes_out(provider: OpenAIProvider) -> None:
    text = "a" * 3_000_000
    with Upstream(chat_json("x")) as up:
        body = {"messages": [{"role": "user", "content": text}]}
        assert (await collect(provider, ask(up, body=body, stream=False))).error is None
        assert up.requests[0].json()["messages"][0]["content"] == text


async def test_closing_the_provider_closes_connections_still_draining(provider: OpenAIProvider) -> None:
    with Upstream(chunked([event(HI), event(STOP), DONE, Hang()])) as up:
        await collect(provider, ask(up))
        await provider.close()
        assert await up.requests[0].closed_soon()
