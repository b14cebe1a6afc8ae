"""Tool calls one at a time, however their fragments arrive."""

from __future__ import annotations

import json
from typing import Any

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
