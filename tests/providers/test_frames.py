"""Frames between the front and litellm's process: what is large is read as it comes, and is the same."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from ionrouter.providers.frames import encode, read_answer, read_frame
from ionrouter.schema import json
from ionrouter.schema.vectors import LARGE, WrittenVector


def vectors(num: int) -> dict[str, Any]:
    chance = random.Random(7)
    rows = [{"index": i, "embedding": [chance.random() for _ in range(256)]} for i in range(num)]
    return {"object": "list", "data": rows, "usage": {"prompt_tokens": 3, "total_tokens": 3}}


def frame(payload: Any) -> dict[str, Any]:
    return {"op": "whole", "payload": payload, "id": 3}


async def sent(data: bytes, num_bytes: int = 10_000) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    for at in range(0, len(data), num_bytes):
        reader.feed_data(data[at : at + num_bytes])
    reader.feed_eof()
    return reader


def plain(value: Any) -> Any:
    if isinstance(value, WrittenVector):
        return json.loads(value.text)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "payload",
    [
        vectors(2),
        vectors(200),
        {"choices": [{"message": {"content": "x" * LARGE}}]},
        {"other": vectors(200)["data"]},
        "x" * LARGE,
    ],
    ids=["small", "large", "a large text", "vectors elsewhere", "no object"],
)
async def test_what_is_read_as_it_comes_is_what_was_sent(payload: Any) -> None:
    data = encode(frame(payload))
    two = await sent(data + encode(frame("next")))
    for expected in (payload, "next"):
        read = await read_answer(two)
        assert read is not None and plain(read[0]) == frame(expected)
    assert await read_answer(two) is None
    assert await read_frame(await sent(data)) == (frame(payload), len(data) - 4)


async def test_vectors_of_a_large_frame_were_parsed_one_by_one() -> None:
    read = await read_answer(await sent(encode(frame(vectors(200)))))
    assert read is not None
    assert all(isinstance(row["embedding"], WrittenVector) for row in read[0]["payload"]["data"])


@pytest.mark.parametrize("num_bytes", [3, 100, LARGE])
async def test_a_frame_that_is_cut_off_is_the_end(num_bytes: int) -> None:
    data = encode(frame(vectors(200)))
    assert await read_answer(await sent(data[:num_bytes])) is None
