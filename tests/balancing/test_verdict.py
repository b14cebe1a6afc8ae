"""What a client is told."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.balancing.plan import Plan
from ionrouter.balancing.screen import Exclusion
from ionrouter.balancing.verdict import all_failed, client_error_type, client_status, nobody_left
from ionrouter.errors import AvailabilityError, FailureClass, UpstreamError
from tests.support.routes import endpoint, request, route

F = FailureClass


def error(failure: FailureClass, **more: Any) -> UpstreamError:
    return UpstreamError(failure, more.pop("message", "why"), **more)


@pytest.mark.parametrize(
    ("failure", "more", "status", "error_type"),
    [
        (F.TRANSIENT, {"status": 500}, 502, "provider_unavailable"),
        (F.TRANSIENT, {"status": 502}, 502, "provider_unavailable"),
        (F.TRANSIENT, {"code": "connect_error"}, 502, "provider_unavailable"),
        (F.TRANSIENT, {"status": 503}, 503, "provider_overloaded"),
        (F.TRANSIENT, {"status": 529}, 503, "provider_overloaded"),
        (F.TRANSIENT, {"code": "timeout", "error_type": "timeout"}, 504, "timeout"),
        (F.TRANSIENT, {"status": 408}, 504, "timeout"),
        (F.TRANSIENT, {"status": 504}, 504, "timeout"),
        (F.TRANSIENT, {"code": "internal"}, 500, "server"),
        (F.DOMAIN, {"status": 401}, 502, "provider_unavailable"),
        (F.DOMAIN, {"status": 402}, 502, "provider_unavailable"),
        (F.CAPACITY, {"status": 429}, 429, "rate_limit_exceeded"),
        (F.CAPACITY, {"status": 402}, 429, "rate_limit_exceeded"),
        (F.REQUEST, {"status": 400}, 400, "invalid_request"),
        (F.REQUEST, {"status": 413}, 413, "payload_too_large"),
        (F.REQUEST, {"status": 422}, 422, "unprocessable"),
        (F.REQUEST, {}, 400, "invalid_request"),
        (F.ENDPOINT_REQUEST, {"error_type": "context_length_exceeded"}, 400, "context_length_exceeded"),
        (F.CONTENT, {"status": 403}, 403, "permission_denied"),
        (F.CLIENT_LEFT, {}, 499, "invalid_request"),
        (F.OWN_LIMIT, {}, 503, "provider_overloaded"),
        (F.STOPPED, {}, 503, "provider_overloaded"),
    ],
)
def test_each_failure_has_one_status(
    failure: FailureClass, more: dict[str, Any], status: int, error_type: str
) -> None:
    assert (client_status(error(failure, **more)), client_error_type(error(failure, **more))) == (
        status,
        error_type,
    )


def test_the_last_failure_speaks_with_its_message_and_param() -> None:
    failed = all_failed(
        [("a", error(F.TRANSIENT)), ("b", error(F.REQUEST, status=400, message="no", param="temperature"))]
    )
    assert (failed.status, failed.message, failed.param) == (400, "no", "temperature")
    assert [name for name, _ in failed.errors] == ["a", "b"]


def test_the_soonest_retry_after_of_all_is_told() -> None:
    """G63"""
    failed = all_failed(
        [("a", error(F.CAPACITY, retry_after_s=20.0)), ("b", error(F.CAPACITY, retry_after_s=45.0))]
    )
    assert (failed.status, failed.retry_after_s) == (429, 20.0)


def left_out(end: str, filter: str, until: float | None, *, is_domain: bool = False) -> Exclusion:
    e = endpoint(end)
    return Exclusion(e, route("m", e), filter, "because", until, is_domain)


@pytest.mark.parametrize(
    ("excluded", "retry_after_s"),
    [
        ((left_out("b", "retry_after", 105.0),), 5.0),  # it is back before the one that was asked
        ((left_out("b", "retry_after", 190.0),), 60.0),
        ((left_out("b", "breaker_open", 99.0),), 0.0),  # somebody's trial is under way
        ((left_out("b", "breaker_open", 105.0, is_domain=True),), 60.0),
        ((left_out("b", "loading", None), left_out("c", "max_price", None)), 60.0),
    ],
)
def test_whom_nobody_asked_may_be_back_first(excluded: tuple[Exclusion, ...], retry_after_s: float) -> None:
    failed = all_failed([("a", error(F.CAPACITY, retry_after_s=60.0))], excluded, now=100.0)
    assert (failed.status, failed.retry_after_s) == (429, retry_after_s)


def test_beside_a_limit_a_refused_account_promises_nothing() -> None:
    """After the first request, too: it was 429 with 60 s as well."""
    broken, limited = (
        left_out("a", "breaker_open", 110.0, is_domain=True),
        left_out("b", "retry_after", 160.0),
    )
    m = broken.route
    got: Any = nobody_left(Plan((m,), "expected-cost", (), (broken, limited)), request(), now=100.0)
    assert (got.status, got.headers["Retry-After"]) == (429, "60")
    alone: Any = nobody_left(Plan((m,), "expected-cost", (), (broken,)), request(), now=100.0)
    assert (alone.status, alone.headers["Retry-After"]) == (503, "10")


def test_a_refused_account_says_less_than_any_other_failure() -> None:
    failed = all_failed([("a", error(F.CAPACITY, retry_after_s=3.0)), ("b", error(F.DOMAIN, status=401))])
    assert (failed.status, failed.retry_after_s) == (429, 3.0)


def test_a_refused_account_alone_is_a_502_without_its_words() -> None:
    failed = all_failed([("a", error(F.DOMAIN, status=401, message="Invalid API key sk-xxx"))])
    assert failed.status == 502
    assert "sk-xxx" not in failed.message


def refuse(*filters: str, until: float | None = None, reason: str = "because") -> Any:
    ends = [endpoint(f"e{i}") for i in range(len(filters))]
    m = route("m", *ends)
    out = tuple(Exclusion(e, m, name, reason, until) for e, name in zip(ends, filters, strict=True))
    return nobody_left(Plan((m,), "expected-cost", (), out), request(), now=100.0)


def test_a_redirect_is_told_as_one_without_where_it_points() -> None:
    redirect = UpstreamError(FailureClass.DOMAIN, "redirected to https://elsewhere.example", status=308)
    answer = all_failed([("a", redirect)])
    assert answer.status == 502
    assert "redirect" in answer.message and "base_url" in answer.message
    assert "elsewhere" not in answer.message and "account" not in answer.message


def test_limits_alone_are_a_429_that_says_when_to_come_back() -> None:
    """G63"""
    got = refuse("retry_after", "retry_after", until=119.5)
    assert (got.status, got.headers["Retry-After"]) == (429, "20")
    assert got.availability["code"] == "capacity_exhausted" and got.availability["retryable"] is True
    assert "e0" not in got.message


def test_open_breakers_are_a_503_that_says_when_to_come_back() -> None:
    got = refuse("breaker_open", "retry_after", until=104.0)
    assert (got.status, got.headers["Retry-After"]) == (503, "4")
    assert got.availability["code"] == "temporarily_unavailable"


def test_a_loading_model_is_a_503_without_a_promise() -> None:
    got = refuse("loading", "disabled")
    assert (got.status, dict(got.headers)) == (503, {})


@pytest.mark.parametrize(
    ("filters", "code", "excluded_by"),
    [
        (("disabled",), "no_endpoints", None),
        (("max_price", "quantization"), "constraint_filtered", ["max_price", "quantization"]),
        (("data_policy:zdr", "disabled"), "privacy_restricted", ["data_policy:zdr"]),
        (("allowed_providers",), "constraint_filtered", ["allowed_providers"]),
        ((), "no_endpoints", None),
    ],
)
def test_wishes_that_nobody_meets_are_a_404_that_names_the_filters(
    filters: tuple[str, ...], code: str, excluded_by: list[str] | None
) -> None:
    got = refuse(*filters)
    assert isinstance(got, AvailabilityError)
    assert got.status == 404 and got.availability["code"] == code
    assert got.availability.get("excluded_by") == excluded_by


def test_what_no_endpoint_can_do_is_a_400_that_names_the_field() -> None:
    got = refuse("capability", reason="does not support tools")
    assert (got.status, got.param) == (400, "tools")


def test_a_prompt_longer_than_every_context_is_a_400_with_the_lengths() -> None:
    reason = "about 9000 prompt tokens are over the context length 8192"
    got = refuse("context_length", "disabled", reason=reason)
    assert (got.status, got.error_type) == (400, "context_length_exceeded")
    assert "9000" in got.message and "8192" in got.message


def test_an_unavailable_model_says_which_filter_removed_which_endpoint() -> None:
    got = refuse(*["disabled"] * 8, reason="disabled: SOME_API_KEY is unset")
    assert isinstance(got, AvailabilityError)
    assert "e0 (disabled: SOME_API_KEY is unset); e1" in got.message and got.message.endswith("and 2 more")
    assert [e["endpoint"] for e in got.availability["excluded"]] == [f"e{i}" for i in range(8)]
    assert got.availability["excluded"][7] == {
        "endpoint": "e7",
        "filter": "disabled",
        "reason": "disabled: SOME_API_KEY is unset",
    }
