"""Batches that are offered before they are yielded: each goes one way, whole, in order, and once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ionrouter.errors import UpstreamError
from ionrouter.providers.chunk_reader import ChunkReader
from ionrouter.providers.http_errors import ErrorReader
from ionrouter.redact import Redactor
from ionrouter.schema.events import Chunk, Lane, ProviderBatch, TextRun
from tests.support.endpoints import make_endpoint, make_request
from tests.support.sse import Pieces

DONE = b"data: [DONE]\n\n"


def event(text: Any, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "up-1", "choices": [choice], **more}).encode() + b"\n\n"


class Late(Pieces):
    """The last of them comes in the moment in which its time is up."""

    async def pour(self, take: Callable[[bytes], bool]) -> None:
        await super().pour(take)
        if not self._pieces:
            raise TimeoutError


@dataclass
class Offered:
    """Takes what `wants` says; `all` is what was taken and yielded, in the order in which it came out.

    `has_lanes`: texts that come alone are taken by themselves, `num_alone` of them.
    """

    wants: Callable[[int], bool] = lambda number: True
    has_lanes: bool = True
    num: int = 0
    num_alone: int = 0
    taken: list[Chunk] = field(default_factory=list)
    yielded: list[Chunk] = field(default_factory=list)
    all: list[Chunk] = field(default_factory=list)
    error: Exception | None = None

    def take(self, batch: ProviderBatch) -> bool:
        self.num += 1
        if not self.wants(self.num):
            return False
        self.taken += chunks_of(batch)
        self.all += chunks_of(batch)
        return True

    def lane(self, pattern: Chunk) -> Lane | None:
        def alone(text: str, literal: bytes) -> bool:
            assert json.loads(literal) == text
            is_taken = self.take([TextRun(pattern, "content", (text,), (literal,))])
            self.num_alone += is_taken
            return is_taken

        return alone if self.has_lanes else None

    async def read(self, pieces: Iterable[bytes], source: type[Pieces] = Pieces) -> Offered:
        request = replace(make_request(make_endpoint("http://127.0.0.1/v1")), taker=self)
        reader = ChunkReader(request, ErrorReader("Up", Redactor()), 5.0)
        try:
            async for batch in reader.batches(source(pieces)):
                self.yielded += chunks_of(batch)
                self.all += chunks_of(batch)
        except (UpstreamError, ZeroDivisionError) as error:
            self.error = error
        return self


def chunks_of(batch: ProviderBatch) -> list[Chunk]:
    return [
        c for e in batch for c in (e.chunks() if isinstance(e, TextRun) else (e,)) if isinstance(c, Chunk)
    ]


def texts_of(chunks: list[Chunk]) -> list[str]:
    return [c.choices[0].delta["content"] for c in chunks if c.choices and c.choices[0].delta.get("content")]


WORDS = [f"w{i} " for i in range(8)]
STREAM = [*map(event, WORDS), event("", "stop"), event("", usage={"prompt_tokens": 3}), DONE]


async def test_what_is_taken_is_not_yielded_and_the_end_always_is() -> None:
    offered = await Offered().read(STREAM)
    assert texts_of(offered.taken) == WORDS and offered.num_alone == len(WORDS) - 2
    assert texts_of(offered.yielded) == []
    assert [
        c.choices[0].finish_reason for c in offered.yielded if c.choices and c.choices[0].finish_reason
    ] == ["stop"]
    assert offered.yielded[-1].usage is not None and offered.error is None


async def test_what_is_refused_is_yielded_in_its_place() -> None:
    offered = await Offered(lambda number: number % 3 != 0, has_lanes=False).read(STREAM)
    assert texts_of(offered.all) == WORDS
    assert texts_of(offered.yielded) == ["w2 ", "w5 "]


async def test_a_text_refused_alone_is_offered_as_a_batch_and_yielded() -> None:
    offered = await Offered(lambda number: number not in (4, 5, 9)).read(STREAM)
    assert texts_of(offered.all) == WORDS
    assert texts_of(offered.yielded) == ["w3 "]  # 9 was refused alone, and taken the other way


async def test_texts_alone_end_where_something_else_comes() -> None:
    other = event("other id", id="up-2")
    offered = await Offered().read(
        [*map(event, WORDS), other[:30], other[30:], *map(event, WORDS), *STREAM[-3:]]
    )
    assert texts_of(offered.all) == [*WORDS, "other id", *WORDS]
    assert 6 <= offered.num_alone < 16 and offered.error is None


@pytest.mark.parametrize(
    "odd",
    [
        event("x") + event("y"),  # two events
        event("x")[:-1],  # its end is still to come
        event({"a": 1}),
        event(None),
        event("x").replace(b'"x"', b'"x'),
        event("x").replace(b'"x"', b'"x", "more": "y"'),
    ],
)
async def test_what_is_no_text_alone_is_what_it_is_without_lanes(odd: bytes) -> None:
    for stream in ([*map(event, WORDS), odd, b"\n", *map(event, WORDS), *STREAM[-3:]],):
        one, other = await Offered().read(stream), await Offered(has_lanes=False).read(stream)
        assert one.all == other.all and one.num_alone > 0 == other.num_alone
        assert repr(one.error) == repr(other.error)


async def test_a_read_that_completes_no_event_is_offered_to_nobody() -> None:
    whole = event("a")
    offered = await Offered().read(
        [event("0"), whole[:20], whole[20:], b": comment\n\n", event("b"), *STREAM[-3:]]
    )
    assert offered.num == 3 and texts_of(offered.taken) == ["0", "a", "b"]


async def test_a_fault_comes_after_what_came_with_it() -> None:
    offered = await Offered().read([event("a"), event("b"), event("c") + b"data: {no json\n\n"])
    assert texts_of(offered.taken) == ["a", "b"]
    assert texts_of(offered.yielded) == ["c"]
    assert isinstance(offered.error, UpstreamError) and offered.error.code == "malformed"


async def test_an_end_too_soon_is_found_after_what_was_taken() -> None:
    offered = await Offered().read([event("a"), event("b")])
    assert texts_of(offered.taken) == ["a", "b"] and offered.yielded == []
    assert isinstance(offered.error, UpstreamError) and offered.error.code == "cut"


async def test_an_end_that_comes_as_its_time_is_up_comes_once() -> None:
    offered = await Offered().read(STREAM, Late)
    assert sum(chunk.usage is not None for chunk in offered.yielded) == 1 and offered.error is None


async def test_a_taker_that_breaks_ends_the_stream_and_nothing_comes_twice() -> None:
    for has_lanes in (True, False):
        offered = await Offered(lambda number: number < 4 or 1 // 0 == 0, has_lanes).read(STREAM)
        assert isinstance(offered.error, ZeroDivisionError)
        assert texts_of(offered.all) == ["w0 ", "w1 ", "w2 "]


@given(
    words=st.lists(st.text(max_size=6), min_size=1, max_size=12),
    cuts=st.lists(st.integers(min_value=1, max_value=90), max_size=40),
    refusals=st.sets(st.integers(min_value=1, max_value=20)),
)
async def test_however_it_is_cut_and_taken_it_is_the_same(
    words: list[str], cuts: list[int], refusals: set[int]
) -> None:
    stream = b"".join([*map(event, words), *STREAM[-3:]])
    pieces, at = [], 0
    for length in cuts:
        pieces.append(stream[at : at + length])
        at += length
    offered = await Offered(lambda number: number not in refusals).read([*pieces, stream[at:]])
    plain = await Offered(lambda number: False).read([stream])
    assert offered.all == plain.all and plain.taken == []
    assert offered.error is None is plain.error
