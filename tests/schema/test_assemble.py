"""Chunks into a whole answer."""

from __future__ import annotations

import time
from typing import Any

from ionrouter.schema.assemble import Assembly, as_chunk, is_filtered_empty
from ionrouter.schema.events import Choice, ChoiceDelta, Chunk, Complete


def whole(*deltas: ChoiceDelta) -> Complete:
    assembly = Assembly()
    for delta in deltas:
        assembly.add(Chunk((delta,)))
    return assembly.complete()


def d(delta: dict[str, Any], index: int = 0, finish: Any = None, **more: Any) -> ChoiceDelta:
    return ChoiceDelta(index, delta, finish, finish, **more)


def test_text_is_joined_and_the_finish_kept() -> None:
    got = whole(
        d({"role": "assistant", "content": ""}), d({"content": "a"}), d({"content": "b"}), d({}, 0, "stop")
    )
    assert got.choices == (Choice(0, {"role": "assistant", "content": "ab"}, "stop", "stop"),)


def test_choices_stay_apart() -> None:
    """G32"""
    got = whole(
        d({"content": "A0"}), d({"content": "B0"}, 1), d({"content": "A1"}), d({"content": "B1"}, 1),
        d({}, 1, "stop"), d({}, 0, "length"),
    )  # fmt: skip
    assert [(c.index, c.message["content"], c.finish_reason) for c in got.choices] == [
        (0, "A0A1", "length"),
        (1, "B0B1", "stop"),
    ]


def test_tool_calls_are_joined_by_index() -> None:
    got = whole(
        d({"tool_calls": [{"index": 0, "id": "t1", "function": {"name": "f", "arguments": '{"a"'}}]}),
        d({"tool_calls": [{"index": 1, "id": "t2", "function": {"name": "g", "arguments": "{}"}}]}),
        d({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}),
        d({}, 0, "tool_calls"),
    )
    calls = got.choices[0].message["tool_calls"]
    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in calls] == [
        ("t1", "f", '{"a":1}'),
        ("t2", "g", "{}"),
    ]
    assert got.choices[0].message["content"] is None


def test_logprobs_and_reasoning_are_collected() -> None:
    got = whole(
        d({"reasoning": "h"}, logprobs={"content": [{"token": "a"}]}),
        d({"reasoning": "m"}, logprobs={"content": [{"token": "b"}], "refusal": None}),
    )
    assert got.choices[0].message["reasoning"] == "hm"
    assert got.choices[0].logprobs == {"content": [{"token": "a"}, {"token": "b"}]}


def test_scores_of_a_prompt_are_kept_and_those_of_an_echo_stand_first() -> None:
    echo = {"tokens": ["a"], "token_logprobs": [None], "top_logprobs": [None], "text_offset": [0]}
    more = {"tokens": ["b"], "token_logprobs": [-1.0], "top_logprobs": [{"b": -1.0}], "text_offset": [1]}
    got = whole(
        d({"text": "a"}, logprobs=echo, prompt_logprobs=[None]), d({"text": "b"}, logprobs=more)
    ).choices[0]
    assert got.prompt_logprobs == [None]
    assert got.logprobs == {name: values + more[name] for name, values in echo.items()}
    assert as_chunk(Complete((got,))).choices[0].prompt_logprobs == [None]


def test_a_thought_in_pieces_is_one_detail() -> None:
    unknown = {"type": "reasoning.text", "format": "unknown", "index": 0}
    pieces = [{**unknown, "text": text} for text in ("Let", " me", " think")]
    got = whole(*[d({"reasoning": piece["text"], "reasoning_details": [piece]}) for piece in pieces])
    message = got.choices[0].message
    assert message["reasoning"] == "Let me think"
    assert message["reasoning_details"] == [{**unknown, "text": "Let me think"}]


def test_sound_in_pieces_is_one_object() -> None:
    pieces = [
        {"id": "a1", "transcript": "He"},
        {"data": "AAAA"},
        {"data": "BBBB", "transcript": "llo", "id": None},
        {"expires_at": 5},
    ]
    got = whole(*[d({"audio": piece}) for piece in pieces], d({}, 0, "stop")).choices[0].message
    assert got["audio"] == {"id": "a1", "data": "AAAABBBB", "transcript": "Hello", "expires_at": 5}


def test_images_and_annotations_are_all_kept_and_a_refusal_is_joined() -> None:
    deltas = [{"images": [{"n": n}], "annotations": [{"n": n}], "refusal": str(n)} for n in range(3)]
    message = whole(*map(d, deltas)).choices[0].message
    assert message["images"] == message["annotations"] == [{"n": n} for n in range(3)]
    assert message["refusal"] == "012"


def test_plain_completions_have_text_and_no_role() -> None:
    assert whole(d({"text": "a"}), d({"text": "b"})).choices[0].message == {"text": "ab"}


def test_a_whole_answer_passes_through_and_back() -> None:
    complete = Complete(
        (Choice(0, {"role": "assistant", "content": "x", "tool_calls": [{"id": "t"}]}, "stop"),)
    )
    assembly = Assembly()
    assembly.add(complete)
    assert assembly.complete() is complete
    assert as_chunk(complete).choices[0].delta["tool_calls"] == [{"index": 0, "id": "t"}]


def test_what_counts_as_an_answer() -> None:
    assert Complete((Choice(0, {"content": "x"}, None),)).commits
    assert Complete((Choice(0, {"content": ""}, "stop"),)).commits
    assert Complete(data=({"embedding": []},)).commits
    assert not Complete().commits
    assert not Complete((Choice(0, {"content": ""}, None),)).commits
    assert not Complete((Choice(0, {"content": ""}, "error"),)).commits


def test_what_counts_as_filtered_and_empty() -> None:
    assert is_filtered_empty(Chunk((d({"content": ""}, 0, "content_filter"),)))
    assert not is_filtered_empty(Chunk((d({"content": "x"}, 0, "content_filter"),)))
    assert not is_filtered_empty(Chunk((d({}, 0, "content_filter"), d({}, 1, "stop"))))
    assert not is_filtered_empty(Chunk((d({}),)))


def test_arguments_in_many_pieces_are_joined_once() -> None:
    begun, assembly = time.process_time(), Assembly()
    for _ in range(250_000):
        call = {"index": 0, "id": "c", "function": {"name": "", "arguments": "abcd"}}
        assembly.add(Chunk((d({"tool_calls": [call]}),)))
    (told,) = assembly.complete().choices[0].message["tool_calls"]
    assert told["function"]["arguments"] == "abcd" * 250_000
    assert time.process_time() - begun < 5
