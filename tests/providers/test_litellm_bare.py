"""The bare translation's client on the wire: what it keeps, closes, refuses, and what it never follows."""

from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import aclosing

import pytest

from ionrouter.errors import FailureClass
from ionrouter.providers.litellm import LiteLLMProvider
from ionrouter.providers.litellm_recipe import BARE
from tests.support.certificate import self_signed
from tests.support.endpoints import collect
from tests.support.litellm_matrix import TRANSLATED, asking, plain_answer
from tests.support.litellm_ways import both, learnt, told, way
from tests.support.translated_wire import events, whole
from tests.support.upstream import Cut, Hang, Upstream, chunked, raw, response

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.parametrize("name", TRANSLATED)]
TEXT = [("text", "hel", "lo")]


async def _bare(carrying: LiteLLMProvider, up: Upstream, name: str) -> None:
    for stream in (False, True):
        request = asking(up, name, stream=stream)
        await learnt(carrying, request)
        assert way(carrying, request) == BARE


async def test_a_stream_that_nobody_reads_any_longer_is_closed_upstream(
    carrying: LiteLLMProvider, name: str
) -> None:
    with Upstream(plain_answer) as up:
        await _bare(carrying, up, name)
        up.enqueue(chunked([*events(name, TEXT, None), Hang()]))
        async with aclosing(carrying.stream(asking(up, name))) as answer:
            async for event in answer:
                if event.commits:
                    break
        assert await up.requests[-1].closed_soon()


async def test_a_whole_answer_that_nobody_waits_for_is_closed_upstream(
    carrying: LiteLLMProvider, name: str
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    with Upstream(plain_answer) as up:
        await _bare(carrying, up, name)
        for script in (raw(Hang()), raw(head, Hang())):
            up.enqueue(script)
            num = len(up.requests)
            task = asyncio.create_task(collect(carrying, asking(up, name, stream=False)))
            await up.requests_soon(num + 1)
            task.cancel()
            assert await up.requests[-1].closed_soon()


async def test_what_came_at_once_is_handed_on_at_once(carrying: LiteLLMProvider, name: str) -> None:
    with Upstream(plain_answer) as up:
        await _bare(carrying, up, name)
        said = events(name, [("text", *("word " for _ in range(30)))], "stop")
        up.enqueue(chunked([b"".join(event for event in said if isinstance(event, bytes))]))
        batches = [batch async for batch in carrying.batches(asking(up, name))]
        assert sum(len(batch) for batch in batches) > 30 > 4 >= len(batches)


async def test_connections_are_kept(carrying: LiteLLMProvider, name: str) -> None:
    with Upstream(plain_answer) as up:
        await _bare(carrying, up, name)
        first = len(up.requests)
        for stream in (False, True) * 3:
            assert (await collect(carrying, asking(up, name, stream=stream))).error is None
        assert len({r.connection for r in up.requests[first:]}) == 1


async def test_an_answer_compressed_all_the_same_is_read(
    litellm: LiteLLMProvider, carrying: LiteLLMProvider, name: str
) -> None:
    with Upstream(plain_answer) as up:
        await _bare(carrying, up, name)
        body = whole(name, TEXT, "stop").steps[0]
        assert isinstance(body, bytes)
        packed = gzip.compress(body.partition(b"\r\n\r\n")[2])
        up.enqueue(*[response(200, packed, {"Content-Encoding": "gzip"})] * 2)
        old, new = await both(litellm, carrying, asking(up, name, stream=False))
        assert told(old) == told(new) and new.error is None
        said = gzip.compress(b"".join(e for e in events(name, TEXT, "stop") if isinstance(e, bytes)))
        up.enqueue(chunked([said[:20], said[20:]], headers={"Content-Encoding": "gzip"}))
        assert (await collect(carrying, asking(up, name))).text() == "hello"


async def test_a_refusal_whose_words_are_cut_goes_by_its_status(carrying: LiteLLMProvider, name: str) -> None:
    head = b"HTTP/1.1 429 Slow down\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    with Upstream(plain_answer) as up:
        await _bare(carrying, up, name)
        for stream in (False, True):
            up.enqueue(raw(head, Cut()))
            raised = (await collect(carrying, asking(up, name, stream=stream))).error
            assert raised is not None
            assert (raised.failure, raised.status) == (FailureClass.CAPACITY, 429)


async def test_words_cut_between_two_reads_are_whole(carrying: LiteLLMProvider, name: str) -> None:
    words = "w\u00f6rld \u2028\U0001f600"
    said = b"".join(e for e in events(name, [("text", words)], "stop") if isinstance(e, bytes))
    with Upstream(plain_answer) as up:
        await _bare(carrying, up, name)
        up.enqueue(chunked([bytes([byte]) for byte in _unescaped(said)]))
        assert (await collect(carrying, asking(up, name))).text() == words


def _unescaped(events: bytes) -> bytes:
    """Write the events' JSON as raw UTF-8, so that a character can be cut."""
    lines = events.decode().splitlines()
    return (
        "\n".join(
            f"data: {json.dumps(json.loads(line[6:]), ensure_ascii=False)}"
            if line.startswith("data: ")
            else line
            for line in lines
        ).encode()
        + b"\n\n"
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_that_is_not_there(
    litellm: LiteLLMProvider, carrying: LiteLLMProvider, name: str, stream: bool
) -> None:
    with Upstream(plain_answer) as up:
        await _bare(carrying, up, name)
    # Same host and kind of call, nobody there any longer.
    old, new = await both(litellm, carrying, asking(up, name, stream=stream))
    assert told(old) == told(new)
    assert new.error is not None and new.error.code == "connect_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_certificate_nobody_trusts_is_refused(
    litellm: LiteLLMProvider, carrying: LiteLLMProvider, name: str, stream: bool
) -> None:
    with Upstream(plain_answer, tls=self_signed()) as up:
        request = asking(up, name, stream=stream)
        await learnt(carrying, request)
        assert way(carrying, request) == BARE
        old, new = await both(litellm, carrying, request)
        assert told(old) == told(new)
        assert new.error is not None and not up.requests


async def test_usage_that_was_told_before_a_cut_is_known(carrying: LiteLLMProvider, name: str) -> None:
    with Upstream(plain_answer) as up:
        await _bare(carrying, up, name)
        up.enqueue(chunked([*events(name, TEXT, None), Cut()], end=False))
        request = asking(up, name)
        answer = await collect(carrying, request)
        (used,) = (await collect(carrying, asking(up, name))).usages()
    assert answer.error is not None and answer.usages() == []
    if name == "anthropic":  # Gemini tells it with the last event
        assert request.told.usage is not None
        assert request.told.usage.prompt_tokens == used.prompt_tokens
