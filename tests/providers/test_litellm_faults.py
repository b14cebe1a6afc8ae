"""Hosted providers that refuse, break or lie, through the real litellm; and clients that leave."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import aclosing
from typing import Any

import pytest

from ionrouter.errors import FailureClass
from ionrouter.providers.litellm import LiteLLMProvider
from ionrouter.schema.events import Choice
from ionrouter.schema.request import Kind
from tests.support.endpoints import HELLO, collect, make_endpoint, make_request
from tests.support.hosted import KEY, PROVIDERS, SHAPES, hosted
from tests.support.litellm_matrix import asking
from tests.support.translated_wire import events
from tests.support.upstream import (
    Cut,
    Hang,
    Upstream,
    Wait,
    chat_json,
    chat_stream,
    chunk,
    chunked,
    error,
    event,
    json_response,
    raw,
    refused_url,
    response,
    sse,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")
F = FailureClass
HI, STOP = chunk({"content": "hi"}), chunk({}, "stop")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize(
    ("status", "failure"),
    [(400, F.REQUEST), (401, F.DOMAIN), (402, F.DOMAIN), (403, F.DOMAIN), (404, F.DOMAIN), (422, F.REQUEST),
     (429, F.CAPACITY), (500, F.TRANSIENT), (502, F.TRANSIENT), (503, F.TRANSIENT), (529, F.TRANSIENT)],
)  # fmt: skip
async def test_a_refusal_has_its_class_status_and_words(
    litellm: LiteLLMProvider, name: str, status: int, failure: FailureClass, stream: bool
) -> None:
    with Upstream(SHAPES[name][2](status, f"words {status} {KEY}")) as up:
        answer = await collect(litellm, hosted(up, name, stream=stream))
        assert len(up.requests) == 1  # one retry layer, and it is not here
    assert answer.error is not None
    assert (answer.error.failure, answer.error.status) == (failure, status)
    assert answer.error.message == f"words {status} [redacted]"


@pytest.mark.parametrize("status", [408, 429, 500])
@pytest.mark.parametrize(
    ("kind", "names"),
    [("embeddings", ("openai", "together_ai", "azure", "cohere", "voyage", "jina_ai", "gemini")),
     ("rerank", ("together_ai", "cohere", "voyage", "jina_ai")),
     ("completions", ("openai", "together_ai"))],
)  # fmt: skip
async def test_what_is_no_chat_is_asked_once_too(
    litellm: LiteLLMProvider, kind: Kind, names: tuple[str, ...], status: int
) -> None:
    """Client libraries would ask again by themselves, wait as Retry-After says, and pay for each."""
    bodies: dict[Kind, Any] = {"embeddings": {"input": "x"}, "rerank": {"query": "q", "documents": ["d"]}}
    for name in names:
        with Upstream(error(status)) as up:
            asked = hosted(up, name, bodies.get(kind, {"prompt": "x"}), kind=kind, stream=False)
            answer = await collect(litellm, asked)
            assert len(up.requests) == 1, name
        assert answer.error is not None
        assert answer.error.status in (status, 504), name


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", [*PROVIDERS, "openai"])
async def test_retry_after_survives(litellm: LiteLLMProvider, name: str, stream: bool) -> None:
    """G58."""
    with Upstream(error(429, headers={"Retry-After": "7"})) as up:
        answer = await collect(litellm, hosted(up, name, stream=stream))
    assert answer.error is not None
    assert (answer.error.failure, answer.error.status, answer.error.retry_after_s) == (F.CAPACITY, 429, 7.0)


@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_prompt_too_long_is_recognised(litellm: LiteLLMProvider, name: str) -> None:
    message = "The input (9000 tokens) is longer than the model's context length (8192 tokens)."
    with Upstream(SHAPES[name][2](400, message)) as up:
        answer = await collect(litellm, hosted(up, name))
    assert answer.error is not None
    assert (answer.error.failure, answer.error.error_type) == (F.ENDPOINT_REQUEST, "context_length_exceeded")
    assert answer.error.message == message


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize(
    ("script", "failure", "status"),
    [
        (
            error(502, "<html><h1>502 Bad Gateway</h1></html>", {"Content-Type": "text/html"}),
            F.TRANSIENT,
            502,
        ),
        (response(200, "<html>login</html>", content_type="text/html"), F.TRANSIENT, 502),
        (json_response({"error": {"code": 429, "message": "provider failed"}}), F.CAPACITY, 429),
        (json_response({"id": "x", "choices": []}), F.TRANSIENT, None),
        (raw(Cut()), F.TRANSIENT, None),
    ],
)
async def test_a_whole_answer_that_is_none_is_a_failure(
    litellm: LiteLLMProvider, name: str, script: Any, failure: FailureClass, status: int | None
) -> None:
    """G27, G148."""
    with Upstream(script) as up:
        answer = await collect(litellm, hosted(up, name, stream=False))
    assert answer.error is not None
    assert (answer.error.failure, answer.error.status) == (failure, status)
    assert "<" not in answer.error.message


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize(
    ("script", "text", "code"),
    [
        (sse([HI, Wait(0.1), b'data: {"id":"c","choi', Cut()], done=False, end=False), "hi", "cut"),
        (sse([HI], done=False), "hi", "cut"),
        (sse([]), "", "empty"),
        (chunked([]), "", "empty"),
        (sse([chunk({"role": "assistant", "content": ""})]), "", "empty"),
        (sse([HI, {"error": {"message": "over", "code": 503}}]), "hi", "503"),
        (sse([{"error": {"message": "over", "code": 503}}]), "", "503"),
    ],
)
async def test_a_broken_stream_is_a_failure_and_not_a_stop(
    litellm: LiteLLMProvider, name: str, script: Any, text: str, code: str
) -> None:
    """G11, G25, G34, G38: litellm alone would make a stop of most of these."""
    with Upstream(script) as up:
        answer = await collect(litellm, hosted(up, name))
    assert answer.text() == text
    assert answer.finishes() == {}
    assert answer.error is not None
    assert (answer.error.failure, answer.error.code) == (F.TRANSIENT, code)


async def test_a_refused_connection_says_that_nothing_was_sent(litellm: LiteLLMProvider) -> None:
    url, held = refused_url()
    with held:
        endpoint = make_endpoint(url, type="litellm", litellm_provider="together_ai", key_variable="UP_KEY")
        answer = await collect(litellm, make_request(endpoint))
    assert answer.error is not None
    assert (answer.error.failure, answer.error.code) == (F.TRANSIENT, "connect_error")
    assert "127.0.0.1" not in answer.error.message


@pytest.mark.parametrize("name", [*PROVIDERS, "openai"])
@pytest.mark.parametrize("words", ["", "maximum context length is 5 tokens", "content_policy_violation"])
async def test_a_redirect_is_not_followed(litellm: LiteLLMProvider, name: str, words: str) -> None:
    with Upstream() as elsewhere, Upstream() as up:
        body = json.dumps({"error": {"message": words, "code": "rate_limit_exceeded"}}) if words else ""
        up.default = response(307, body, {"Location": f"{elsewhere.base_url}/chat/completions"})
        answer = await collect(litellm, hosted(up, name, stream=False))
        assert elsewhere.requests == []
    assert answer.error is not None
    assert (answer.error.failure, answer.error.status) == (F.DOMAIN, 307)


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [({"key_variable": "NOT_SET"}, "NOT_SET is unset"), ({"headers": {"X": "a\nb"}}, "header X"),
     ({"base_url": "http://8.8.8.8/v1"}, "public address"),
     ({"litellm_provider": "no_such_provider"}, "does not know this provider")],
)  # fmt: skip
async def test_an_endpoint_that_cannot_be_used_is_refused(
    litellm: LiteLLMProvider, endpoint: dict[str, Any], words: str
) -> None:
    with Upstream(chat_json("x")) as up:
        base_url = endpoint.pop("base_url", up.base_url)
        made = {"type": "litellm", "litellm_provider": "together_ai", "key_variable": "UP_KEY", **endpoint}
        answer = await collect(litellm, make_request(make_endpoint(base_url, **made), stream=False))
        assert up.requests == []
    assert answer.error is not None
    assert answer.error.failure is F.DOMAIN
    assert words in answer.error.message


@pytest.mark.parametrize("name", [*PROVIDERS, "openai"])
async def test_leaving_in_the_middle_closes_the_upstream(litellm: LiteLLMProvider, name: str) -> None:
    """G97."""
    with Upstream(chunked([event(HI), Hang()])) as up:
        async with aclosing(litellm.stream(hosted(up, name))) as events:
            await anext(events)
        assert await up.requests[0].closed_soon()


@pytest.mark.parametrize("script", [raw(Hang()), chunked([Hang()])])
async def test_cancelling_before_the_first_event_closes_the_upstream(
    litellm: LiteLLMProvider, script: Any
) -> None:
    """G96."""
    with Upstream(script) as up:
        task = asyncio.create_task(collect(litellm, hosted(up, "together_ai")))
        await up.requests_soon()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await up.requests[0].closed_soon()


async def test_an_unread_stream_stops_the_upstream(litellm: LiteLLMProvider) -> None:
    """G101."""
    piece = event(chunk({"content": "x" * 60_000})) * 16  # about 1 MB
    with Upstream(chunked([piece] * 200)) as up:
        async with aclosing(litellm.stream(hosted(up, "together_ai"))) as events:
            await anext(events)
            sent = -1
            while sent != up.requests[0].sent_bytes:
                sent = up.requests[0].sent_bytes
                await asyncio.sleep(0.5)
            assert sent < 60 * 1024 * 1024
        assert await up.requests[0].closed_soon()


async def test_a_killed_worker_fails_the_call_and_the_next_one_works(litellm: LiteLLMProvider) -> None:
    with Upstream(chunked([event(HI), Hang()])) as up:
        async with aclosing(litellm.stream(hosted(up, "together_ai"))) as events:
            await anext(events)
            assert litellm.worker.pid is not None
            os.kill(litellm.worker.pid, signal.SIGKILL)
            with pytest.raises(Exception, match="worker ended"):
                await anext(events)
        assert await up.requests[0].closed_soon()
        up.default = chat_stream(["again"])
        await litellm.wait_ready(120)
        assert (await collect(litellm, hosted(up, "together_ai"))).text() == "again"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", [*PROVIDERS, "openai"])
async def test_no_compression_is_asked_for(litellm: LiteLLMProvider, name: str, stream: bool) -> None:
    """It holds events back, and some clients stop after a body's first member."""
    with Upstream(chat_stream(["hi"]) if stream else chat_json("hi")) as up:
        answer = await collect(litellm, hosted(up, name, stream=stream))
        assert answer.error is None
        assert up.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("end", ["silence", "cut", "a broken event"])
@pytest.mark.parametrize("name", [*PROVIDERS, "openai", "anthropic"])
async def test_an_answer_that_is_whole_does_not_wait_for_its_trailer(
    litellm: LiteLLMProvider, name: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the direct way: what may follow the last finish reason is waited for briefly."""
    monkeypatch.setattr(litellm, "_trailer_s", 0.2, raising=False)
    after = {"silence": Hang(), "cut": Cut(), "a broken event": b"data: {\n\n"}[end]
    if name == "anthropic":
        *said, _ = events("anthropic", [("text", "hi")], "stop")  # without message_stop
    else:
        said = [event(HI), event(STOP)]
    with Upstream(chunked([*said, after, Hang()], end=False)) as up:
        async with asyncio.timeout(20):
            answer = await collect(litellm, hosted(up, name, stream=True))
        assert await up.requests[0].closed_soon()
    assert answer.error is None
    assert (answer.text(), answer.finishes()[0][0]) == ("hi", "stop")


AS_JSON = {"response_format": {"type": "json_object"}}


@pytest.mark.parametrize(("stream", "more"), [(False, {}), (True, AS_JSON)], ids=["whole", "stream of JSON"])
async def test_an_answer_that_litellm_cannot_finish_is_handed_on(
    litellm: LiteLLMProvider, stream: bool, more: dict[str, Any]
) -> None:
    """Groq's answers need no `service_tier`; its JSON comes whole, and litellm makes the stream of it."""
    with Upstream(chat_json("{}")) as up:
        answer = await collect(litellm, hosted(up, "groq", {**HELLO, **more}, stream=stream))
        assert len(up.requests) == 1
    assert answer.error is None and len(answer.usages()) == 1
    if stream:
        assert (answer.text(), answer.finishes()) == ("{}", {0: ("stop", "stop")})
    else:
        (choice,) = answer.events[0].choices
        assert isinstance(choice, Choice) and choice.message["content"] == "{}"


@pytest.mark.parametrize("name", ["together_ai", "groq", "anthropic", "gemini", "cohere"])
async def test_what_came_of_a_whole_answer_before_a_cut_is_known(litellm: LiteLLMProvider, name: str) -> None:
    text = json.dumps("x" * 40)
    said = {
        "anthropic": f'{{"type": "message", "content": [{{"type": "text", "text": {text}',
        "gemini": f'{{"candidates": [{{"content": {{"parts": [{{"text": {text}',
        "cohere": f'{{"message": {{"content": [{{"type": "text", "text": {text}',
    }.get(name, f'{{"choices": [{{"message": {{"content": {text}')
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n"
    with Upstream(raw((head + said).encode(), Cut())) as up:
        request = asking(up, name, stream=False)
        answer = await collect(litellm, request)
    assert answer.error is not None
    assert (request.told.num_characters, request.told.usage) == (40, None)
