"""Tool calls come out with indexes, ids and string arguments, whatever the upstream left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ionrouter.providers.tool_calls import ToolCalls, whole_calls


def put_together(*deltas: Any) -> list[tuple[int, str, str, str]]:
    """Accumulate fragments by index as the openai client does: (index, id, name, arguments)."""
    calls, out = ToolCalls(), {}
    for delta in deltas:
        for part in calls.fragments(delta):
            call = out.setdefault(part["index"], ["", "", ""])
            call[0] += part.get("id", "")
            call[1] += part["function"].get("name", "")
            call[2] += part["function"].get("arguments", "")
    return [(index, *parts) for index, parts in sorted(out.items())]


def part(name: str | None = None, arguments: Any = None, **extra: Any) -> dict[str, Any]:
    function = {k: v for k, v in (("name", name), ("arguments", arguments)) if v is not None}
    return {**extra, "function": function}


def test_calls_without_index_do_not_merge() -> None:
    """G20: a new id opens the next index; a fragment with neither belongs to the call opened last."""
    assert put_together(
        [part("f", '{"a":1}', id="t1", type="function")],
        [part("g", '{"b":', id="t2", type="function")],
        [part(None, "2}")],
    ) == [(0, "t1", "f", '{"a":1}'), (1, "t2", "g", '{"b":2}')]


def test_the_usual_stream_passes_unchanged() -> None:
    calls = ToolCalls()
    first = calls.fragments([part("f", "", index=0, id="t1", type="function")])
    assert first == [{"index": 0, "id": "t1", "type": "function", "function": {"name": "f", "arguments": ""}}]
    assert calls.fragments([part(None, '{"a"', index=0)]) == [{"index": 0, "function": {"arguments": '{"a"'}}]


def test_parallel_fragments_interleaved_by_index_stay_apart() -> None:
    assert put_together(
        [part("f", "", index=0, id="a"), part("g", "", index=1, id="b")],
        [part(None, "1", index=1)],
        [part(None, "2", index=0)],
        [part(None, "3", index=1)],
    ) == [(0, "a", "f", "2"), (1, "b", "g", "13")]


def test_every_call_at_index_0_with_its_own_id_opens_its_own() -> None:
    assert put_together([part("f", "{}", index=0, id="a")], [part("g", "{}", index=0, id="b")]) == [
        (0, "a", "f", "{}"),
        (1, "b", "g", "{}"),
    ]


def test_a_new_id_on_every_fragment_of_one_call_does_not_split_it() -> None:
    assert put_together(
        [part("f", "{", index=0, id="a")], [part(None, "}", index=0, id="b")], [part("", "", index=0, id="c")]
    ) == [(0, "a", "f", "{}")]


def test_indexes_that_start_at_1_start_at_0_for_the_client() -> None:
    assert [c[0] for c in put_together([part("f", "", index=1, id="a")], [part(None, "{}", index=1)])] == [0]


def test_an_index_that_counts_fragments_keeps_one_call() -> None:
    assert put_together([part("f", "{", index=0, id="a")], [part(None, "}", index=1, id="a")]) == [
        (0, "a", "f", "{}")
    ]


def test_whole_calls_in_one_delta_without_index_and_id_are_two() -> None:
    (first, second) = put_together([part("f", "{}"), part("g", "{}")])
    assert (first[0], first[2], second[0], second[2]) == (0, "f", 1, "g")
    assert first[1] and second[1] and first[1] != second[1]


def test_a_repeated_name_is_said_once() -> None:
    assert put_together([part("f", "{", index=0, id="a")], [part("f", "}", index=0, id="a")]) == [
        (0, "a", "f", "{}")
    ]


def test_a_name_that_comes_late_still_arrives() -> None:
    assert put_together([part(None, "", index=0, id="a")], [part("f", "{}", index=0)]) == [
        (0, "a", "f", "{}")
    ]


@pytest.mark.parametrize("missing", [None, "", 7])
def test_a_missing_id_is_made(missing: Any) -> None:
    ((_, made, _, _),) = put_together([part("f", "{}", index=0, id=missing)])
    assert made.startswith("call_")


def test_the_same_id_for_two_calls_becomes_two_ids() -> None:
    (a, b) = put_together([part("f", "{}", index=0, id="x")], [part("g", "{}", index=1, id="x")])
    assert a[1] == "x"
    assert b[1] not in ("", "x")


def test_arguments_that_are_an_object_become_a_string() -> None:
    ((_, _, _, arguments),) = put_together([part("f", {"a": [1]}, index=0, id="x")])
    assert json.loads(arguments) == {"a": [1]}


def test_a_legacy_function_call_is_one_tool_call() -> None:
    calls = ToolCalls()
    first = calls.legacy({"name": "f", "arguments": '{"a'})
    second = calls.legacy({"arguments": '":1}'})
    assert first[0]["function"] == {"name": "f", "arguments": '{"a'}
    assert second == [{"index": 0, "function": {"arguments": '":1}'}}]


@pytest.mark.parametrize("junk", [None, "x", 3, [None, "x", 3], [{}], {}])
def test_junk_raises_nothing(junk: Any) -> None:
    for call in ToolCalls().fragments(junk):
        assert isinstance(call["index"], int)


def test_a_whole_message_keeps_one_call_an_entry() -> None:
    calls = whole_calls([part("f", {"a": 1}, id="t1"), part("g", None), part("f", "{}", id="t1")], None)
    assert [c["function"]["name"] for c in calls] == ["f", "g", "f"]
    assert len({c["id"] for c in calls}) == 3
    assert calls[0] == {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert calls[1]["function"]["arguments"] == ""


def test_a_whole_legacy_function_call_is_read() -> None:
    (call,) = whole_calls(None, {"name": "f", "arguments": "{}"})
    assert call["function"] == {"name": "f", "arguments": "{}"}
    assert "index" not in call


def names_and_arguments(*deltas: Any) -> list[tuple[str, str]]:
    found = put_together(*deltas)
    assert len({call_id for _, call_id, _, _ in found}) == len(found)  # each has its own
    return [(name, arguments) for _, _, name, arguments in found]


@pytest.mark.parametrize("more", [{}, {"id": ""}, {"id": "x"}])
def test_one_tool_called_twice_under_one_index_is_two_calls(more: dict[str, str]) -> None:
    """Gemini's OpenAI shape: every parallel call is whole, at index 0, and may have no id."""
    first, second = (part("f", json.dumps({"city": city}), index=0, **more) for city in ("Oslo", "Rome"))
    wanted = [("f", '{"city": "Oslo"}'), ("f", '{"city": "Rome"}')]
    assert names_and_arguments([first], [second]) == wanted
    assert names_and_arguments([first, second]) == wanted


def test_a_second_object_of_arguments_is_a_second_call_of_the_same_tool() -> None:
    assert names_and_arguments(
        [part("f", "", index=0, id="x")],
        [part("", '{"a": 1}', index=0)],
        [part("", '{"a": ', index=0)],
        [part("", "2}", index=0)],
    ) == [("f", '{"a": 1}'), ("f", '{"a": 2}')]


@pytest.mark.parametrize("more", [{}, {"index": 0}])
def test_two_tools_under_one_id_are_two_calls(more: dict[str, int]) -> None:
    pieces = [[part("f", "{}", id="x", **more)], [part("g", '{"b"', id="x", **more)]]
    rest = [part("g", ": 2}", id="x", **more)]
    assert names_and_arguments(*pieces, rest) == [("f", "{}"), ("g", '{"b": 2}')]


@pytest.mark.parametrize(
    "pieces",
    [
        ['{"a": [{"b": 1}, ', '{"b": 2}', "]}"],
        ['{"code": "if (x) {}', '{}"}'],
        ["{}", '{"a": 1}'],  # the first stands for "nothing yet"
        ['{"a": 1}', "\n"],
    ],
)
def test_arguments_that_go_on_with_a_brace_are_one_call(pieces: list[str]) -> None:
    first, *rest = pieces
    fragments = [[part("f", first, index=0, id="x")], *([part(None, piece, index=0)] for piece in rest)]
    assert names_and_arguments(*fragments) == [("f", "".join(pieces))]


def test_arguments_before_their_name_are_its_own() -> None:
    assert names_and_arguments([part(None, '{"a"', index=0, id="x")], [part("f", ": 1}", index=0)]) == [
        ("f", '{"a": 1}')
    ]
