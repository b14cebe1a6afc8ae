"""Streams side by side: every item, in its stream's order, and nothing left open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from ionrouter.providers.interleave import interleave


class Streams:
    """Makes streams of numbers and remembers which have ended."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    async def count(self, name: str, items: int, fails: bool = False) -> AsyncIterator[str]:
        try:
            for i in range(items):
                await asyncio.sleep(0)
                yield f"{name}{i}"
            if fails:
                raise RuntimeError(name)
        finally:
            self.ended.append(name)


async def test_every_item_comes_in_its_streams_order_and_in_turn() -> None:
    streams = Streams()
    seen = [pair async for pair in interleave([streams.count("a", 3), streams.count("b", 2)])]
    assert [item for i, item in seen if i == 0] == ["a0", "a1", "a2"]
    assert [item for i, item in seen if i == 1] == ["b0", "b1"]
    assert seen.index((1, "b0")) < seen.index((0, "a2")), "side by side, not one after the other"


async def test_closing_early_closes_every_stream() -> None:
    streams = Streams()
    async with aclosing(interleave([streams.count("a", 9), streams.count("b", 9)])) as merged:
        await anext(merged)
    assert sorted(streams.ended) == ["a", "b"]


async def test_one_failure_ends_all() -> None:
    streams = Streams()
    with pytest.raises(RuntimeError, match="b"):
        async for _ in interleave([streams.count("a", 99), streams.count("b", 1, fails=True)]):
            pass
    assert sorted(streams.ended) == ["a", "b"]


async def test_no_streams_are_no_items() -> None:
    assert [pair async for pair in interleave([])] == []
