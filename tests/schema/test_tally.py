"""Counting as events pass."""

from __future__ import annotations

from msgspec.structs import replace

from ionrouter.schema.assemble import as_chunk
from ionrouter.schema.events import Choice, ChoiceDelta, Chunk, Complete
from ionrouter.schema.tally import Tally
from ionrouter.schema.usage import Usage


def said(**delta: object) -> Chunk:
    return Chunk((ChoiceDelta(0, dict(delta)),))


def test_the_first_usable_event_starts_the_clock_and_gaps_are_between_such() -> None:
    tally = Tally()
    for event, now in ((said(role="assistant", content=""), 1.0), (said(content="a"), 5.0), (said(), 6.0)):
        tally.add(event, now)
    tally.add(said(content="b"), 8.0)
    tally.add(said(content="c"), 9.0)
    assert (tally.first_at, tally.last_at, tally.max_gap_s) == (5.0, 9.0, 3.0)


def test_what_a_lane_takes_counts_as_what_comes_any_other_way() -> None:
    times = [1.0, 2.0, 5.0, 5.5, 9.0, 9.0]
    texts, takes = ["a", "", "Grüße", "no", "👋", "c"], [True, True, True, False, True, True]
    counted, other, now = Tally(), Tally(), iter(times)
    answers = iter(takes)
    lane = counted.counting(lambda text, literal: next(answers), lambda: next(now))
    for text, is_taken, at in zip(texts, takes, times, strict=True):
        assert lane(text, b"") is is_taken
        if is_taken:
            other.add(said(content=text), at)
            assert counted.taken_at == at
        assert counted == replace(other, taken_at=counted.taken_at)
    assert (counted.first_at, counted.last_at, counted.max_gap_s) == (1.0, 9.0, 4.0)
    assert counted.num_characters == 8


def test_the_last_usage_stands_and_a_missing_one_erases_nothing() -> None:
    """G109"""
    tally = Tally()
    for usage in (Usage(10, 3), None, Usage(10, 3)):
        tally.add(Chunk(usage=usage), 1.0)
    assert tally.usage_or_estimate(99) == (Usage(10, 3), False)


def test_four_characters_are_a_token_where_none_are_reported_tool_calls_included() -> None:
    tally = Tally()
    tally.add(said(content="12345"), 1.0)
    tally.add(said(tool_calls=[{"function": {"name": "abc", "arguments": "{}"}}]), 1.0)
    assert tally.usage_or_estimate(7) == (Usage(7, 3), True)


def test_fragments_of_a_tool_call_are_one_call_whatever_lies_between() -> None:
    tally = Tally()
    for index, function in (
        (0, {"name": "f", "arguments": '{"a"'}),
        (1, {"name": "g", "arguments": ""}),
        (0, {"arguments": ": 1}"}),
        (1, {"arguments": "{}"}),
    ):
        tally.add(said(tool_calls=[{"index": index, "function": function}]), 1.0)
    assert [(c.name, "".join(c.arguments)) for c in tally.calls.values()] == [("f", '{"a": 1}'), ("g", "{}")]


def test_data_counts_as_an_answer() -> None:
    tally = Tally()
    tally.add(Complete(data=({"embedding": [1.0]},)), 2.0)
    assert tally.first_at == 2.0


def test_a_whole_answer_counts_as_the_chunk_that_says_the_same() -> None:
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in ("f", "g")]
    message = {"role": "assistant", "content": "12345", "tool_calls": calls}
    whole = Complete((Choice(0, message, "tool_calls", "tool_use"),), None, "id", "tier", upstream_model="m")
    tally, streamed = Tally(), Tally()
    tally.add(whole, 1.0)
    streamed.add(as_chunk(whole), 1.0)
    assert tally == streamed
    assert tally.usage_or_estimate(7) == (Usage(7, 3), True)
    assert [call.name for call in tally.calls.values()] == ["f", "g"]


def test_what_comes_whole_and_with_its_usage_needs_no_estimate() -> None:
    tally = Tally()
    tally.add(Complete((Choice(0, {"content": "12345"}, "stop"),), Usage(9, 8)), 1.0)
    assert tally.usage_or_estimate(7) == (Usage(9, 8), False)
    assert (tally.first_at, tally.native_finish_reason) == (1.0, "stop")
