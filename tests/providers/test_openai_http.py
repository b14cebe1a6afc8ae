"""The lean relay against scripted servers: streams and whole answers."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import aclosing
from typing import Any

import pytest

from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.providers.openai_http import OpenAIProvider
from ionrouter.schema.events import Chunk
from ionrouter.schema.usage import Usage
from tests.support.endpoints import ask, collect, make_endpoint
from tests.support.upstream import (
    DONE,
    GUARD_S,
    Hang,
    Reset,
    Upstream,
    Wait,
    WaitFor,
    chat_json,
    chat_stream,
    chunk,
    chunked,
    completion_json,
    completion_stream,
    embeddings_json,
    error,
    event,
    fireworks_stream,
    json_response,
    raw,
    response,
    sse,
    together_stream,
    usage,
)

F = FailureClass
HI, STOP = chunk({"content": "hi"}), chunk({}, "stop")


@pytest.mark.parametrize(
    "script", [chat_stream(["A", "B"]), together_stream(["A", "B"]), fireworks_stream(["A", "B"])]
)
async def test_a_stream_arrives_whole(provider: OpenAIProvider, script: Any) -> None:
    with Upstream(script) as up:
        answer = await collect(provider, ask(up))
    assert answer.error is None
    assert answer.text() == "AB"
    assert answer.finishes()[0][0] == "stop"
    (counted,) = answer.usages()
    assert (counted.prompt_tokens, counted.completion_tokens) == (5, 2)


async def test_every_kind_goes_to_its_own_path(provider: OpenAIProvider) -> None:
    with Upstream() as up:
        up.enqueue(
            chat_json("c"), completion_json("t"), embeddings_json([[1.0]]), completion_stream(["A", "B"])
        )
        chat = await collect(provider, ask(up, stream=False))
        text = await collect(provider, ask(up, stream=False, kind="completions", body={"prompt": "x"}))
        vectors = await collect(provider, ask(up, stream=False, kind="embeddings", body={"input": "x"}))
        stream = await collect(provider, ask(up, kind="completions", body={"prompt": "x"}))
        assert [r.path.removeprefix("/v1") for r in up.requests] == [
            "/chat/completions", "/completions", "/embeddings", "/completions",
        ]  # fmt: skip
    assert chat.complete.choices[0].message["content"] == "c"
    assert text.complete.choices[0].message == {"text": "t"}
    assert vectors.complete.data[0]["embedding"] == [1.0]
    assert stream.text(key="text") == "AB"


async def test_the_first_event_is_relayed_before_the_second_exists(provider: OpenAIProvider) -> None:
    gate = threading.Event()
    with Upstream(sse([HI, WaitFor(gate), STOP])) as up:
        async with aclosing(provider.stream(ask(up))) as events:
            first = await anext(events)
            assert isinstance(first, Chunk)
            assert first.choices[0].delta == {"content": "hi"}
            gate.set()
            assert len([e async for e in events]) == 1


@pytest.mark.parametrize("cut", [1, 2, 3, 5])
async def test_a_character_cut_between_writes_arrives_whole(provider: OpenAIProvider, cut: int) -> None:
    """G01."""
    data = event(chunk({"content": "你🌍"}))
    at = data.index("你".encode()) + cut
    pieces = [data[:at], Wait(0.02), data[at:], event(STOP), DONE]
    with Upstream(chunked(pieces)) as up:
        answer = await collect(provider, ask(up))
    assert answer.text() == "你🌍"


async def test_a_sequence_incomplete_at_the_end_is_an_upstream_fault(provider: OpenAIProvider) -> None:
    """G01: half a character, then a clean end."""
    data = event(chunk({"content": "你"}))
    with Upstream(chunked([event(HI), data[: data.index("你".encode()) + 1]])) as up:
        answer = await collect(provider, ask(up))
    assert answer.text() == "hi"
    assert answer.error is not None
    assert (answer.error.failure, answer.error.code) == (F.TRANSIENT, "malformed")


async def test_events_of_one_byte_a_write_arrive(provider: OpenAIProvider) -> None:
    """G09."""
    body = event(HI) + event(STOP) + DONE
    with Upstream(chunked([body[i : i + 1] for i in range(len(body))])) as up:
        assert (await collect(provider, ask(up))).text() == "hi"


async def test_crlf_events_arrive_as_they_are_written(provider: OpenAIProvider) -> None:
    """G03."""
    gate = threading.Event()
    lines = [event(e).replace(b"\n", b"\r\n") for e in (HI, STOP)]
    with Upstream(chunked([lines[0], WaitFor(gate), lines[1], b"data: [DONE]\r\n\r\n"])) as up:
        async with aclosing(provider.stream(ask(up))) as events:
            assert isinstance(await anext(events), Chunk)
            gate.set()
            assert len([e async for e in events]) == 1


@pytest.mark.parametrize("last", [b"data: [DONE]", event(chunk(usage=usage(5, 1))).rstrip(b"\n")])
async def test_the_last_event_needs_no_newline(provider: OpenAIProvider, last: bytes) -> None:
    """G14."""
    before = [event(HI), event(STOP)]
    if b"DONE" in last:
        before.append(event(chunk(usage=usage(5, 1))))
    with Upstream(chunked([*before, last])) as up:
        answer = await collect(provider, ask(up))
    assert answer.error is None
    assert answer.usages() == [Usage(5, 1)]


async def test_an_event_a_line_without_blank_lines_is_understood(provider: OpenAIProvider) -> None:
    body = b"".join(event(e).replace(b"\n\n", b"\n") for e in (HI, STOP)) + b"data: [DONE]\n"
    with Upstream(chunked([body])) as up:
        answer = await collect(provider, ask(up))
    assert answer.text() == "hi"
    assert answer.finishes() == {0: ("stop", "stop")}


async def test_an_upstream_that_ignores_stream_is_understood(provider: OpenAIProvider) -> None:
    with Upstream(chat_json("whole")) as up:
        answer = await collect(provider, ask(up))
    assert (answer.text(), answer.finishes()) == ("whole", {0: ("stop", "stop")})
    assert answer.usages() == [Usage(5, 2)]


async def test_a_stream_without_content_type_is_read(provider: OpenAIProvider) -> None:
    with Upstream(chunked([event(HI), event(STOP), DONE], content_type="text/plain")) as up:
        assert (await collect(provider, ask(up))).text() == "hi"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_lone_surrogate_does_no_harm_either_way(provider: OpenAIProvider, stream: bool) -> None:
    """G16, G143: in the upstream's answer, and in the prompt."""
    with Upstream() as up:
        up.enqueue(sse([chunk({"content": "x\ud83d"}), STOP]) if stream else chat_json("x\ud83d"))
        body = {"messages": [{"role": "user", "content": "a\ud83d"}]}
        answer = await collect(provider, ask(up, body=body, stream=stream))
        assert up.requests[0].json()["messages"][0]["content"] == "a\ud83d"
    text = answer.text() if stream else answer.complete.choices[0].message["content"]
    assert text == "x\ud83d"


async def test_the_list_of_models_is_fetched_with_the_first_key_that_is_set(provider: OpenAIProvider) -> None:
    with Upstream(json_response({"object": "list", "data": [{"id": "a"}]})) as up:
        upstream = make_endpoint(up.base_url, key_variables=("NOT_SET", "UP_KEY")).provider
        assert (await provider.list_models(upstream))["data"] == [{"id": "a"}]
        assert (up.requests[0].method, up.requests[0].path) == ("GET", "/v1/models")
        assert up.requests[0].headers["authorization"] == "Bearer UP-KEY-12345"


async def test_a_list_of_models_publishes_no_key_of_ours(provider: OpenAIProvider) -> None:
    """It is shown to everybody, kept on disk, and its names are labels of metrics."""
    rows = [{"id": "acme/UP-KEY-12345", "description": f"{'x' * 200_000} for UP-KEY-12345"}, {"id": "b"}]
    with Upstream(json_response({"data": rows})) as up:
        upstream = make_endpoint(up.base_url, key_variables=("UP_KEY",)).provider
        listed = (await provider.list_models(upstream))["data"]
    assert "UP-KEY-12345" not in str(listed)
    assert [row["id"] for row in listed] == ["acme/[redacted]", "b"]


@pytest.mark.parametrize("script", [error(401), response(200, "<html>"), raw(Reset())])
async def test_a_list_that_cannot_be_had_is_an_upstream_error(provider: OpenAIProvider, script: Any) -> None:
    with Upstream(script) as up, pytest.raises(UpstreamError):
        await provider.list_models(make_endpoint(up.base_url).provider)


@pytest.mark.parametrize("before", [b"", b": hello\n\n", b"event: message\n", b"\xef\xbb\xbf", b"\n"])
async def test_a_stream_that_its_server_calls_json_is_a_stream(
    provider: OpenAIProvider, before: bytes
) -> None:
    pieces = [before + event(chunk({"content": "A"})), Wait(0.05), event(chunk({}, "stop")), DONE, Hang()]
    with Upstream(chunked(pieces, content_type="application/json")) as up:
        async with asyncio.timeout(GUARD_S):
            answer = await collect(provider, ask(up))
    assert (answer.text(), answer.finishes(), answer.error) == ("A", {0: ("stop", "stop")}, None)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_byte_order_mark_before_json_is_no_part_of_it(provider: OpenAIProvider, stream: bool) -> None:
    told = {"choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]}
    with Upstream(response(200, b"\xef\xbb\xbf" + json.dumps(told).encode())) as up:
        answer = await collect(provider, ask(up, stream=stream))
    assert answer.error is None and "hi" in str(answer.events[0])
    refused = {"error": {"message": "no", "code": "context_length_exceeded"}}
    with Upstream(response(400, b"\xef\xbb\xbf" + json.dumps(refused).encode())) as up:
        raised = (await collect(provider, ask(up, stream=stream))).error
    assert raised is not None and (raised.message, raised.code) == ("no", "context_length_exceeded")
