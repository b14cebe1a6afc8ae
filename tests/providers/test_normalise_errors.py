"""An error inside an answer of status 200 is an error, with its class, status and words."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.errors import FailureClass
from tests.support.normalised import HI, STOP, failure, message, read, whole


@pytest.mark.parametrize(
    ("payload", "expected", "status"),
    [
        ({"error": {"code": 502, "message": "limit reached"}, "choices": []}, FailureClass.TRANSIENT, 502),
        ({"error": {"message": "insufficient_quota", "code": 429}}, FailureClass.CAPACITY, 429),
        ({"error": {"message": "overloaded", "code": 503}}, FailureClass.TRANSIENT, 503),
        ({"error": "text only"}, FailureClass.TRANSIENT, 502),
        ({"choices": [{"index": 0, "delta": {}, "error": {"code": 502, "message": "x"}}]},
         FailureClass.TRANSIENT, 502),
        ({"object": "error", "message": "bad", "code": 400, "type": "BadRequestError"},
         FailureClass.REQUEST, 400),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "x"}},
         FailureClass.TRANSIENT, 503),
        ({"detail": "Internal Server Error"}, FailureClass.TRANSIENT, 502),
        ({"message": "no", "code": "rate_limit_exceeded"}, FailureClass.CAPACITY, 429),
    ],
)  # fmt: skip
def test_an_error_in_a_stream_of_status_200_is_raised(
    payload: dict[str, Any], expected: FailureClass, status: int
) -> None:
    """G25, G38: with an integer status, before any text and after."""
    for answer in (read(payload), read(HI, payload)):
        assert answer.error is not None
        assert (answer.error.failure, answer.error.status) == (expected, status)
        assert answer.finishes() == {}
    assert failure({**payload}).failure is expected


@pytest.mark.parametrize("nothing", [None, {}, "", []])
def test_an_empty_error_field_is_no_error(nothing: Any) -> None:
    assert read({**HI, "error": nothing}, STOP).error is None


def test_all_parts_of_an_error_in_a_stream_are_kept() -> None:
    """G36."""
    error = {
        "message": "context too long: 9000 > 8192", "type": "invalid_request_error", "param": "messages",
        "code": "context_length_exceeded",
    }  # fmt: skip
    raised = read(HI, {"error": error}).error
    assert raised is not None
    assert (raised.message, raised.native_type, raised.param, raised.code) == (
        error["message"], error["type"], error["param"], error["code"],
    )  # fmt: skip
    assert (raised.failure, raised.status) == (FailureClass.ENDPOINT_REQUEST, 400)


def test_a_200_body_with_an_error_and_no_choices_is_that_error() -> None:
    """G27."""
    body = {
        "error": {"code": 429, "message": "provider failed", "metadata": {"raw": "rate limited"}},
        "user_id": "u",
    }
    raised = failure(body)
    assert (raised.failure, raised.status) == (FailureClass.CAPACITY, 429)
    assert raised.message == "provider failed: rate limited"


def test_a_partial_answer_with_an_error_in_its_choice_is_that_error() -> None:
    body = message("half", "error")
    body["choices"][0]["error"] = {"code": 502, "message": "upstream lost"}
    assert failure(body).message == "upstream lost"


@pytest.mark.parametrize("finish", ["stop", "x" * 1_000_000])
def test_a_flood_where_a_word_belongs_is_not_kept_whole(finish: str) -> None:
    """Such words are kept with every request, in memory and in the database."""
    flood, reason = "x" * 1_000_000, f"{' ' * 1_000_000}{finish} "
    body = {"id": flood, "model": flood, "service_tier": flood, "error": None}
    answer = whole({**message("hi", reason), **body})
    streamed = read({**HI, **body}, {**STOP, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    assert streamed.error is None
    for said in (answer, streamed.chunks[-1]):
        for word in (said.upstream_id, said.upstream_model, said.service_tier):
            assert word is not None and len(word) <= 256
        assert len(said.choices[0].native_finish_reason or "") <= 2048
    told = failure({"error": {"code": flood, "type": flood, "param": flood, "message": flood}})
    assert len(told.message) + len(told.raw or "") <= 4096
    assert max(len(word or "") for word in (told.code, told.param, told.native_type)) <= 512
