"""Tool calls one at a time, however their fragments arrive."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given

from ionrouter.schema.events import Chunk
from ionrouter.schema.tool_stream import Step, ToolStream
from tests.support.deltas import answers


def _fragments(chunks: list[Chunk]) -> list[dict[str, Any]]:
    return [call for one in chunks for call in one.choices[0].delta.get("tool_calls", ())]


@given(answers())
def test_every_call_is_written_whole_before_the_next_begins(chunks: list[Chunk]) -> None:
    fragments, stream, steps = _fragments(chunks), ToolStream(), list[Step]()
    for fragment in fragments:
        stream.add([fragment])
        steps += stream.take()
    steps += stream.take(is_over=True)
    expected: dict[str, str] = {}
    ids = {f["index"]: f["id"] for f in fragments if "id" in f}
    for fragment in fragments:
        call_id = ids[fragment["index"]]
        expected[call_id] = expected.get(call_id, "") + fragment["function"].get("arguments", "")
    found: dict[str, str] = {}
    current = None
    for step in steps:
        if step.opens:
            assert current is None
            current = step.id
        assert step.id == current
        found[step.id] = found.get(step.id, "") + step.arguments
        if step.closes:
            current = None
    assert current is None
    assert found == expected
    assert all(isinstance(json.loads(arguments), dict) for arguments in found.values())


def test_arguments_of_the_first_call_leave_as_they_come() -> None:
    stream = ToolStream()
    stream.add([{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}])
    assert list(stream.take()) == [Step("a", "f", opens=True)]
    stream.add([{"index": 0, "function": {"arguments": '{"x":'}}])
    assert list(stream.take()) == [Step("a", "f", '{"x":')]
    stream.add([{"index": 0, "function": {"arguments": "1}"}}])
    assert list(stream.take()) == [Step("a", "f", "1}")]
    stream.add([{"index": 1, "id": "b", "function": {"name": "g", "arguments": "{"}}])
    assert list(stream.take()) == [Step("a", "f", closes=True), Step("b", "g", "{", opens=True)]


def test_a_call_waits_for_its_name() -> None:
    stream = ToolStream()
    stream.add([{"index": 0, "id": "a", "function": {"arguments": "{}"}}])
    assert list(stream.take()) == []
    stream.add([{"index": 0, "function": {"name": "f"}}])
    assert list(stream.take()) == [Step("a", "f", "{}", opens=True)]


def test_arguments_cut_off_by_the_end_leave_as_they_are() -> None:
    stream = ToolStream()
    stream.add([{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x'}}])
    assert [s.arguments for s in stream.take(is_over=True)] == ['{"x', ""]


def test_arguments_nested_beyond_reason_are_written_as_they_came() -> None:
    arguments = "[" * 5000
    stream = ToolStream()
    stream.add([{"index": 0, "id": "a", "function": {"name": "f", "arguments": arguments}}])
    assert list(stream.take()) == [Step("a", "f", arguments, opens=True)]
    assert stream.is_mid_call
    assert list(stream.take(is_over=True)) == [Step("a", "f", closes=True)]


@pytest.mark.parametrize("later", ["another call", "text"])
def test_a_long_call_that_stays_open_is_not_read_again_at_every_event(later: str) -> None:
    """Reading its 200 kB at each of 20,000 events took seconds of everybody's time."""
    stream, begun = ToolStream(), time.process_time()
    stream.add([{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x": "' + "a" * 200_000}}])
    list(stream.take())
    for number in range(20_000):
        if later == "text":
            assert stream.is_mid_call
        else:
            stream.add([{"index": 1, "id": "b", "function": {"name": "g", "arguments": str(number)}}])
            assert not list(stream.take())
    stream.add([{"index": 0, "function": {"arguments": '"}'}}])
    assert [step.closes for step in stream.take(is_over=True)][-1]
    assert time.process_time() - begun < 2


def test_arguments_in_many_pieces_cost_no_more_than_they_are_long() -> None:
    stream, begun = ToolStream(), time.process_time()
    said = []
    for _ in range(250_000):
        stream.add([{"index": 0, "id": "a", "function": {"name": "f", "arguments": "abcd"}}])
        said += [step.arguments for step in stream.take()]
    assert "".join(said) == "abcd" * 250_000
    assert time.process_time() - begun < 5
