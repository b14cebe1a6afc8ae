"""The main journey: the stock client, the shipped routes.yaml, real text from our own engine."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from ionrouter.settings import shipped_routes
from tests.support.server import Server, running_server

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("local-model")]

MODEL = "huggingfacetb/smollm2-135m-instruct"
PROMPTS = [f"Write a sentence about the number {n}." for n in range(8)]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("local"), shipped_routes()) as running:
        yield running


@pytest.fixture
async def client(local: Server) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=local.base_url, api_key="unused", max_retries=0, timeout=300) as stock:
        yield stock


async def _whole(client: AsyncOpenAI, prompt: str, num_tokens: int = 24) -> str:
    answer = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": prompt}], temperature=0, max_tokens=num_tokens
    )
    return answer.choices[0].message.content or ""


async def _streamed(client: AsyncOpenAI, prompt: str, num_tokens: int = 24) -> tuple[str, list[float]]:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt}],
        temperature=0,
        max_tokens=num_tokens,
        stream=True,
    )
    pieces, times = [], []
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            pieces.append(chunk.choices[0].delta.content)
            times.append(time.monotonic())
    return "".join(pieces), times


async def test_real_text_whole_and_streamed_alike(client: AsyncOpenAI) -> None:
    whole = await _whole(client, "Name three colors.")
    streamed, _ = await _streamed(client, "Name three colors.")
    assert whole == streamed
    assert re.search(r"\b(red|blue|green)\b", whole, re.IGNORECASE)


async def test_32_streams_at_once_are_interleaved_and_each_as_if_alone(client: AsyncOpenAI) -> None:
    alone = {prompt: (await _streamed(client, prompt))[0] for prompt in PROMPTS}
    together = await asyncio.gather(*(_streamed(client, PROMPTS[i % 8]) for i in range(32)))
    assert [text for text, _ in together] == [alone[PROMPTS[i % 8]] for i in range(32)]
    assert len(set(alone.values())) > 1
    assert _most_at_once([(times[0], times[-1]) for _, times in together]) >= 8


def _most_at_once(spans: list[tuple[float, float]]) -> int:
    """How many streams were under way at the same moment, at the fullest."""
    return max(sum(start <= moment < end for start, end in spans) for moment, _ in spans)


def _engine(local: Server, gauge: str) -> float:
    _, metrics = local.get("/metrics")
    (value,) = re.findall(rf"^ionrouter_engine_{gauge}{{.*}} (\S+)$", metrics, re.MULTILINE)
    return float(value)


async def test_leaving_frees_every_block_within_a_second(local: Server, client: AsyncOpenAI) -> None:
    streams = [
        await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"Count from {n} to a thousand."}],
            max_tokens=4000,
            stream=True,
            extra_body={"ignore_eos": True},  # or a short answer might be over before it is left
        )
        for n in range(4)
    ]
    for stream in streams:
        await anext(stream)
    assert _engine(local, "running") == 4
    for stream in streams:
        await stream.close()
    left_at = time.monotonic()
    while _engine(local, "running") or _engine(local, "waiting"):
        assert time.monotonic() - left_at < 1.0, "the engine went on after its clients left"
        await asyncio.sleep(0.02)
    assert _engine(local, "blocks_free") == _engine(local, "blocks_total")


async def test_a_prompt_longer_than_the_context_is_a_400_with_both_lengths(local: Server) -> None:
    status, body = local.chat(model=MODEL, messages=[{"role": "user", "content": "word " * 9000}])
    assert status == 400
    numbers = [int(n) for n in re.findall(r"\d{4,}", body["error"]["message"])]
    assert 8192 in numbers
    assert max(numbers) > 8192


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_surface_names_the_stop_sequence_that_ended_it(local: Server, stream: bool) -> None:
    body = {
        "model": MODEL,
        "max_tokens": 60,
        "temperature": 0,
        "messages": [{"role": "user", "content": "Count from one to ten, in digits."}],
        "stop_sequences": ["never said", "5", "7"],
        "stream": stream,
    }
    status, answer = local.post("/api/v1/messages", body)
    assert status == 200
    if stream:
        events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: ")]
        (answer,) = [event["delta"] for event in events if event["type"] == "message_delta"]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "5")


async def test_latency_is_published_after_a_few_requests(local: Server, client: AsyncOpenAI) -> None:
    for prompt in PROMPTS[:5]:
        await _streamed(client, prompt, 4)
    status, body = local.get(f"/api/v1/models/{MODEL}/endpoints")
    (endpoint,) = body["data"]["endpoints"]
    assert status == 200
    assert endpoint["latency_last_30m"]["p50"] <= endpoint["latency_last_30m"]["p99"]
    assert endpoint["throughput_last_30m"]["p50"] >= endpoint["throughput_last_30m"]["p99"] > 0
    assert endpoint["uptime_last_5m"] == 100
    assert local.get("/health")[1]["local"][0]["ready"] is True


def test_the_shipped_routes_need_no_key(local: Server) -> None:
    assert isinstance(shipped_routes(), Path)
    _, body = local.get("/api/v1/models")
    assert [model["id"] for model in body["data"]] == [MODEL]
    _, endpoints = local.get("/api/v1/models/z-ai/glm-5.3-flash/endpoints")
    assert {e["disabled"] for e in endpoints["data"]["endpoints"]} == {
        "TOGETHER_API_KEY is unset",
        "FIREWORKS_API_KEY is unset",
    }
