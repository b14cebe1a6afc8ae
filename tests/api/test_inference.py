"""Chat and completions over a real socket: shapes that the strictest clients accept, in both modes."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from ionrouter.schema.events import ChoiceDelta, Chunk, Committed, Event
from ionrouter.schema.request import InferenceRequest
from tests.support.edge import COMMITTED, FINISHED, edge_server, stop, text
from tests.support.sse import chunks, content, data_lines

GENERATION_ID = re.compile(r"gen-\d{10}-[A-Za-z0-9]{20}")


async def test_a_stream_has_every_key_that_strict_clients_require(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        status, headers, body = await server.chat(stream=True)
    assert status == 200
    assert headers["Content-Type"] == "text/event-stream"
    assert headers["Cache-Control"] == "no-cache"
    assert headers["X-Accel-Buffering"] == "no"
    assert GENERATION_ID.fullmatch(headers["X-Generation-Id"])
    assert headers["X-Ionrouter-Route"] == "fake/m; score 0.0002, first pick of 1"
    assert content(body) == "Hello"
    for chunk in chunks(body):
        assert chunk["id"] == headers["X-Generation-Id"]
        assert chunk["object"] == "chat.completion.chunk"
        assert (chunk["provider"], chunk["model"]) == ("Fake", "acme/m")
        assert isinstance(chunk["created"], int)
        assert "system_fingerprint" not in chunk
        for choice in chunk["choices"]:
            assert isinstance(choice["index"], int)
            assert "finish_reason" in choice
            assert choice["delta"].get("role", "assistant") == "assistant"
    assert [c["choices"][0]["finish_reason"] for c in chunks(body)[:-1]] == [None, None, "stop"]
    assert chunks(body)[0]["choices"][0]["delta"]["role"] == "assistant"


async def test_usage_comes_once_in_the_last_chunk_before_done(tmp_path: Path) -> None:
    """G23, our rule: OpenRouter's clients expect usage always, so it is sent unasked, with choices []."""
    async with edge_server(tmp_path) as server:
        _, _, body = await server.chat(stream=True)
    assert data_lines(body)[-1] == "[DONE]"
    assert data_lines(body).count("[DONE]") == 1
    *before, last = chunks(body)
    assert all("usage" not in chunk for chunk in before)
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "total_tokens": 9,
        "cost": pytest.approx(0.000011),
        "is_byok": False,
        "prompt_tokens_details": {
            "cached_tokens": 0, "cache_write_tokens": 0, "audio_tokens": 0, "video_tokens": 0
        },
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0, "image_tokens": 0},
        "cost_details": {
            "upstream_inference_cost": None,
            "upstream_inference_prompt_cost": 0.000007,
            "upstream_inference_completions_cost": 0.000004,
        },
    }  # fmt: skip


async def test_a_whole_answer_has_every_key_that_strict_clients_require(tmp_path: Path) -> None:
    async def answer(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        yield COMMITTED
        yield text("Hello")
        yield Chunk((ChoiceDelta(0, {}, "stop", "eos"),))
        yield FINISHED

    async with edge_server(tmp_path, answer) as server:
        status, headers, body = await server.chat()
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    assert headers["X-Generation-Id"] == body["id"]
    assert body["object"] == "chat.completion"
    assert body["system_fingerprint"] is None
    assert (body["provider"], body["model"]) == ("Fake", "acme/m")
    assert type(body["created"]) is int
    assert body["choices"] == [
        {
            "index": 0,
            "finish_reason": "stop",
            "native_finish_reason": "eos",
            "logprobs": None,
            "message": {"role": "assistant", "content": "Hello", "refusal": None, "reasoning": None},
        }
    ]
    assert body["usage"]["total_tokens"] == 9


@pytest.mark.parametrize("stream", [True, False])
async def test_the_model_and_provider_named_are_those_that_served(tmp_path: Path, stream: bool) -> None:
    """G49."""

    async def answer(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        yield Committed("b/other", "acme/other", "Bee", "fallback after fake/m: 500", 2)
        yield text("ok")
        yield stop()
        yield FINISHED

    async with edge_server(tmp_path, answer) as server:
        _, headers, body = await server.chat(stream=stream)
    answers = chunks(body) if stream else [body]
    assert {(a["model"], a["provider"]) for a in answers} == {("acme/other", "Bee")}
    assert headers["X-Ionrouter-Route"] == "b/other; fallback after fake/m: 500"


@pytest.mark.parametrize("stream", [True, False])
async def test_legacy_completions_speak_text(tmp_path: Path, stream: bool) -> None:
    async def answer(request: InferenceRequest) -> AsyncGenerator[Event, None]:
        assert request.kind == "completions"
        yield COMMITTED
        yield Chunk((ChoiceDelta(0, {"text": "Hel"}),))
        yield Chunk((ChoiceDelta(0, {"text": "lo"}, "length", "length"),))
        yield FINISHED

    async with edge_server(tmp_path, answer) as server:
        _, _, body = await server.post("/v1/completions", {"model": "m", "prompt": "Say", "stream": stream})
    answers = chunks(body) if stream else [body]
    assert {a["object"] for a in answers} == {"text_completion"}
    assert "".join(c["text"] for a in answers for c in a["choices"]) == "Hello"
    assert [c["finish_reason"] for a in answers for c in a["choices"]][-1] == "length"


@pytest.mark.parametrize("stream", [True, False])
async def test_half_surrogates_and_non_finite_numbers_leave_as_strict_json(
    tmp_path: Path, stream: bool
) -> None:
    """G16, G17."""
    logprobs = {
        "content": [{"token": "a", "logprob": float("-inf"), "top_logprobs": [{"logprob": float("nan")}]}]
    }

    async def answer(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        yield COMMITTED
        yield Chunk((ChoiceDelta(0, {"content": "x\ud83d"}, logprobs=logprobs),))
        yield text("y")
        yield stop()
        yield FINISHED

    async with edge_server(tmp_path, answer) as server:
        _, _, body = await server.chat(stream=stream)
    if stream:
        assert data_lines(body)[-1] == "[DONE]"
        assert content(body) == "x\ud83dy"
        sent = chunks(body)[0]["choices"][0]["logprobs"]
    else:
        assert body["choices"][0]["message"]["content"] == "x\ud83dy"
        sent = body["choices"][0]["logprobs"]
    assert sent["content"][0]["logprob"] is None
    assert sent["content"][0]["top_logprobs"][0]["logprob"] is None


@pytest.mark.parametrize("stream", [True, False])
async def test_reasoning_is_hidden_when_the_caller_excludes_it(tmp_path: Path, stream: bool) -> None:
    async def answer(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        yield COMMITTED
        yield Chunk((ChoiceDelta(0, {"reasoning": "hmm", "reasoning_details": [{}]}),))
        yield text("ok")
        yield stop()
        yield FINISHED

    async with edge_server(tmp_path, answer) as server:
        _, _, hidden = await server.chat(stream=stream, reasoning={"exclude": True})
        _, _, shown = await server.chat(stream=stream)
    assert "hmm" not in json.dumps(hidden)
    assert "hmm" in json.dumps(shown)


async def test_what_was_left_out_is_listed(tmp_path: Path) -> None:
    async def answer(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        yield Committed("fake/m", "acme/m", "Fake", "only\r\nendpoint ☃", 1, dropped=("min_p", "top_a"))
        yield text("ok")
        yield stop()
        yield FINISHED

    async with edge_server(tmp_path, answer) as server:
        for stream in (True, False):
            _, headers, _ = await server.chat(stream=stream, plugins=[{"id": "response-healing"}])
            assert headers["X-Ionrouter-Dropped"] == ("min_p, top_a, plugins" if stream else "min_p, top_a")
            assert headers["X-Ionrouter-Route"] == "fake/m; only  endpoint ?"


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_explains_its_route_when_asked(tmp_path: Path, stream: bool) -> None:
    async with edge_server(tmp_path) as server:
        _, _, explained = await server.chat(stream=stream, ionrouter={"explain": True})
        _, _, silent = await server.chat(stream=stream)
    last = chunks(explained)[-1] if stream else explained
    assert last["ionrouter"]["endpoint"] == "fake/m"
    assert last["ionrouter"]["explanation"] == {"model": "m", "prompt_tokens": 1}
    assert '"ionrouter"' not in json.dumps(silent)
