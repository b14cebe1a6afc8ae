"""The lean relay when the upstream refuses, breaks, lies or says nothing."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from contextlib import aclosing
from typing import Any

import pytest

from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.providers.openai_http import OpenAIProvider
from ionrouter.routing.table import Timeouts
from ionrouter.schema.usage import Usage
from tests.support.endpoints import Answer, ask, collect, make_endpoint, make_request
from tests.support.upstream import (
    DONE,
    END,
    GUARD_S,
    Cut,
    Hang,
    Reset,
    Upstream,
    Wait,
    WaitFor,
    chat_stream,
    chunk,
    chunked,
    error,
    event,
    http_chunk,
    json_response,
    raw,
    refused_url,
    response,
    sse,
    usage,
)

F = FailureClass
HI, STOP = chunk({"content": "hi"}), chunk({}, "stop")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("status", "failure"),
    [(400, F.REQUEST), (401, F.DOMAIN), (402, F.DOMAIN), (404, F.DOMAIN), (429, F.CAPACITY),
     (500, F.TRANSIENT), (503, F.TRANSIENT)],
)  # fmt: skip
async def test_a_refusal_has_its_class_and_waiting_time(
    provider: OpenAIProvider, status: int, failure: FailureClass, stream: bool
) -> None:
    """G58."""
    with Upstream(error(status, headers={"Retry-After": "7"})) as up:
        answer = await collect(provider, ask(up, stream=stream))
    assert answer.error is not None
    assert (answer.error.failure, answer.error.status) == (failure, status)
    assert answer.error.message == f"scripted {status}"
    assert answer.error.retry_after_s == 7.0
    assert answer.error.provider == "Up"


async def test_a_compressed_error_is_read(provider: OpenAIProvider) -> None:
    """G144."""
    body = gzip.compress(json.dumps({"error": {"message": "bad", "type": "invalid_request_error"}}).encode())
    with Upstream(response(400, body, {"Content-Encoding": "gzip"})) as up:
        for stream in (True, False):
            raised = (await collect(provider, ask(up, stream=stream))).error
            assert raised is not None
            assert (raised.failure, raised.message) == (F.REQUEST, "bad")


_LIMITED = b"HTTP/1.1 429 Slow down\r\nContent-Type: application/json\r\nRetry-After: 7\r\n"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "script",
    [
        raw(_LIMITED + b'Content-Length: 99\r\n\r\n{"error": "a', Cut()),
        raw(_LIMITED + b'Content-Length: 99\r\n\r\n{"error": "a', Reset()),
        raw(_LIMITED + b'Content-Length: 99\r\n\r\n{"error": "a', Hang()),
        raw(_LIMITED + b"Content-Length: 99\r\n\r\n", Hang()),
        raw(_LIMITED + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\nno\r\n", Hang()),
        response(429, b"\x01" * 20, {"Retry-After": "7", "Content-Encoding": "br"}),
        response(429, b"\x01" * 20, {"Retry-After": "7", "Content-Encoding": "gzip"}),
    ],
)
async def test_a_refusal_whose_words_cannot_be_read_goes_by_its_status(script: Any, stream: bool) -> None:
    provider = OpenAIProvider({}, trailer_s=0.05)
    with Upstream(script) as up:
        async with asyncio.timeout(GUARD_S):
            raised = (await collect(provider, ask(up, stream=stream))).error
        assert raised is not None
        assert (raised.failure, raised.status, raised.retry_after_s) == (F.CAPACITY, 429, 7.0)
        assert "\x01" not in raised.message
        assert await up.requests[0].closed_soon()
    await provider.close()


async def test_a_refused_connection_says_that_nothing_was_sent(provider: OpenAIProvider) -> None:
    url, held = refused_url()
    with held:
        answer = await collect(provider, make_request(make_endpoint(url)))
    assert answer.error is not None
    assert (answer.error.failure, answer.error.code) == (F.TRANSIENT, "connect_error")
    assert "127.0.0.1" not in answer.error.message


async def test_a_name_that_does_not_resolve_is_a_connection_fault(provider: OpenAIProvider) -> None:
    answer = await collect(provider, make_request(make_endpoint("https://nothing.invalid/v1")))
    assert answer.error is not None
    assert (answer.error.failure, answer.error.code) == (F.TRANSIENT, "connect_error")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("end", [Cut(), Reset()])
async def test_a_close_before_any_answer_is_transient(
    provider: OpenAIProvider, stream: bool, end: Any
) -> None:
    with Upstream(raw(end)) as up:
        answer = await collect(provider, ask(up, stream=stream))
    assert answer.error is not None
    assert answer.error.failure is F.TRANSIENT
    assert answer.error.code in ("disconnected", "cut")


@pytest.mark.parametrize("end", [Cut(), Reset()])
async def test_whole_events_before_a_cut_arrive_and_the_half_one_does_not(
    provider: OpenAIProvider, end: Any
) -> None:
    """G11: everything in one burst, so that the cut is known before the first event is read."""
    pieces = [event(HI) + b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"par', end]
    if isinstance(end, Reset):
        pieces.insert(1, Wait(0.1))  # an RST may overtake data in the peer's kernel
    with Upstream(chunked(pieces, end=False)) as up:
        answer = await collect(provider, ask(up))
    assert answer.text() == "hi"
    assert answer.error is not None
    assert (answer.error.failure, answer.error.code) == (F.TRANSIENT, "cut")
    assert answer.finishes() == {}


async def test_what_came_before_a_cut_arrives_even_when_the_reader_was_slow(provider: OpenAIProvider) -> None:
    """G11: the cut is known to the transport before the second event is asked for."""
    gate = threading.Event()
    pieces = [event(HI), WaitFor(gate), event(chunk({"content": " again"})), Cut()]
    with Upstream(chunked(pieces, end=False)) as up:
        async with aclosing(provider.stream(ask(up))) as events:
            seen = [await anext(events)]
            gate.set()
            await asyncio.to_thread(up.requests[0].finished.wait)
            await asyncio.sleep(0.2)  # the transport takes note of the end
            with pytest.raises(UpstreamError, match="cut"):
                async for item in events:
                    seen.append(item)
    assert Answer(seen).text() == "hi again"


async def test_a_clean_end_without_finish_reason_is_transient(provider: OpenAIProvider) -> None:
    with Upstream(sse([HI], done=False)) as up:
        answer = await collect(provider, ask(up))
    assert answer.error is not None
    assert (answer.text(), answer.error.code) == ("hi", "cut")


async def test_a_missing_done_after_the_finish_is_fine(provider: OpenAIProvider) -> None:
    with Upstream(sse([HI, STOP, chunk(usage=usage(5, 1))], done=False)) as up:
        answer = await collect(provider, ask(up))
    assert answer.error is None
    assert answer.usages() == [Usage(5, 1)]


async def test_a_cut_after_the_finish_reason_is_fine(provider: OpenAIProvider) -> None:
    with Upstream(chunked([event(HI), event(STOP), Cut()], end=False)) as up:
        answer = await collect(provider, ask(up))
    assert answer.error is None
    assert answer.finishes() == {0: ("stop", "stop")}


async def test_an_open_socket_after_the_finish_reason_ends_too() -> None:
    provider = OpenAIProvider({}, trailer_s=0.05)
    with Upstream(chunked([event(HI), event(STOP), Hang()])) as up:
        answer = await collect(provider, ask(up))
        assert answer.error is None
        assert await up.requests[0].closed_soon()
    await provider.close()


@pytest.mark.parametrize(
    "trailer",
    [
        (Hang(),),
        (http_chunk(b": still here\n\n"), Wait(0.1)) * 20,
        (http_chunk(b'data: {"usage": {"prom'), Cut()),
        (http_chunk(b'data: {"usage": {"prom'), END),
        (http_chunk(b"data: {broken\n\n"), END),
        (http_chunk(b'data: "[DONE]"\n\n'), END),
        (Wait(0.05), b"no chunk\r\n"),
    ],
)
async def test_a_trailer_that_is_none_spoils_no_answer(trailer: tuple[Any, ...]) -> None:
    """It is waited for shorter than the next token would be, however much it is said to be coming."""
    provider = OpenAIProvider({})
    with Upstream(chunked([event(HI), event(STOP)], end=False).then(*trailer)) as up:
        request = ask(up, endpoint={"timeouts": Timeouts(inter_token_s=0.4)})
        async with asyncio.timeout(1.5):
            answer = await collect(provider, request)
    assert answer.error is None
    assert (answer.text(), answer.finishes()) == ("hi", {0: ("stop", "stop")})
    await provider.close()


async def test_an_error_after_the_finish_reason_is_still_one(provider: OpenAIProvider) -> None:
    with Upstream(chunked([event(HI), event(STOP), event({"error": {"message": "over"}})])) as up:
        answer = await collect(provider, ask(up))
    assert answer.error is not None and answer.error.message == "over"


@pytest.mark.parametrize("body", [b"", DONE, event(chunk({"role": "assistant", "content": ""})) + DONE])
async def test_a_stream_with_nothing_in_it_is_transient(provider: OpenAIProvider, body: bytes) -> None:
    """G34."""
    with Upstream(chunked([body] if body else [])) as up:
        answer = await collect(provider, ask(up))
    assert answer.error is not None
    assert (answer.error.failure, answer.error.code) == (F.TRANSIENT, "empty")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (response(200, "<html><h1>Sign in</h1></html>", content_type="text/html"), "malformed"),
        (response(200, ""), "empty"),
        (response(204, "", content_type=None), "empty"),
        (response(200, "{broken"), "malformed"),
        (response(200, "plain words", content_type="text/plain"), "malformed"),
        (chat_stream(["A"]), "malformed"),
        (json_response([1, 2]), "malformed"),
        (json_response({"id": "x", "choices": []}), "empty"),
        (
            raw(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\nContent-Type: application/json\r\n\r\n{", Cut()),
            "cut",
        ),
        (raw(b"SSH-2.0-OpenSSH_9.6\r\n", Cut()), "malformed"),
    ],
)
async def test_a_whole_answer_that_is_none_is_transient(
    provider: OpenAIProvider, script: Any, code: str
) -> None:
    """G148: HTML, empty, broken, cut."""
    with Upstream(script) as up:
        answer = await collect(provider, ask(up, stream=False))
    assert answer.error is not None
    assert (answer.error.failure, answer.error.code) == (F.TRANSIENT, code)
    assert "<" not in answer.error.message


async def test_a_page_instead_of_a_stream_is_transient(provider: OpenAIProvider) -> None:
    """G148."""
    with Upstream(response(200, "<html>login</html>", content_type="text/html; charset=utf-8")) as up:
        answer = await collect(provider, ask(up))
    assert answer.error is not None
    assert (answer.error.failure, answer.error.code) == (F.TRANSIENT, "malformed")


@pytest.mark.parametrize("nothing", [b"data:\n\n", b"data: \n\n", b"data\n\n", b"event: ping\ndata:\n\n"])
async def test_an_event_with_nothing_in_it_says_nothing(provider: OpenAIProvider, nothing: bytes) -> None:
    with Upstream(chunked([nothing, event(HI), nothing, event(HI), event(STOP), DONE])) as up:
        answer = await collect(provider, ask(up))
    assert (answer.text(), answer.error) == ("hihi", None)


@pytest.mark.parametrize(
    "data", [b"data: {broken\n\n", b"data: {broken\ndata: more\n\n", b"event: error\ndata:\n\n"]
)
async def test_an_event_that_is_no_json_is_transient(provider: OpenAIProvider, data: bytes) -> None:
    with Upstream(chunked([event(HI), data, DONE])) as up:
        answer = await collect(provider, ask(up))
    assert answer.error is not None
    assert (answer.text(), answer.error.code, answer.error.failure) == ("hi", "malformed", F.TRANSIENT)


@pytest.mark.parametrize(
    "data",
    [
        event({"error": {"message": "over", "code": 503}}),
        b'event: error\ndata: {"message": "over", "code": 503}\n\n',
        b'error: {"code": 503, "message": "over"}\n\n',
        b'{"error": {"message": "over", "code": 503}}\n\n',
        b'{"error": {"message": "over", "code": 503}}',
    ],
)
async def test_an_error_in_a_stream_is_raised_however_it_is_framed(
    provider: OpenAIProvider, data: bytes
) -> None:
    """G38, G39: also before any text."""
    for pieces in ([data], [event(HI), data]):
        with Upstream(chunked(pieces)) as up:
            answer = await collect(provider, ask(up))
        assert answer.error is not None
        assert (answer.error.message, answer.error.status, answer.error.failure) == ("over", 503, F.TRANSIENT)


async def test_an_error_as_json_to_a_streaming_request_is_raised(provider: OpenAIProvider) -> None:
    with Upstream(json_response({"error": {"message": "slow down", "code": 429}})) as up:
        answer = await collect(provider, ask(up))
    assert answer.error is not None
    assert answer.error.failure is F.CAPACITY


async def test_nesting_beyond_reason_is_malformed(provider: OpenAIProvider) -> None:
    with Upstream(chunked([b"data: " + b"[" * 100_000 + b"\n\n"])) as up:
        answer = await collect(provider, ask(up))
    assert answer.error is not None
    assert answer.error.code == "malformed"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(provider: OpenAIProvider, status: int) -> None:
    with Upstream() as elsewhere, Upstream() as up:
        up.default = response(status, "", {"Location": f"{elsewhere.base_url}/chat/completions"})
        answer = await collect(provider, ask(up, endpoint={"key_variable": "UP_KEY"}))
        assert elsewhere.requests == []
    assert answer.error is not None
    assert (answer.error.failure, answer.error.status) == (F.DOMAIN, status)
