"""Every parameter of the local engine: what it means, what is refused and by which name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.providers.ion_parameters import (
    SUPPORTED_PARAMETERS,
    Limits,
    Plan,
    parse_parameters,
    require_length,
)
from ionrouter.schema.request import Kind

LIMITS = Limits(context_length=100, vocab_size=1000)


def parse(body: dict[str, Any], kind: Kind = "chat", limits: Limits = LIMITS, num_prompt: int = 10) -> Plan:
    return parse_parameters(body, kind, limits, num_prompt=num_prompt, random_seed=77)


def test_absent_parameters_are_neutral() -> None:
    for body in ({}, dict.fromkeys(SUPPORTED_PARAMETERS)):
        plan = parse(body)
        sampling = plan.sampling
        assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (1.0, 0, 1.0, 0.0)
        penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
        assert penalties == (1.0, 0.0, 0.0)
        assert (sampling.stop, sampling.stop_ids, sampling.ignore_eos, sampling.min_tokens) == (
            (),
            (),
            False,
            0,
        )
        assert (sampling.logprobs, plan.num_choices, plan.echo, sampling.seed) == (-1, 1, False, 77)
        assert sampling.max_tokens == 90, "what is left of the context"


def test_a_prompt_is_scored_for_an_echo_with_logprobs_or_when_asked() -> None:
    def scores(body: dict[str, Any], kind: Kind = "completions") -> tuple[int, int | None]:
        plan = parse(body, kind)
        return plan.sampling.prompt_logprobs, plan.prompt_logprobs

    assert scores({"logprobs": 3}) == (-1, None)
    assert scores({"echo": True}) == (-1, None)
    assert scores({"echo": True, "logprobs": 0}) == (0, None)
    assert scores({"echo": True, "logprobs": 2, "prompt_logprobs": 5}) == (5, 5)
    assert scores({"logprobs": 4, "prompt_logprobs": 1}) == (1, 1)
    assert scores({"prompt_logprobs": 0}, "chat") == (0, 0)
    plan = parse({"echo": True, "logprobs": 2, "n": 3}, "completions")
    assert [plan.sampling_of(choice).prompt_logprobs for choice in range(3)] == [2, -1, -1]


def test_a_grammar_has_nothing_to_do_where_nothing_is_generated() -> None:
    body = {"guided_regex": "a+", "echo": True, "logprobs": 1}
    assert parse(body | {"max_tokens": 0}, "completions").sampling.grammar is None
    assert parse(body | {"max_tokens": 1}, "completions").sampling.grammar is not None


@pytest.mark.parametrize("value", [0, -1, 1000, 1001, 9_999_999, 10.0**12])
def test_top_k_off(value: Any) -> None:
    assert parse({"top_k": value}).sampling.top_k == 0


def test_top_k_on() -> None:
    assert parse({"top_k": 999}).sampling.top_k == 999


def test_top_p_zero_keeps_the_most_likely_token_alone() -> None:
    assert 0 < parse({"top_p": 0}).sampling.top_p < 1e-3


def test_the_smallest_penalty_is_none_that_float32_rounds_to_nothing() -> None:
    assert parse({"repetition_penalty": 1e-300}).sampling.repetition_penalty > 1.2e-38


@pytest.mark.parametrize(
    ("body", "max_tokens"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": 10**12}, 90),
        ({"max_tokens": 1}, 1),
    ],
)
def test_max_tokens(body: dict[str, Any], max_tokens: int) -> None:
    assert parse(body).sampling.max_tokens == max_tokens


def test_the_endpoints_own_cap_holds() -> None:
    assert parse({"max_tokens": 50}, limits=Limits(100, 1000, 20)).sampling.max_tokens == 20


def test_seeds_of_choices_follow_each_other_and_wrap() -> None:
    plan = parse({"seed": 5, "n": 3})
    assert [plan.sampling_of(i).seed for i in range(3)] == [5, 6, 7]
    assert parse({"seed": -1}).sampling.seed == 2**64 - 1
    assert parse({"seed": -1}).sampling_of(1).seed == 0


def test_stops() -> None:
    assert parse({"stop": "é"}).sampling.stop == ("é".encode(),)
    assert parse({"stop": ["a", "b", "a"]}).sampling.stop == (b"a", b"b")
    assert parse({"stop": [str(i) for i in range(16)]}).sampling.stop[15] == b"15"


@pytest.mark.parametrize(
    ("kind", "body", "count"),
    [
        ("chat", {"logprobs": True}, 0),
        ("chat", {"logprobs": True, "top_logprobs": 20}, 20),
        ("chat", {"logprobs": False, "top_logprobs": 0}, -1),
        ("completions", {"logprobs": 0}, 0),
        ("completions", {"logprobs": 5}, 5),
    ],
)
def test_logprobs(kind: Kind, body: dict[str, Any], count: int) -> None:
    assert parse(body, kind).sampling.logprobs == count


BAD: list[tuple[Kind, dict[str, Any], str]] = [
    ("chat", {"temperature": -0.1}, "temperature"),
    ("chat", {"temperature": 2.1}, "temperature"),
    ("chat", {"temperature": "hot"}, "temperature"),
    ("chat", {"temperature": True}, "temperature"),
    ("chat", {"temperature": math.nan}, "temperature"),
    ("chat", {"temperature": math.inf}, "temperature"),
    ("chat", {"top_p": 1.1}, "top_p"),
    ("chat", {"min_p": -1}, "min_p"),
    ("chat", {"repetition_penalty": 0}, "repetition_penalty"),
    ("chat", {"presence_penalty": 3}, "presence_penalty"),
    ("chat", {"frequency_penalty": -3}, "frequency_penalty"),
    ("chat", {"top_k": -2}, "top_k"),
    ("chat", {"top_k": 1.5}, "top_k"),
    ("chat", {"top_k": True}, "top_k"),
    ("chat", {"seed": "x"}, "seed"),
    ("chat", {"max_tokens": 0}, "max_tokens"),
    ("chat", {"max_completion_tokens": -1}, "max_completion_tokens"),
    ("completions", {"max_tokens": 0}, "max_tokens"),
    ("chat", {"n": 0}, "n"),
    ("chat", {"n": 129}, "n"),
    ("chat", {"stop": ""}, "stop"),
    ("chat", {"stop": ["a", ""]}, "stop"),
    ("chat", {"stop": [1]}, "stop"),
    ("chat", {"stop": ["x"] * 65}, "stop"),
    ("chat", {"stop": "\ud800"}, "stop"),
    ("chat", {"logprobs": True, "top_logprobs": 200_000}, "top_logprobs"),
    ("chat", {"logprobs": True, "top_logprobs": True}, "top_logprobs"),
    ("chat", {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ("chat", {"top_logprobs": 3}, "top_logprobs"),
    ("chat", {"logprobs": 1}, "logprobs"),
    ("completions", {"logprobs": 25}, "logprobs"),
    ("completions", {"logprobs": True}, "logprobs"),
    ("completions", {"echo": 1}, "echo"),
    ("completions", {"echo": True, "logprobs": 21}, "logprobs"),
    ("completions", {"prompt_logprobs": 21}, "prompt_logprobs"),
    ("chat", {"prompt_logprobs": -1}, "prompt_logprobs"),
    ("chat", {"prompt_logprobs": True}, "prompt_logprobs"),
    ("chat", {"min_tokens": -1}, "min_tokens"),
    ("chat", {"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
    ("chat", {"ignore_eos": "yes"}, "ignore_eos"),
    ("chat", {"logit_bias": {"1000": 1}}, "logit_bias.1000"),
    ("chat", {"logit_bias": {"9" * 5_000: 1}}, "logit_bias." + "9" * 5_000),
    ("chat", {"logit_bias": {"-1": 1}}, "logit_bias.-1"),
    ("chat", {"logit_bias": {"5": 101}}, "logit_bias.5"),
    ("chat", {"logit_bias": {"5": "1"}}, "logit_bias.5"),
    ("chat", {"logit_bias": [5]}, "logit_bias"),
    ("chat", {"top_a": 1.5}, "top_a"),
    ("chat", {"response_format": {"type": "json_object"}, "min_tokens": 2}, "min_tokens"),
    ("chat", {"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
    ("chat", {"stop_token_ids": [1000]}, "stop_token_ids"),
    ("chat", {"stop_token_ids": 5}, "stop_token_ids"),
]


@pytest.mark.parametrize(("kind", "body", "param"), BAD, ids=lambda value: str(value)[:40])
def test_a_bad_value_is_a_400_that_names_its_field(kind: Kind, body: dict[str, Any], param: str) -> None:
    with pytest.raises(UpstreamError) as raised:
        parse(body, kind)
    error = raised.value
    assert (error.failure, error.status, error.param) == (FailureClass.REQUEST, 400, param)
    assert error.message.startswith(f"{param}: ")


CANNOT: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "python"}}, "response_format.type"),
    ({"guided_regex": "(?=a)"}, "guided_regex"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"prediction": {"type": "content"}}, "prediction"),
    ({"suffix": "x"}, "suffix"),
    ({"best_of": 2}, "best_of"),
    ({"best_of": 3, "n": 2}, "best_of"),
]


@pytest.mark.parametrize(("body", "param"), CANNOT, ids=lambda value: str(value)[:40])
def test_what_changes_the_answer_and_cannot_be_done_is_left_to_another_endpoint(
    body: dict[str, Any], param: str
) -> None:
    with pytest.raises(UpstreamError) as raised:
        parse(body, "completions")
    assert (raised.value.failure, raised.value.param) == (FailureClass.ENDPOINT_REQUEST, param)
    assert raised.value.status == 400


def test_neutral_values_of_what_cannot_be_done_are_fine() -> None:
    body = {
        "tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "logit_bias": {},
        "modalities": ["text"], "top_a": 0, "best_of": 1, "suffix": "", "unknown_field": 1,
    }  # fmt: skip
    assert parse(body).num_choices == 1
    assert parse({"best_of": 3, "n": 3}, "completions").num_choices == 3


def test_a_prompt_that_fills_the_context_is_told_with_both_lengths() -> None:
    require_length(99, LIMITS, "messages")
    for length in (100, 5000):
        with pytest.raises(UpstreamError, match=rf"{length} tokens.*context length is 100") as raised:
            require_length(length, LIMITS, "messages")
        assert raised.value.error_type == "context_length_exceeded"
        assert raised.value.failure is FailureClass.ENDPOINT_REQUEST
