"""Answers as they are kept: every event as it was, but for what it cost."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.schema.events import (
    AttemptRecord,
    Choice,
    ChoiceDelta,
    Chunk,
    Committed,
    Complete,
    Finished,
    TextRun,
)
from ionrouter.schema.kept import EVENTS_A_PIECE, OVERHEAD_BYTES, KeptAnswer, Recording
from ionrouter.schema.usage import Cost, Usage
from ionrouter.schema.vectors import written

COMMITTED = Committed("up/m", "acme/m", "Up", "first pick", 2, ("top_k",), ("shortened",))
ATTEMPT = AttemptRecord(
    "up/m", "acme/m", "Up", 1.0, True, 2.0, finish_reason="stop", native_finish_reason="eos"
)
FINISHED = Finished(Usage(5, 2), Cost(1.0, 2.0), (ATTEMPT,), 0.1)


def said(text: str, **more: Any) -> Chunk:
    return Chunk((ChoiceDelta(0, {"content": text}, **more),))


def recorded(*batches: list[Any], max_bytes: int = 1 << 20) -> KeptAnswer | None:
    recording = Recording(max_bytes)
    for batch in batches:
        recording.add(batch)
    return recording.answer("gen-1-a")


def events(kept: KeptAnswer | None) -> list[Any]:
    assert kept is not None
    return [event for batch in kept.batches() for event in batch]


def test_events_come_back_as_they_were_without_usage() -> None:
    run = TextRun(said("x"), "content", ("a", "b"), (b'"a"', b'"b"'))
    odd = Chunk((ChoiceDelta(0, {"content": "\ud83d", "extra": [2**70, float("inf"), None]}),))
    last = said("", finish_reason="stop", native_finish_reason="eos")
    usage = Chunk((), Usage(5, 2))
    kept = recorded([COMMITTED, said("A")], [run, odd], [last, usage], [FINISHED])
    first, *rest = events(kept)
    assert rest == [said("A"), run, odd, last, Chunk()]
    assert (first.endpoint_id, first.dropped, first.notes) == ("up/m", ("top_k",), ("shortened",))
    assert (first.attempt, first.reason) == (0, "kept answer of gen-1-a")
    assert kept is not None
    assert (kept.source.id, kept.source.finish_reason, kept.source.native_finish_reason) == (
        "gen-1-a", "stop", "eos",
    )  # fmt: skip
    assert kept.num_bytes == OVERHEAD_BYTES + sum(map(len, kept.pieces))


def test_whole_answers_and_vectors() -> None:
    answer = Complete((Choice(0, {"content": "A"}, "stop"),), Usage(5, 2), search_units=3)
    rows = Complete(data=({"index": 0, "embedding": written(b"[0.5,1]")},), usage=Usage(5))
    for whole in (answer, rows):
        _, found = events(recorded([COMMITTED], [whole], [FINISHED]))
        assert (found.choices, found.data, found.usage) == (whole.choices, whole.data, None)
        assert found.search_units == (0 if whole.search_units else None)


def test_long_streams_are_kept_in_pieces() -> None:
    chunks = [said(str(number)) for number in range(3 * EVENTS_A_PIECE + 1)]
    kept = recorded([COMMITTED], *([chunk] for chunk in chunks), [FINISHED])
    assert events(kept)[1:] == chunks
    assert kept is not None and len(kept.pieces) == 4


@pytest.mark.parametrize("missing", [COMMITTED, FINISHED])
def test_what_did_not_end_well_is_no_answer(missing: Any) -> None:
    assert recorded(*([event] for event in (COMMITTED, said("A"), FINISHED) if event is not missing)) is None


def test_what_is_too_large_is_no_answer() -> None:
    long = [[said(str(number).zfill(1000))] for number in range(2 * EVENTS_A_PIECE)]
    assert recorded([COMMITTED], *long, [FINISHED], max_bytes=400_000) is None
    assert recorded([COMMITTED], [said("x" * 5_000_000)], [FINISHED]) is None
    kept = recorded([COMMITTED], *long, [FINISHED], max_bytes=600_000)
    assert kept is not None and kept.num_bytes <= 600_000
