"""Text, reasoning and parts of a delta or message have one name and one shape; odd values pass safely."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ionrouter.schema import json as wire
from tests.support.normalised import HI, STOP, failure, message, read, whole
from tests.support.odd_answers import nested
from tests.support.wire import chunk, usage


def test_content_as_a_list_of_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, "c"]
    assert read(chunk({"content": parts}), STOP).text() == "abc"
    assert whole(message(parts)).choices[0].message["content"] == "abc"


def test_thinking_parts_are_reasoning() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "a"},
    ]
    answer = read(chunk({"content": parts}), STOP)
    assert (answer.text(), answer.text(key="reasoning")) == ("a", "hm")


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_has_one_name_and_details(key: str) -> None:
    answer = read(chunk({key: "hm"}), STOP)
    assert answer.text(key="reasoning") == "hm"
    assert "reasoning_content" not in answer.chunks[0].choices[0].delta
    detail = {"type": "reasoning.text", "text": "hm", "format": "unknown", "index": 0}
    assert answer.chunks[0].choices[0].delta["reasoning_details"] == [detail]
    assert whole(message("a", **{key: "hm"})).choices[0].message["reasoning"] == "hm"


def test_reasoning_sent_under_both_names_is_said_once() -> None:
    answer = read(chunk({"reasoning": "hm", "reasoning_content": "hm"}), STOP)
    assert answer.text(key="reasoning") == "hm"


def test_details_of_the_upstream_stay_as_they_are() -> None:
    details = [{"type": "reasoning.encrypted", "data": "xyz", "format": "openai-responses-v1", "id": "r1"}]
    delta = read(chunk({"reasoning_details": details}), STOP).chunks[0].choices[0].delta
    assert delta["reasoning_details"] == details


def test_signed_thinking_keeps_its_signature() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "S"},
        {"type": "redacted_thinking", "data": "D"},
    ]
    details = (
        whole(message("a", reasoning_content="hm", thinking_blocks=blocks))
        .choices[0]
        .message["reasoning_details"]
    )
    assert [(d["type"], d.get("signature"), d.get("data")) for d in details] == [
        ("reasoning.text", "S", None),
        ("reasoning.encrypted", None, "D"),
    ]


def test_a_refusal_passes_and_commits() -> None:
    answer = read(chunk({"refusal": "no"}), STOP)
    assert answer.chunks[0].choices[0].delta == {"refusal": "no"}
    assert answer.chunks[0].commits


def test_a_legacy_function_call_becomes_a_tool_call() -> None:
    answer = read(
        chunk({"function_call": {"name": "f", "arguments": ""}}),
        chunk({"function_call": {"arguments": "{}"}}),
        chunk({}, "function_call"),
    )
    ((made, name, arguments),) = answer.tool_calls()
    assert (made[:5], name, arguments) == ("call_", "f", "{}")
    assert answer.finishes() == {0: ("tool_calls", "function_call")}


def test_non_finite_numbers_become_null() -> None:
    """G17."""
    raw = b'{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"token":"a",'
    raw += b'"logprob":-Infinity,"top_logprobs":[{"token":"b","logprob":NaN}]}]},"finish_reason":"stop"}]}'
    logprobs = read(wire.loads(raw)).chunks[0].choices[0].logprobs
    assert logprobs == {
        "content": [{"token": "a", "logprob": None, "top_logprobs": [{"token": "b", "logprob": None}]}]
    }
    json.dumps(logprobs, allow_nan=False)


def test_a_lone_surrogate_passes_and_can_be_sent_on() -> None:
    """G16."""
    answer = read(wire.loads(rb'{"choices":[{"index":0,"delta":{"content":"x\ud83d"}}]}'), HI, STOP)
    assert answer.text() == "x\ud83dhi"
    assert wire.loads(wire.dumps(answer.chunks[0].choices[0].delta)) == {"content": "x\ud83d"}
    body = wire.loads(rb'{"choices":[{"message":{"content":"x\ud83d"},"finish_reason":"stop"}]}')
    assert whole(body).choices[0].message["content"] == "x\ud83d"


def test_ids_and_service_tier_are_on_every_chunk() -> None:
    answer = read(chunk({"content": "a"}, service_tier="priority"), STOP, chunk(usage=usage(1, 1)))
    assert {c.upstream_id for c in answer.chunks} == {"c"}
    assert answer.chunks[-1].service_tier == "priority"


def test_a_streams_thinking_blocks_keep_their_number() -> None:
    """litellm counts them across the stream; a delta holds a piece of one."""
    deltas = [
        {"reasoning_content": "A", "thinking_blocks": [{"type": "thinking", "thinking": "A", "index": 0}]},
        {"thinking_blocks": [{"type": "redacted_thinking", "data": "D", "index": 1}]},
        {"thinking_blocks": [{"type": "redacted_thinking", "data": "E", "index": 2}]},
    ]
    chunks = read(*[chunk(delta) for delta in deltas], STOP).chunks
    details = [d for c in chunks for o in c.choices for d in o.delta.get("reasoning_details", ())]
    assert [(d["index"], d.get("text") or d["data"]) for d in details] == [(0, "A"), (1, "D"), (2, "E")]


TEXT = {"type": "reasoning.text", "text": "t"}
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


@pytest.mark.parametrize(
    ("name", "told", "kept"),
    [
        ("reasoning_details", [TEXT, {"type": "reasoning.summary", "summary": ["s"]}, 5], [TEXT]),
        ("reasoning_details", [{**TEXT, "signature": 5}, {**TEXT, "index": {}}, {**TEXT, "id": []}], None),
        ("reasoning_details", [{**TEXT, "more": nested(600)}], None),
        ("reasoning_details", "x", None),
        ("reasoning_details", TEXT, [TEXT]),
        ("reasoning_details", [{"data": "d"}, {"note": "?"}], [{"data": "d", "type": "reasoning.encrypted"}]),
        ("thinking_blocks", [{"type": "redacted_thinking", "data": 5}, None], None),
        ("images", [IMAGE, "x", None, {}, [IMAGE]], [IMAGE]),
        ("images", IMAGE, [IMAGE]),
        ("images", "x", None),
        ("annotations", [{"type": "file"}, 5, {"file": nested(600)}], [{"type": "file"}]),
        ("annotations", {"a": nested(600)}, None),
        ("audio", {"id": "i", "data": 5, "transcript": ["t"], "expires_at": 5}, {"id": "i", "expires_at": 5}),
        ("audio", ["x"], None),
        ("audio", {"id": nested(600)}, None),
        ("refusal", ["no"], None),
        ("tool_calls", "x", None),
        ("function_call", 5, None),
    ],
)
def test_what_is_not_what_it_should_be_is_left_out(name: str, told: Any, kept: Any) -> None:
    name_of = {"thinking_blocks": "reasoning_details", "function_call": "tool_calls"}.get(name, name)
    assert whole(message("a", **{name: told})).choices[0].message.get(name_of) == kept
    delta = read(chunk({"content": "a", name: told}), STOP).chunks[0].choices[0].delta
    assert delta.get(name_of) == kept


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({"content": 0.5}, None),
        (
            {"content": [{"token": "a"}, 5, None], "refusal": None},
            {"content": [{"token": "a"}], "refusal": None},
        ),
        (
            {"tokens": ["a"], "top_logprobs": [None, {"a": -1.0}], "id": "x"},
            {"tokens": ["a"], "top_logprobs": [None, {"a": -1.0}]},
        ),
        ({"content": [{"token": nested(600)}]}, None),
        ([{"token": "a"}], None),
    ],
)
def test_logprobs_are_lists_or_left_out(told: Any, kept: Any) -> None:
    body = message("a")
    body["choices"][0]["logprobs"] = told
    assert whole(body).choices[0].logprobs == kept
    delta = {"index": 0, "delta": {"content": "a"}, "logprobs": told}
    assert read({"choices": [delta]}, STOP).chunks[0].choices[0].logprobs == kept


@pytest.mark.parametrize(
    "choice",
    [
        {"message": "hi", "finish_reason": "stop"},
        {"message": {"content": None, "tool_calls": [5]}, "finish_reason": "tool_calls"},
        {"message": {"content": "", "tool_calls": {"a": 1}}, "finish_reason": "stop"},
        {"message": {"content": None, "function_call": "f"}, "finish_reason": "function_call"},
        {"message": {"content": nested(2000)}, "finish_reason": "stop"},
    ],
    ids=["no object", "no call", "a call without a function", "no function call", "too deep"],
)
def test_what_an_answer_cannot_do_without_is_a_failure(choice: Any) -> None:
    assert failure({"choices": [choice]}).code == "malformed"
    error = read({"choices": [{"delta": choice["message"], "finish_reason": choice["finish_reason"]}]}).error
    assert error is not None
    assert error.code == "malformed"


def test_an_empty_list_where_an_object_should_be_is_phps_empty_object() -> None:
    last = {"choices": [{"index": 0, "delta": [], "finish_reason": "stop"}]}
    assert read(chunk({"content": "a"}), last).text() == "a"
