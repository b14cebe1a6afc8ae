"""An upstream's refusal becomes the right failure class, status, words and waiting time."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.providers.http_errors import ErrorReader
from ionrouter.providers.normalise import StreamNormaliser, complete
from ionrouter.redact import Redactor

KEY = "UP-KEY-12345"
ERRORS = ErrorReader("Up", Redactor([KEY]))
GUARD_CPU_S = 5.0  # of process time; a linear scan takes some milliseconds
NOW = 1_800_000_000.0
F = FailureClass


def read(status: int, body: Any = b"", headers: dict[str, str] | None = None) -> UpstreamError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ERRORS.response(status, headers or {}, data, NOW)


def words(status: int, message: str, **extra: Any) -> UpstreamError:
    return read(status, {"error": {"message": message, "type": "invalid_request_error", **extra}})


@pytest.mark.parametrize(
    ("status", "failure", "error_type"),
    [
        (400, F.REQUEST, "invalid_request"), (401, F.DOMAIN, "authentication"),
        (402, F.DOMAIN, "payment_required"), (403, F.DOMAIN, "permission_denied"),
        (404, F.DOMAIN, "not_found"), (405, F.DOMAIN, "not_found"), (408, F.TRANSIENT, "timeout"),
        (409, F.TRANSIENT, "provider_unavailable"), (410, F.DOMAIN, "not_found"),
        (413, F.REQUEST, "payload_too_large"), (418, F.REQUEST, "invalid_request"),
        (422, F.REQUEST, "unprocessable"), (429, F.CAPACITY, "rate_limit_exceeded"),
        (451, F.DOMAIN, "permission_denied"), (500, F.TRANSIENT, "server"),
        (502, F.TRANSIENT, "provider_unavailable"), (503, F.TRANSIENT, "provider_overloaded"),
        (504, F.TRANSIENT, "timeout"), (520, F.TRANSIENT, "provider_unavailable"),
        (524, F.TRANSIENT, "timeout"), (529, F.TRANSIENT, "provider_overloaded"),
        (301, F.DOMAIN, "provider_unavailable"), (307, F.DOMAIN, "provider_unavailable"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("body", [b"", b"words", {"error": {"message": "words"}}, {"detail": "words"}])
def test_the_status_alone_gives_the_class(
    status: int, failure: FailureClass, error_type: str, body: Any
) -> None:
    error = read(status, body)
    assert (error.failure, error.status, error.error_type) == (failure, status, error_type)
    assert error.message
    assert error.provider == "Up"


@pytest.mark.parametrize(
    ("code", "failure", "status"),
    [
        ("server_error", F.TRANSIENT, 500),
        ("rate_limit_exceeded", F.CAPACITY, 429),
        ("context_length_exceeded", F.ENDPOINT_REQUEST, 400),
        ("insufficient_quota", F.CAPACITY, 429),
        ("invalid_api_key", F.DOMAIN, 401),
        ("model_not_found", F.DOMAIN, 404),
        ("content_policy_violation", F.CONTENT, 403),
        ("unsupported_parameter", F.ENDPOINT_REQUEST, 400),
        ("insufficient_credits", F.DOMAIN, 402),
        ("overloaded", F.TRANSIENT, 503),
        (503, F.TRANSIENT, 503),
        ("429", F.CAPACITY, 429),
    ],
)
def test_a_known_code_beats_type_and_status(code: Any, failure: FailureClass, status: int) -> None:
    """G51: `type` says invalid_request_error each time; in a stream and as an HTTP 400."""
    body = {"type": "invalid_request_error", "code": code, "message": "connection lost half-way"}
    for error in (ERRORS.payload(body), read(400, {"error": body})):
        assert (error.failure, error.status) == (failure, status)


@pytest.mark.parametrize(
    ("kind", "code", "failure"),
    [
        ("rate_limit_error", "context_length_exceeded", F.ENDPOINT_REQUEST),
        ("authentication_error", "server_error", F.TRANSIENT),
        ("overloaded_error", "invalid_api_key", F.DOMAIN),
        ("not_found_error", 503, F.TRANSIENT),
    ],
)
def test_a_known_code_beats_a_known_type(kind: str, code: Any, failure: FailureClass) -> None:
    assert ERRORS.payload({"type": kind, "code": code, "message": "m"}).failure is failure


def test_the_status_of_the_upstream_stays_when_the_code_says_the_same() -> None:
    assert read(503, {"error": {"code": "server_error", "message": "x"}}).status == 503


@pytest.mark.parametrize(
    ("kind", "status", "failure"),
    [
        ("rate_limit_error", 400, F.CAPACITY),
        ("overloaded_error", 529, F.TRANSIENT),
        ("authentication_error", 400, F.DOMAIN),
        ("not_found_error", 404, F.DOMAIN),
        ("exceed_context_size_error", 400, F.ENDPOINT_REQUEST),
        # Put on everything by several servers: the status says more.
        ("invalid_request_error", 401, F.DOMAIN),
        ("invalid_request_error", 404, F.DOMAIN),
        ("invalid_request_error", 429, F.CAPACITY),
        ("invalid_request_error", 500, F.TRANSIENT),
        ("invalid_request_error", 503, F.TRANSIENT),
        ("invalid_request_error", 400, F.REQUEST),
    ],
)
def test_a_known_type_beats_the_status_and_a_catch_all_does_not(
    kind: str, status: int, failure: FailureClass
) -> None:
    assert read(status, {"error": {"type": kind, "message": "x", "code": None}}).failure is failure


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."),
        (400, "Input is too long for requested model: prompt is too long: 210000 tokens > 200000 maximum"),
        (400, "the request exceeds the available context size. try increasing the context size"),
        (400, "The decoder prompt (length 9000) is longer than the maximum model length of 8192."),
        (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8192. Given: 9000"),
        (400, "The input token count (9000) exceeds the maximum number of tokens allowed (8192)."),
        (400, "Please reduce the length of the messages or completion."),
        (413, "The prompt is too long: 9000, model maximum context length: 8191"),
        (400, "context too long: context window is 8192 tokens"),
    ],
)
def test_a_prompt_too_long_is_recognised_in_many_wordings(status: int, message: str) -> None:
    error = words(status, message)
    assert (error.failure, error.error_type) == (F.ENDPOINT_REQUEST, "context_length_exceeded")
    assert error.message == message


@pytest.mark.parametrize(
    ("status", "message", "failure"),
    [
        (400, "Unsupported parameter: 'max_tokens' is not supported with this model.", F.ENDPOINT_REQUEST),
        (400, "top_k: Extra inputs are not permitted", F.ENDPOINT_REQUEST),
        (400, "registry.example/library/m does not support tools", F.ENDPOINT_REQUEST),
        (400, "Unrecognized request argument supplied: min_p", F.ENDPOINT_REQUEST),
        (400, "Conversation roles must alternate user/assistant/user/assistant/...", F.ENDPOINT_REQUEST),
        (400, '"auto" tool choice requires --enable-auto-tool-choice', F.ENDPOINT_REQUEST),
        (400, "acme/x is not a valid model ID", F.DOMAIN),
        (400, "The model `x` does not exist or you do not have access to it.", F.DOMAIN),
        (404, "Unable to access model x. Please visit the model list", F.DOMAIN),
        (400, "API key not valid. Please pass a valid API key.", F.DOMAIN),
        (400, "Incorrect API key provided: xai-0123456789", F.DOMAIN),
        (400, "Your credit balance is too low to access the API.", F.DOMAIN),
        (412, "Account acme is suspended, possibly due to reaching the spending limit", F.DOMAIN),
        (403, "Your prompt was flagged by our moderation system", F.CONTENT),
        (400, "Your request was rejected as a result of our safety system.", F.CONTENT),
        (400, "temperature must be <= 2", F.REQUEST),
        (400, "messages: at least one message is required", F.REQUEST),
    ],
)
def test_words_decide_where_codes_are_silent(status: int, message: str, failure: FailureClass) -> None:
    assert words(status, message, code=None).failure is failure


@pytest.mark.parametrize("status", [429, 503])
def test_words_do_not_overrule_a_telling_status(status: int) -> None:
    assert words(status, "tokens per minute exceeds the limit, context window, flagged by x").status == status


def test_a_client_error_keeps_its_words_and_param() -> None:
    """G52."""
    error = words(400, "temperature must be <= 2", param="temperature", code=None)
    assert (error.failure, error.status, error.message, error.param) == (
        F.REQUEST, 400, "temperature must be <= 2", "temperature",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "m"}}, "m"),
        ({"error": "m"}, "m"),
        ({"message": "m"}, "m"),
        ({"detail": "m"}, "m"),
        ({"error_message": "m"}, "m"),
        ({"errors": [{"code": 7003, "message": "m"}]}, "m"),
        ([{"error": {"code": 400, "message": "m", "status": "INVALID_ARGUMENT"}}], "m"),
        ({"error": {"error": {"message": "m"}}}, "m"),
        ({"error": {"message": {"detail": "m"}}}, "m"),
        ({"detail": {"error": {"message": "m"}}}, "m"),
        ({"object": "error", "message": "m"}, "m"),
        (b"m", "m"),
        (b'"m"', "m"),
        (b'{"error": {"message": "m', '{"error": {"message": "m'),
    ],
)
def test_the_words_are_found_in_any_shape(body: Any, message: str) -> None:
    assert read(400, body).message == message


def test_a_validation_list_names_the_field() -> None:
    detail = [{"loc": ["body", "messages", 0, "role"], "msg": "Field required", "type": "missing"}]
    error = read(422, {"detail": detail})
    assert (error.failure, error.param, error.message) == (F.REQUEST, "messages.0.role", "Field required")


def test_an_extra_field_in_a_validation_list_is_the_endpoints_refusal() -> None:
    """G136: extra_forbidden never benches the route."""
    detail = [{"loc": ["body", "max_completion_tokens"], "msg": "Extra inputs", "type": "extra_forbidden"}]
    assert read(400, {"detail": detail}).failure is F.ENDPOINT_REQUEST


@pytest.mark.parametrize(
    "page",
    [
        b"<html><h1>502 Bad Gateway</h1></html>",
        b"<!DOCTYPE html><html><head><title>502 Bad&nbsp;Gateway</title><style>p{}</style></head>x",
        b"\n <html><body><h1>502 <b>Bad</b> Gateway</h1><hr>nginx</body></html>",
    ],
)
def test_a_page_gives_its_title_and_no_markup(page: bytes) -> None:
    """G148."""
    error = read(502, page, {"Content-Type": "text/html"})
    assert error.message == "502 Bad Gateway"
    assert error.failure is F.TRANSIENT


def test_a_page_of_any_length_stays_short() -> None:
    assert len(read(503, b"<html>" + b"<p>word</p>" * 5000).message) <= 120


def test_an_empty_body_still_has_words() -> None:
    assert read(503).message == "the upstream answered 503 Service Unavailable and gave no reason"
    assert read(599).message == "the upstream answered 599 and gave no reason"


@pytest.mark.parametrize("nothing", ["None", "null", None, "", "  "])
def test_no_part_is_the_text_none(nothing: Any) -> None:
    """G150."""
    error = read(400, {"error": {"message": "m", "type": nothing, "param": nothing, "code": nothing}})
    assert (error.native_type, error.param, error.code) == (None, None, None)


def test_a_numeric_code_is_text_in_code_and_a_number_in_status() -> None:
    error = ERRORS.payload({"message": "m", "code": 429})
    assert (error.code, error.status) == ("429", 429)


@pytest.mark.parametrize("code", ["²", "9" * 5000, float("nan"), float("inf"), 10**400, [], {"a": 1}])
def test_a_code_that_is_no_number_decides_nothing(code: Any) -> None:
    error = ERRORS.payload({"code": code, "message": "m"})
    assert (error.failure, error.status, error.message) == (FailureClass.TRANSIENT, 502, "m")


def test_the_reason_inside_an_openrouter_error_is_shown() -> None:
    raw = json.dumps({"error": {"message": "engine is warming up"}})
    body = {"error": {"message": "Provider returned error", "code": 503, "metadata": {"raw": raw}}}
    assert read(503, body).message == "Provider returned error: engine is warming up"


def test_secrets_leave_neither_in_words_nor_in_raw() -> None:
    error = read(401, {"error": {"message": f"bad key {KEY}, sk-abcdef123456, Bearer xyz12345"}})
    for secret in (KEY, "sk-abcdef123456", "xyz12345"):
        assert secret not in error.message
        assert error.raw is not None
        assert secret not in error.raw


def test_raw_is_at_most_2_kb() -> None:
    error = read(500, b"x" * 100_000)
    assert error.raw is not None
    assert len(error.raw.encode()) <= 2048
    assert len(error.message.encode()) <= 2048


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"error": {"message": "slow down", "code": "rate_limit_exceeded"}},
        {"error": {"message": "moved", "type": "overloaded_error"}},
        {"error": {"message": "moved", "code": 429}},
        {"error": {"message": "maximum context length is 5 tokens", "type": "invalid_request_error"}},
    ],
)
def test_a_redirect_is_a_fault_of_configuration_whatever_else_it_says(body: Any) -> None:
    told = {"Location": "https://user:secret1@elsewhere.example/"}
    error = read(302, json.dumps(body).encode(), told)
    assert (error.failure, error.status) == (F.DOMAIN, 302)
    assert "elsewhere.example" in error.message
    assert "secret1" not in error.message


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": "1e9"}, 3600.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": ""}, None),
        ({"Retry-After": "Wed, 21 Oct 2099 07:28:00 GMT"}, 3600.0),
        ({"Retry-After": "Fri, 15 Jan 2027 08:00:10 GMT"}, 10.0),
        ({"Retry-After": "Fri, 15 Jan 2027 07:59:00 GMT"}, 0.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({}, None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_read_in_every_form(
    headers: dict[str, str], expected: float | None, status: int
) -> None:
    """G56, G58: on the error itself, never an exception."""
    assert read(status, {"error": {"message": "m"}}, headers).retry_after_s == expected


def test_a_wait_named_in_the_body_counts_when_no_header_does() -> None:
    body = {"error": {"code": 429, "message": "m", "details": [{"retryDelay": "17s"}]}}
    assert read(429, body).retry_after_s == 17.0
    assert read(429, body, {"Retry-After": "3"}).retry_after_s == 3.0


@pytest.mark.parametrize(
    "body",
    [b"\xff\xfe\x00", b"[[[[", b"{}", b"[]", b"null", b"3", b'{"error": 3}', b'{"error": [null]}', b"[1,2]"],
)
def test_junk_raises_nothing(body: bytes) -> None:
    assert read(500, body).failure is F.TRANSIENT


@pytest.mark.parametrize(
    "unit",
    ["x", "a.b-", "eyJ-", "://", "<style", "<title>", "password'", "Bearer ", "model ", "sk-", "tokens "],
)
def test_hostile_text_of_any_length_costs_no_quadratic_time(unit: str) -> None:
    """64 KB is what is read of an error; a quadratic pattern needs many seconds of CPU for it."""
    body = (unit * (64 * 1024 // len(unit))).encode()
    started = time.process_time()
    for content_type in ("text/plain", "text/html"):
        read(400, body, {"Content-Type": content_type})
    assert time.process_time() - started < GUARD_CPU_S


def test_nesting_beyond_reason_raises_nothing() -> None:
    nested: Any = "deep"
    for _ in range(600):
        nested = {"error": [nested]}
    assert ERRORS.payload(nested).failure is F.TRANSIENT
    assert read(500, b'{"error":' * 5000).failure is F.TRANSIENT


def test_a_fault_of_transport_has_no_status_of_the_upstreams() -> None:
    fault = ERRORS.fault("cut", f"cut with {KEY}")
    assert (fault.failure, fault.status, fault.code) == (F.TRANSIENT, None, "cut")
    assert KEY not in fault.message


@pytest.mark.parametrize("where", ["message", "code", "type", "param"])
@pytest.mark.parametrize("status", [400, 401, 500])
def test_a_key_is_redacted_wherever_the_upstream_puts_it(status: int, where: str) -> None:
    echo = f"Bearer {KEY} \x1b[2J" + "x" * 5000
    body = {"error": {"message": "no", "code": "c", "type": "t", "param": "p", where: echo}}
    for error in (read(status, body), ERRORS.payload(body["error"])):
        told = [error.message, error.code, error.native_type, error.param, error.raw]
        assert all(text is not None and len(text) <= 2048 for text in told)
        assert not [text for text in told if text is not None and (KEY in text or "\x1b" in text)]


@pytest.mark.parametrize("num_before", range(60, 130, 7))
def test_no_half_of_a_key_is_left_where_words_are_cut(num_before: int) -> None:
    """Redacted after the cut, the rest of it would look like nothing."""
    page = f"<html><title>{'x' * (num_before - 1)} {KEY} and more</title></html>".encode()
    told = [ERRORS.response(502, {"Content-Type": "text/html"}, page, 0.0).message]
    stream = StreamNormaliser("chat", ERRORS)
    for ask in (stream.chunk, lambda payload: complete("chat", payload, ERRORS)):
        with pytest.raises(UpstreamError) as raised:
            ask(["x" * (num_before - 40), KEY])
        told.append(raised.value.message)
    assert not any(KEY[:4] in words for words in told), told
