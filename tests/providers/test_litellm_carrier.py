"""The carrier sends what litellm would have sent, and what comes back comes out the same."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ionrouter.errors import UpstreamError
from ionrouter.providers.litellm import LiteLLMProvider
from ionrouter.providers.litellm_carrier import Carrier
from ionrouter.providers.openai_http import OpenAIProvider
from ionrouter.schema.events import Complete
from tests.support.endpoints import HELLO, Answer, collect
from tests.support.hosted import KEY, hosted
from tests.support.upstream import (
    Received,
    Script,
    Upstream,
    chat_stream,
    chunk,
    error,
    json_response,
    sse,
    usage,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")
CARRIED = ["together_ai", "fireworks_ai", "groq", "deepseek", "mistral"]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CALL = {"id": "k7", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TURNS = [
    {"role": "system", "content": "short"},
    {"role": "user", "content": "warm?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "k7", "content": "21"},
]
BODIES: dict[str, dict[str, Any]] = {
    "plain": HELLO,
    "turns": {"messages": TURNS, "tools": TOOLS},
    "image": {"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE]}]},
    "sampling": {**HELLO, "temperature": 0.5, "top_p": 0.9, "stop": ["x"], "max_tokens": 5, "seed": 7,
                 "n": 2, "logprobs": True, "top_logprobs": 2, "user": "u"},
    "greedy": {**HELLO, "temperature": 0, "max_completion_tokens": 9, "top_k": 5, "min_p": 0.1},
    "tools": {**HELLO, "tools": TOOLS, "tool_choice": "auto"},
    "required": {**HELLO, "tools": TOOLS, "tool_choice": "required"},
    "json": {**HELLO, "response_format": {"type": "json_object"}},
    "schema": {**HELLO, "response_format": SCHEMA},
    "unknown": {**HELLO, "no_such_field": 1},
}  # fmt: skip
# What only litellm can send: it translates values or imitates streams.
TRANSLATED = {
    ("fireworks_ai", "required"), ("deepseek", "image"), ("groq", "schema"), ("groq", "json stream"),
    ("mistral", "turns"), ("mistral", "required"), ("mistral", "sampling"),
}  # fmt: skip
_OURS = {"host", "accept-encoding", "connection", "content-length"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def carrying(litellm: LiteLLMProvider) -> AsyncIterator[LiteLLMProvider]:
    """A second front on the same worker, which carries."""
    env = {**os.environ, "UP_KEY": KEY}
    relay = OpenAIProvider(env)
    client = LiteLLMProvider(env, relay=relay)
    client.worker = litellm.worker
    client.carrier = Carrier(litellm.worker, None)
    yield client
    await client.carrier.close()
    await relay.close()


def _wire(seen: Received) -> Any:
    headers = {name: value for name, value in seen.headers.items() if name not in _OURS}
    return seen.path, headers, seen.json()


def _told(answer: Answer) -> Any:
    fault = answer.error
    whole = [(e.choices, e.usage) for e in answer.events if isinstance(e, Complete)]
    what = None if fault is None else (fault.failure, fault.status, fault.message)
    return what, whole, answer.text(), answer.finishes(), answer.usages()


def _answer(request: Received) -> Script:
    if request.json().get("stream"):
        return chat_stream(["A", "B"])
    message = {"role": "assistant", "content": "AB"}
    return json_response(  # litellm fails on Groq's answers without a service_tier
        {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "service_tier": "auto",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": usage(5, 2),
        }
    )


@pytest.mark.parametrize("name", CARRIED)
async def test_what_goes_on_the_wire_is_what_litellm_would_have_sent(
    litellm: LiteLLMProvider, carrying: LiteLLMProvider, name: str
) -> None:
    carried: set[str] = set()
    with Upstream(_answer) as up:
        for case, body in BODIES.items():
            for stream in (False, True):
                request = hosted(up, name, body, stream=stream, options={"route": "r"})
                label = f"{case} stream" if stream else case
                await collect(carrying, request)  # unknown: the worker's way, and a proof beside it
                await carrying.carrier.settled()
                first = len(up.requests)
                old, new = await collect(litellm, request), await collect(carrying, request)
                sent = up.requests[first:]
                assert _told(old) == _told(new), label
                assert [_wire(r) for r in sent[:1]] == [_wire(r) for r in sent[1:]], label
                if not sent:
                    assert old.error is not None  # litellm itself refused
                elif sent[1].headers["accept-encoding"] == "identity":
                    assert new.error is None
                    carried.add(label)
    expected = {c for case in BODIES for c in (case, f"{case} stream")}
    left = {c for c in expected if (name, c) in TRANSLATED or (name, c.split()[0]) in TRANSLATED}
    assert expected - carried == left, sorted(expected - carried)


FAULTS: dict[str, Script] = {
    "400": error(400, {"error": {"message": "bad temperature", "type": "invalid_request_error"}}),
    "401": error(401),
    "404": error(404, {"error": {"message": "no such model", "code": "model_not_found"}}),
    "429": error(429, headers={"Retry-After": "7"}),
    "500": error(500),
    "503": error(503),
    "error in 200": sse([{"error": {"message": "overloaded", "code": 503}}]),
    "mid-stream": sse([chunk({"content": "hi"}), {"error": {"message": "overloaded", "code": 503}}]),
}


async def _fault(client: LiteLLMProvider, up: Upstream, name: str) -> Any:
    texts, fault = [], None
    try:
        async for event in client.stream(hosted(up, name)):
            texts.append(event)
    except UpstreamError as caught:
        fault = caught
    assert fault is not None
    return len(texts), fault.failure, fault.status, fault.message, fault.error_type, fault.retry_after_s


@pytest.mark.parametrize("name", CARRIED)
async def test_errors_come_out_the_same(
    litellm: LiteLLMProvider, carrying: LiteLLMProvider, name: str
) -> None:
    with Upstream(_answer) as up:
        await collect(carrying, hosted(up, name))
        await carrying.carrier.settled()
        for label, script in FAULTS.items():
            up.enqueue(script, script)
            assert await _fault(litellm, up, name) == await _fault(carrying, up, name), label
            assert up.requests[-1].headers["accept-encoding"] == "identity", label


async def test_other_shapes_keep_to_the_worker(litellm: LiteLLMProvider, carrying: LiteLLMProvider) -> None:
    for name in ("anthropic", "gemini"):
        with Upstream(error(500)) as up:
            for client in (carrying, litellm, carrying):
                with pytest.raises(UpstreamError):
                    await _first(client, up, name)
                await carrying.carrier.settled()
            wires = [_wire(r) for r in up.requests]
            assert wires[0] == wires[1] == wires[2]
            assert all(r.headers.get("accept-encoding") != "identity" for r in up.requests)


async def _first(client: LiteLLMProvider, up: Upstream, name: str) -> None:
    async for _ in client.stream(hosted(up, name, stream=False)):
        return


async def test_a_table_lives_on_disk_without_key_and_prompt_and_a_broken_one_is_made_again(
    litellm: LiteLLMProvider, carrying: LiteLLMProvider, tmp_path: Path
) -> None:
    body = {"messages": [{"role": "user", "content": "a secret prompt"}]}
    was = carrying.carrier
    try:
        with Upstream(_answer) as up:
            carrying.carrier = Carrier(litellm.worker, tmp_path)
            await collect(carrying, hosted(up, "together_ai", body))
            await carrying.carrier.settled()
            (path,) = await asyncio.to_thread(lambda: list(tmp_path.iterdir()))
            kept = path.read_text()
            assert KEY not in kept and "secret prompt" not in kept
            encodings = []
            for content in (kept, "{", kept.replace('"format":1', '"format":0'), kept):
                path.write_text(content)
                carrying.carrier = Carrier(litellm.worker, tmp_path)
                await collect(carrying, hosted(up, "together_ai", body))
                await carrying.carrier.settled()
                assert path.read_text() == kept
                encodings.append(up.requests[-1].headers["accept-encoding"] == "identity")
            assert encodings == [True, False, False, True]
    finally:
        carrying.carrier = was


async def test_an_option_forces_litellm(carrying: LiteLLMProvider) -> None:
    with Upstream(_answer) as up:
        for _ in range(2):
            await collect(carrying, hosted(up, "groq", endpoint={"options": {"carrier": "off"}}))
            await carrying.carrier.settled()
        assert all(r.headers["accept-encoding"] != "identity" for r in up.requests)
