"""Whole answers: chat, completions, and the empty ones that are failures."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.providers.normalise import as_chunks
from ionrouter.schema.events import Chunk, Complete
from ionrouter.schema.usage import Usage
from tests.support.endpoints import Answer
from tests.support.normalised import failure, message, read, whole
from tests.support.wire import chunk, usage


def test_a_whole_answer_keeps_content_null_beside_tool_calls() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    (choice,) = whole(message(None, "tool_calls", tool_calls=[call])).choices
    assert choice.message["content"] is None
    assert choice.message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}


@pytest.mark.parametrize("body", [{"choices": []}, {"choices": None}, {"id": "x"}, {}])
def test_an_answer_without_choices_is_a_failure(body: dict[str, Any]) -> None:
    assert failure(body).code == "empty"


@pytest.mark.parametrize("body", [message("", None), message(None, None), {"choices": [{"message": None}]}])
def test_an_answer_with_neither_text_nor_finish_is_a_failure(body: dict[str, Any]) -> None:
    assert failure(body).code == "empty"


def test_an_empty_text_with_a_stop_is_an_answer() -> None:
    assert whole(message("", "stop")).choices[0].message["content"] == ""


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({"stop_reason": "END"}, "END"),
        ({"matched_stop": "END"}, "END"),
        ({"stop_reason": 2}, None),
        ({}, None),
    ],
)
def test_the_stop_string_that_matched_is_kept(told: dict[str, Any], kept: str | None) -> None:
    """vLLM's `stop_reason` and SGLang's `matched_stop`; a token id there is the end of the text."""
    body = message("hi", "stop")
    body["choices"][0].update(told)
    assert whole(body).choices[0].stop_sequence == kept
    streamed = {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop", **told}]}
    endings = [c.stop_sequence for e in read(streamed).events if isinstance(e, Chunk) for c in e.choices]
    assert endings == [kept]
    assert [c.stop_sequence for chunk in as_chunks(whole(body)) for c in chunk.choices] == [kept]


def test_vllms_prompt_logprobs_are_kept_wherever_it_says_them() -> None:
    scores = [None, {"5": {"logprob": -0.5, "rank": 1, "decoded_token": "a"}}]
    said = [None, {"5": {"logprob": float("-inf"), "rank": 1, "decoded_token": "a"}}]
    (chat,) = whole(message("hi", "stop") | {"prompt_logprobs": scores}).choices
    assert chat.prompt_logprobs == scores
    (completion,) = whole(
        {"choices": [{"index": 0, "text": "a", "finish_reason": "stop", "prompt_logprobs": said}]},
        kind="completions",
    ).choices
    assert completion.prompt_logprobs == [None, {"5": {"logprob": None, "rank": 1, "decoded_token": "a"}}]
    assert whole(message("hi", "stop") | {"prompt_logprobs": None}).choices[0].prompt_logprobs is None
    (chunk,) = as_chunks(Complete((chat,)))
    assert chunk.choices[0].prompt_logprobs == scores


def test_text_without_a_finish_reason_counts_as_stop() -> None:
    assert whole(message("hi", None)).choices[0].finish_reason == "stop"


@pytest.mark.parametrize("body", [None, [], "x", 3])
def test_an_answer_that_is_no_object_is_malformed(body: Any) -> None:
    assert failure(body).code == "malformed"


@pytest.mark.parametrize("beside", [True, False])
def test_a_completions_reasoning_is_kept(beside: bool) -> None:
    """Beside the text, or in a message of a server that answers as if asked to chat."""
    details = [{"type": "reasoning.encrypted", "data": "x"}]
    thought = {"reasoning_content": "hm", "reasoning_details": details}
    choice = {"text": "a", **thought} if beside else {"message": {"content": "a", **thought}}
    (read,) = whole({"choices": [{"index": 0, "finish_reason": "stop", **choice}]}, "completions").choices
    assert read.message == {"text": "a", "reasoning": "hm", "reasoning_details": details}


def test_completions_come_as_text() -> None:
    body = {"choices": [{"text": "a", "index": 0, "finish_reason": "eos", "logprobs": None}]}
    (choice,) = whole(body, "completions").choices
    assert (choice.message, choice.finish_reason, choice.native_finish_reason) == (
        {"text": "a"},
        "stop",
        "eos",
    )
    last = {"choices": [{"text": "", "finish_reason": "stop"}]}
    answer = read({"choices": [{"text": "a", "index": 0}]}, last, kind="completions")
    assert answer.text(key="text") == "a"


def test_a_whole_answer_can_be_said_as_chunks() -> None:
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = {**message("hi", "tool_calls", tool_calls=[call]), "usage": usage(5, 2)}
    answer = Answer(list[Chunk | Complete](as_chunks(whole(body))))
    assert answer.text() == "hi"
    assert answer.tool_calls() == [("t1", "f", "{}")]
    assert answer.finishes() == {0: ("tool_calls", "tool_calls")}
    assert answer.usages() == [Usage(5, 2)]


@pytest.mark.parametrize("told", [{}, {"arguments": ""}, {"arguments": None}])
@pytest.mark.parametrize("finish", ["tool_calls", "stop", None])
def test_a_call_without_arguments_has_an_empty_object(told: dict[str, Any], finish: str | None) -> None:
    """Clients parse them: nothing at all is not JSON."""
    call = {"id": "t1", "type": "function", "function": {"name": "now", **told}}
    assert whole(message(None, finish, tool_calls=[call])).choices[0].message["tool_calls"] == [
        {"id": "t1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    ]
    streamed = [chunk({"tool_calls": [{**call, "index": 0}]}), *([chunk({}, finish)] if finish else [])]
    assert read(*streamed).tool_calls() == [("t1", "now", "{}")]
    assert read(chunk({"tool_calls": [call]}, finish)).tool_calls() == [("t1", "now", "{}")]


def test_a_call_that_was_cut_before_its_arguments_keeps_none() -> None:
    call = {"id": "t1", "type": "function", "function": {"name": "now", "arguments": ""}}
    (choice,) = whole(message(None, "length", tool_calls=[call])).choices
    assert choice.message["tool_calls"][0]["function"]["arguments"] == ""
    assert read(chunk({"tool_calls": [{**call, "index": 0}]}, "length")).tool_calls() == [("t1", "now", "")]
