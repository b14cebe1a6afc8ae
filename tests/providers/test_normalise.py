"""Ends, finishes, choices and usage of a stream, in our words."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.errors import FailureClass
from ionrouter.providers.normalise import StreamNormaliser
from ionrouter.schema.usage import Usage
from tests.support.normalised import ERRORS, HI, STOP, failure, message, read, whole
from tests.support.wire import chunk, usage


@pytest.mark.parametrize(
    ("native", "ours"),
    [
        ("stop", "stop"), ("eos", "stop"), ("end_turn", "stop"), ("stop_sequence", "stop"), ("STOP", "stop"),
        ("length", "length"), ("max_tokens", "length"), ("MAX_TOKENS", "length"), ("model_length", "length"),
        ("tool_calls", "tool_calls"), ("tool_use", "tool_calls"), ("function_call", "tool_calls"),
        ("content_filter", "content_filter"), ("SAFETY", "content_filter"), ("refusal", "content_filter"),
        ("something-new", "stop"),
    ],
)  # fmt: skip
def test_native_finish_reasons_become_one_of_five_and_are_kept(native: str, ours: str) -> None:
    assert read(HI, chunk({}, native)).finishes() == {0: (ours, native)}
    assert (whole(message(finish=native)).choices[0].finish_reason) == ours


@pytest.mark.parametrize(
    "native", ["error", "MALFORMED_FUNCTION_CALL", "abort", "insufficient_system_resource"]
)
def test_a_finish_that_means_failure_is_a_failure(native: str) -> None:
    answer = read(HI, chunk({}, native))
    assert answer.error is not None
    assert answer.error.failure is FailureClass.TRANSIENT
    assert native in answer.error.message
    assert answer.finishes() == {}
    assert failure(message(finish=native)).failure is FailureClass.TRANSIENT


def test_a_stop_after_tool_calls_is_tool_calls() -> None:
    call = {"index": 0, "id": "t", "function": {"name": "f", "arguments": "{}"}}
    assert read(chunk({"tool_calls": [call]}), STOP).finishes() == {0: ("tool_calls", "stop")}
    assert whole(message(None, "STOP", tool_calls=[call])).choices[0].finish_reason == "tool_calls"


def test_a_finish_repeated_on_the_usage_chunk_is_said_once() -> None:
    answer = read(HI, STOP, chunk({}, "stop", usage=usage(5, 1)))
    assert [c.finish_reason for e in answer.chunks for c in e.choices].count("stop") == 1


@pytest.mark.parametrize(
    "late",
    [chunk({}), chunk({"content": ""}), chunk({"role": "assistant"}), chunk({"content": ""}, "length")],
)
def test_the_last_chunk_of_a_choice_is_the_one_with_its_finish(late: Any) -> None:
    answer = read(HI, STOP, late, chunk({}, "stop", usage=usage(5, 1)))
    assert [c.finish_reason for e in answer.chunks for c in e.choices] == [None, "stop"]
    assert answer.usages() == [Usage(5, 1)]


def test_words_after_the_finish_are_not_lost() -> None:
    answer = read(HI, STOP, chunk({"content": " there"}), chunk({"content": ""}))
    assert answer.text() == "hi there" and answer.finishes() == {0: ("stop", "stop")}
    assert len([c for e in answer.chunks for c in e.choices]) == 3


@pytest.mark.parametrize("empty", [None, "", False])
def test_an_empty_finish_reason_is_none_yet(empty: Any) -> None:
    assert read(chunk({"content": "a"}, empty), STOP).finishes() == {0: ("stop", "stop")}


def test_an_end_without_finish_reason_is_a_cut() -> None:
    answer = read(HI, done=False)
    assert answer.error is not None
    assert (answer.error.failure, answer.error.code) == (FailureClass.TRANSIENT, "cut")


def test_text_and_done_without_finish_reason_is_whole() -> None:
    """G06: three events, no finish."""
    assert read(HI, done=True).finishes() == {0: ("stop", None)}


def test_a_finish_without_done_is_whole() -> None:
    assert read(HI, STOP, done=False).error is None


@pytest.mark.parametrize(
    "payloads", [(), (chunk({"role": "assistant", "content": ""}),), (chunk(usage=usage(5, 0)),)]
)
@pytest.mark.parametrize("done", [True, False])
def test_a_stream_with_nothing_in_it_is_a_failure(payloads: tuple[Any, ...], done: bool) -> None:
    """G34."""
    answer = read(*payloads, done=done)
    assert answer.error is not None
    assert (answer.error.failure, answer.error.code) == (FailureClass.TRANSIENT, "empty")


def test_a_lone_stop_is_a_legal_empty_answer() -> None:
    """G34: completion_tokens 0."""
    answer = read(chunk({"role": "assistant", "content": ""}, "stop"), chunk(usage=usage(5, 0)))
    assert answer.error is None
    assert answer.finishes() == {0: ("stop", "stop")}
    assert answer.usages() == [Usage(5, 0)]


@pytest.mark.parametrize("choices", [[], None, {}, "x"])
def test_a_usage_chunk_may_have_any_kind_of_no_choices(choices: Any) -> None:
    """G22."""
    answer = read(HI, STOP, {"id": "c", "choices": choices, "usage": usage(7, 1)})
    assert answer.error is None
    assert answer.usages() == [Usage(7, 1)]


def test_choices_keep_their_index_and_end_apart() -> None:
    """G32."""
    answer = read(
        chunk({"content": "A0"}),
        chunk({"content": "B0"}, index=1),
        chunk({"content": "A1"}),
        chunk({"content": "B1"}, index=1),
        chunk({}, "stop", index=1),
        chunk({}, "length"),
        n=2,
    )
    assert (answer.text(0), answer.text(1)) == ("A0A1", "B0B1")
    assert answer.finishes() == {0: ("length", "length"), 1: ("stop", "stop")}


def test_a_stream_is_finished_when_every_choice_asked_for_is() -> None:
    stream = StreamNormaliser("chat", ERRORS, 2)
    for payload, expected in ((HI, False), (STOP, False), (chunk({}, "stop", index=1), True)):
        stream.chunk(payload)
        assert stream.is_finished is expected


def test_a_missing_index_is_the_position() -> None:
    body = {"choices": [{"delta": {"content": "a"}}, {"delta": {"content": "b"}}]}
    answer = read(body, done=True, n=2)
    assert (answer.text(0), answer.text(1)) == ("a", "b")


def test_a_role_of_null_is_no_role_and_any_other_is_assistant() -> None:
    answer = read(chunk({"role": None, "content": "a"}), chunk({"role": "model", "content": "b"}), STOP)
    assert "role" not in answer.chunks[0].choices[0].delta
    assert answer.chunks[1].choices[0].delta["role"] == "assistant"


@pytest.mark.parametrize("delta", [None, {}, {"content": None}])
def test_an_empty_delta_is_an_empty_delta(delta: Any) -> None:
    body = {"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]}
    assert read(body).chunks[0].choices[0].delta == {}


def test_a_message_in_a_stream_counts_as_a_delta() -> None:
    assert (
        read({"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]}).text() == "a"
    )


def test_envelope_fields_of_the_upstream_do_not_pass() -> None:
    """Together's token_id, Fireworks' perf_metrics and whatever else others add."""
    delta = {"content": "a", "token_id": 5, "provider_specific_fields": {"x": 1}}
    answer = read({**chunk(delta), "perf_metrics": {}, "prompt": []}, STOP)
    assert answer.chunks[0].choices[0].delta == {"content": "a"}


@pytest.mark.parametrize("payload", [[], "text", 3, None, True])
def test_an_event_that_is_no_object_is_malformed(payload: Any) -> None:
    answer = read(payload)
    assert answer.error is not None
    assert answer.error.code == "malformed"


def test_usage_on_the_finish_chunk_and_again_alone_comes_out_once() -> None:
    """G109; null and {} are ignored."""
    final = usage(10, 3)
    answer = read(HI, {**STOP, "usage": final}, chunk(usage=final), chunk(usage=None), chunk(usage={}))
    assert answer.usages() == [Usage(10, 3)]
    assert answer.chunks[-1].choices == ()


def test_running_usage_on_every_chunk_comes_out_once() -> None:
    answer = read(
        {**HI, "usage": usage(10, 1)}, {**HI, "usage": usage(10, 2)}, {**STOP, "usage": usage(10, 2)}
    )
    assert answer.usages() == [Usage(10, 2)]


@pytest.mark.parametrize(
    "trailer",
    [
        {**STOP, "x_groq": {"id": "req_1", "usage": usage(10, 2)}},
        {**STOP, "usage": None, "choices": [{**STOP["choices"][0], "usage": usage(10, 2)}]},
        {**STOP, "usage": {}, "choices": [{**STOP["choices"][0], "usage": usage(10, 2)}]},
        {**STOP, "usage": "none", "choices": {**STOP["choices"][0], "usage": usage(10, 2)}},
    ],
)
def test_usage_beside_its_usual_place_is_read(trailer: dict[str, Any]) -> None:
    """Groq's streams and Moonshot's; whole answers, too."""
    assert read(HI, trailer).usages() == [Usage(10, 2)]
    answer = message()
    answer["choices"][0]["usage"] = usage(10, 2)
    assert whole(answer).usage == Usage(10, 2)
    assert read(HI, trailer, chunk(usage=usage(11, 3))).usages() == [Usage(11, 3)]


@pytest.mark.parametrize("odd", [None, [], "x", 3, {"usage": 3}, {"usage": None}])
def test_what_is_no_usage_there_changes_nothing(odd: Any) -> None:
    assert read(HI, {**STOP, "x_groq": odd}).usages() == []
    assert read(HI, {**STOP, "choices": [{**STOP["choices"][0], "usage": odd}]}).usages() == []


def test_no_usage_is_none_and_not_zero() -> None:
    assert read(HI, STOP).usages() == []
    assert whole(message()).usage is None
