"""What is read at once, by its declared shape, is read as the code for every shape reads it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ionrouter.errors import UpstreamError
from ionrouter.providers.http_errors import ErrorReader
from ionrouter.providers.normalise import complete, complete_any
from ionrouter.providers.plain_answer import read_plain
from ionrouter.providers.usage_body import read_any_usage, read_usage
from ionrouter.redact import Redactor
from tests.support.normalised import message
from tests.support.wire import usage

ERRORS = ErrorReader("Up", Redactor())
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 7, 2**70, 1_000_000, 0.0, 3.0, 1.5, float("nan"), float("inf")]),
    st.sampled_from(["", "x", "5", " 5 ", "stop", "length", "tool_calls", "error", "STOP", "assistant"]),
    st.sampled_from([[], {}, ["x"], [None], {"text": "x"}, {"message": "broken"}]),
    st.sampled_from([[{"type": "text", "text": "x"}], [{"function": {"name": "f", "arguments": "{}"}}]]),
)
COUNTS = (
    *("prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens"),
    *("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens", "reasoning_tokens"),
    *("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens", "audio_tokens"),
    *("image_tokens", "video_tokens", "file_tokens"),
    *("accepted_prediction_tokens", "rejected_prediction_tokens"),
)
DETAILS = (
    *("prompt_tokens_details", "input_tokens_details"),
    *("completion_tokens_details", "output_tokens_details"),
)


def changed(common: dict[str, Any], names: tuple[str, ...], values: Any = ODD) -> Any:
    """Objects that differ from a common one in a few fields, or lack them."""
    changes = st.dictionaries(st.sampled_from(names), st.one_of(values, st.just("absent")), max_size=3)
    return changes.map(
        lambda new: {name: value for name, value in {**common, **new}.items() if value != "absent"}
    )


NUMBERS = st.one_of(st.integers(0, 30), ODD)
USAGES = changed(
    {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19},
    (*COUNTS, *DETAILS),
    st.one_of(NUMBERS, changed({}, COUNTS, NUMBERS)),
)
MESSAGES = changed(
    {"role": "assistant", "content": "hi"},
    (
        *("role", "content", "refusal", "reasoning", "reasoning_content", "thinking", "reasoning_details"),
        *("thinking_blocks", "audio", "images", "annotations", "tool_calls", "function_call", "other"),
    ),
)
CHOICES = changed(
    {"index": 0, "finish_reason": "stop"},
    (
        *("index", "finish_reason", "error", "logprobs", "prompt_logprobs", "stop_reason", "matched_stop"),
        *("message", "delta", "text", "other"),
    ),
)
ANSWERS = changed(
    {"id": "a", "object": "chat.completion", "model": "m"},
    (
        *("id", "object", "model", "type", "error", "service_tier", "prompt_logprobs", "choices", "data"),
        *("usage", "other"),
    ),
)

_calm = settings(  # a busy machine is no fault
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def outcome(read: Any, payload: Any) -> str:
    """The answer, or all that the error says, as words: NaN equals nothing, and some ids are drawn."""
    try:
        told = read("chat", payload, ERRORS)
    except UpstreamError as error:
        told = vars(error)
    return re.sub("call_[0-9a-f]{24}", "call", repr(told))


@_calm
@given(ANSWERS, st.lists(st.tuples(CHOICES, MESSAGES), min_size=1, max_size=2), USAGES)
def test_an_answer_reads_the_same_both_ways(
    answer: dict[str, Any], said: list[tuple[dict[str, Any], dict[str, Any]]], counts: Any
) -> None:
    choices = [{"message": message, **choice} for choice, message in said]
    payload = {"choices": choices, "usage": counts, **answer}
    assert outcome(complete, payload) == outcome(complete_any, payload)


@_calm
@given(USAGES)
def test_a_usage_reads_the_same_both_ways(counts: dict[str, Any]) -> None:
    assert read_usage(counts) == read_any_usage(counts)


@pytest.mark.parametrize("payload", [None, [], "x", 3, {}, {"choices": {}}, {"choices": [None]}])
def test_what_is_no_answer_is_not_plain(payload: Any) -> None:
    assert read_plain(payload, ERRORS) is None
    assert outcome(complete, payload) == outcome(complete_any, payload)


def test_the_answers_of_common_servers_are_plain() -> None:
    """OpenAI's, vLLM's and SGLang's: null and empty fields say nothing."""
    openai = {**message("hi", "stop", refusal=None, annotations=[]), "usage": usage(5, 2), "created": 1}
    openai["choices"][0]["logprobs"] = None
    assert read_plain(openai, ERRORS) is not None
    said = {"reasoning_content": None, "tool_calls": [], "audio": None, "function_call": None}
    vllm = {**message("hi", "length", **said), "prompt_logprobs": None, "kv_transfer_params": None}
    vllm["choices"][0].update(stop_reason=None, token_ids=None)
    assert read_plain(vllm, ERRORS) is not None
    sglang = {**message("hi", "stop", reasoning_content=None, tool_calls=None), "metadata": {"weight": "x"}}
    sglang["choices"][0]["matched_stop"] = 151645
    assert read_plain(sglang, ERRORS) is not None
