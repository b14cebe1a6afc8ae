"""litellm's exceptions as ours: one table, and what the worker tells of an exception. Never imports litellm.

A test walks litellm's exception classes and fails on one that is missing here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.providers.http_errors import OWN_LIMIT_S, ErrorReader
from ionrouter.providers.http_faults import NoFileLeft, is_own_limit
from ionrouter.schema import json

_MAX_BODY_CHARS = 64 * 1024
_MAX_CHAIN = 8
# What litellm puts before the upstream's own words, possibly several times.
_PREFIX = re.compile(
    r"^(?:litellm\.\w+:\s*|\w*(?:Error|Exception):\s*|Timeout Error:\s*|\w+(?:Exception|Error)(?: \w+)? - )+"
)
_AFTERWORD = re.compile(
    r"\s*(?:\.? Handle with `litellm\.|Original exception: |Traceback \(most recent|To drop these, "
    r"|LiteLLM Retried: |Received Model)"
    r".*$",
    re.S,
)
_NO_PROVIDER = "LLM Provider NOT provided"  # comes as a plain BadRequestError, before anything is sent
_HTTP = "HTTPStatusError"  # httpx's, for an answer that is no success
_CATCH_ALL = "APIConnectionError"  # what litellm makes of any exception that it does not know
_TO_PROVIDER = ("transform_request", "map_openai_params")
_FROM_PROVIDER = ("transform_response", "to_openai_model_response")
_WITHOUT_STATUS = frozenset(("connect_error", "disconnected", "cut", "malformed", "no_file", "no_connection"))
_HEADERS = ("retry-after", "retry-after-ms", "content-type", "location")


@dataclass(frozen=True, slots=True)
class Row:
    """A class's meaning. `is_final`: the class says more than status and body; else they are judged first."""

    failure: FailureClass
    status: int
    error_type: str
    is_final: bool = False
    code: str | None = None
    words: str | None = None  # ours, where the exception's would show addresses and objects


def _transport(code: str, words: str, status: int = 502, error_type: str = "provider_unavailable") -> Row:
    return Row(FailureClass.TRANSIENT, status, error_type, is_final=True, code=code, words=words)


def _own_limit(code: str, words: str) -> Row:
    return Row(FailureClass.OWN_LIMIT, 503, "provider_overloaded", is_final=True, code=code, words=words)


_T, _D, _R = FailureClass.TRANSIENT, FailureClass.DOMAIN, FailureClass.REQUEST
_C, _E, _M = FailureClass.CAPACITY, FailureClass.ENDPOINT_REQUEST, FailureClass.CONTENT

NOT_FETCHED = "address_not_fetched"  # `code` where litellm would have had to fetch; nothing was sent
_NOT_FETCHED = Row(
    _E,
    400,
    "image_download_failed",
    is_final=True,
    code=NOT_FETCHED,
    words="this provider takes images and files as data: URLs alone; addresses are not fetched here",
)
TABLE: dict[str, Row] = {
    "AuthenticationError": Row(_D, 401, "authentication"),
    "CallerCredentialAuthenticationError": Row(_D, 401, "authentication"),
    "PermissionDeniedError": Row(_D, 403, "permission_denied"),
    "PaymentRequiredError": Row(_D, 402, "payment_required", is_final=True),
    "NotFoundError": Row(_D, 404, "not_found"),
    "LiteLLMUnknownProvider": Row(
        _D, 404, "not_found", is_final=True, code="config", words="litellm does not know this provider"
    ),
    "ModelNotMappedError": Row(_D, 404, "not_found", is_final=True),
    "RateLimitError": Row(_C, 429, "rate_limit_exceeded"),
    "CallerCredentialRateLimitError": Row(_C, 429, "rate_limit_exceeded"),
    "BudgetExceededError": Row(_C, 429, "rate_limit_exceeded", is_final=True),
    "BadRequestError": Row(_R, 400, "invalid_request"),
    "InvalidRequestError": Row(_R, 400, "invalid_request"),
    "UnprocessableEntityError": Row(_R, 422, "unprocessable"),
    "AnswerNotTranslated": _transport("malformed", "the upstream's answer lacks what it should have"),
    "RequestNotTranslated": Row(_E, 400, "invalid_request", is_final=True),
    "ImageFetchError": _NOT_FETCHED,
    "SSRFError": _NOT_FETCHED,
    "VectorStoreSearchError": Row(_R, 400, "invalid_request", is_final=True),
    "MalformedRequestFieldError": Row(_R, 400, "invalid_request", is_final=True),
    "ContextWindowExceededError": Row(
        _E, 400, "context_length_exceeded", is_final=True, code="context_length_exceeded"
    ),
    "UnsupportedParamsError": Row(_E, 400, "invalid_request", is_final=True, code="unsupported_parameter"),
    "UnsupportedEndpointError": Row(_E, 400, "invalid_request", is_final=True),
    "EndpointNotSupportedByModelError": Row(_E, 400, "invalid_request", is_final=True),
    "ContentPolicyViolationError": Row(_M, 403, "content_policy_violation", is_final=True),
    "RejectedRequestError": Row(_M, 403, "content_policy_violation", is_final=True),
    "GuardrailRaisedException": Row(_M, 403, "content_policy_violation", is_final=True),
    "GuardrailInterventionNormalStringError": Row(_M, 403, "content_policy_violation", is_final=True),
    "BlockedPiiEntityError": Row(_M, 403, "content_policy_violation", is_final=True),
    "ModifyResponseException": Row(_M, 403, "content_policy_violation", is_final=True),
    "SensitiveDataRouteException": Row(_M, 403, "content_policy_violation", is_final=True),
    "Timeout": Row(_T, 504, "timeout", is_final=True, code="timeout"),
    "APITimeoutError": Row(_T, 504, "timeout", is_final=True, code="timeout"),
    "InternalServerError": Row(_T, 500, "server"),
    "BadGatewayError": Row(_T, 502, "provider_unavailable"),
    "ServiceUnavailableError": Row(_T, 503, "provider_overloaded"),
    "MidStreamFallbackError": Row(_T, 502, "provider_unavailable"),
    "APIConnectionError": Row(_T, 502, "provider_unavailable", is_final=True, code="disconnected"),
    "APIResponseValidationError": Row(_T, 502, "provider_unavailable", is_final=True, code="malformed"),
    "JSONSchemaValidationError": Row(_T, 502, "provider_unavailable", is_final=True, code="malformed"),
    "MockException": Row(_T, 500, "server"),
    "APIStatusError": Row(_T, 502, "provider_unavailable"),
    "APIError": Row(_T, 502, "provider_unavailable"),
    "OpenAIError": Row(_T, 502, "provider_unavailable"),
    # Not litellm's: what its transports raise, by class name.
    "ConnectError": _transport("connect_error", "cannot connect to the upstream"),
    "ConnectTimeout": _transport("connect_error", "connecting to the upstream took too long"),
    "ClientConnectorError": _transport("connect_error", "cannot connect to the upstream"),
    "ConnectionTimeoutError": _transport("connect_error", "connecting to the upstream took too long"),
    "TimeoutException": _transport("timeout", "the upstream took too long", 504, "timeout"),
    "JSONDecodeError": _transport("malformed", "the upstream sent what is not JSON"),
    "ClientPayloadError": _transport("cut", "the upstream's answer was cut off"),
    "ServerDisconnectedError": _transport("disconnected", "the upstream closed without an answer"),
    "TransportError": _transport("cut", "the connection to the upstream broke"),
    "ClientError": _transport("cut", "the connection to the upstream failed"),
    "TimeoutError": _transport("timeout", "the upstream took too long", 504, "timeout"),
    "OSError": _transport("cut", "the connection to the upstream broke"),
    "PoolTimeout": _own_limit("no_connection", "all of this server's connections to upstreams are in use"),
    "NoFileLeft": _own_limit("no_file", "this server can open no connection to the upstream"),
    # A fault of litellm itself or of its worker.
    "Exception": Row(_T, 502, "provider_unavailable"),
}
# Seen anywhere in the chain of causes, they say more than what litellm made of them.
_ROOT_CAUSES = frozenset(
    (
        *("ConnectError", "ConnectTimeout", "ClientConnectorError", "ConnectionTimeoutError"),
        "PoolTimeout",
        *("ClientPayloadError", "ReadError", "RemoteProtocolError", "ReadTimeout"),
        *("ImageFetchError", "SSRFError"),
    )
)


def describe(error: BaseException) -> dict[str, Any]:
    """Say in plain JSON what an exception is; runs in the worker, and judges and redacts nothing."""
    chain = list(_chain(error))
    root = next((e for e in chain if _ROOT_CAUSES & set(_names(e))), error)
    statuses = [s for e in chain if (s := _status(e)) is not None]
    # litellm goes by the words of a redirect's body, too; what was answered is at the end of the chain.
    status = next((s for s in statuses if _is_redirect(s)), statuses[0] if statuses else None)
    if status == 400:  # what litellm says of refusals that it knows no class for, such as 413
        answered = [s for e in chain if _HTTP in _names(e) and (s := _status(e)) is not None]
        status = next((s for s in answered if 400 < s < 500), status)
    headers = next((h for e in chain if (h := _headers(e))), {})
    body = next((b for e in chain if isinstance(b := getattr(e, "body", None), dict)), None)
    text = _text(error) if body is None else json.dumps({"error": body.get("error", body)}).decode()
    classes = _names(root)
    if any(isinstance(e, NoFileLeft) or is_own_limit(e) for e in chain):
        classes.insert(0, "NoFileLeft")
    elif text.startswith(_NO_PROVIDER):
        classes.insert(0, "LiteLLMUnknownProvider")
    elif classes[0] == _CATCH_ALL and _arose_in(_TO_PROVIDER, chain):
        classes.insert(0, "RequestNotTranslated")  # and nothing was sent
        text = f"litellm cannot put the request into the provider's words: {text}"
    elif status == 422 and _arose_in(_FROM_PROVIDER, chain):
        classes.insert(0, "AnswerNotTranslated")  # 422 is what litellm says then
    return {"classes": classes, "status": status, "text": text, "headers": headers}


def read_litellm_error(told: Mapping[str, Any], errors: ErrorReader, now_wall: float) -> UpstreamError:
    """Make the UpstreamError of a described exception; status and body judge where the class does not."""
    row = next(TABLE[name] for name in (*told["classes"], "Exception") if name in TABLE)
    status = told.get("status")
    is_final = row.is_final and not _is_redirect(status)
    is_telling = isinstance(status, int) and 300 <= status <= 599 and not is_final
    headers = {str(name): str(value) for name, value in (told.get("headers") or {}).items()}
    body = str(told.get("text") or "").encode("utf-8", "replace")
    judged = errors.response(int(status or 0) if is_telling else row.status, headers, body, now_wall)
    if not is_final:
        return judged
    return replace(
        judged,
        failure=row.failure,
        status=_told_status(row),
        error_type=row.error_type,
        code=row.code or judged.code,
        message=row.words or judged.message,
        retry_after_s=OWN_LIMIT_S if row.failure is FailureClass.OWN_LIMIT else judged.retry_after_s,
    )


def _arose_in(steps: tuple[str, ...], chain: list[BaseException]) -> bool:
    """Ask whether a step of litellm's was under way: its functions have the step's name, with affixes."""
    for error in chain:
        trace = error.__traceback__
        while trace is not None:
            if any(step in trace.tb_frame.f_code.co_name for step in steps):
                return True
            trace = trace.tb_next
    return False


def _told_status(row: Row) -> int | None:
    """Connection faults have no status of the upstream's."""
    return None if row.code in _WITHOUT_STATUS else row.status


def _chain(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if current is None:
            return
        yield current
        current = current.__cause__ or current.__context__ or getattr(current, "original_exception", None)


def _names(error: BaseException) -> list[str]:
    return [cls.__name__ for cls in type(error).__mro__]


def _status(error: BaseException) -> int | None:
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) and not isinstance(status, bool) else None


def _is_redirect(status: Any) -> bool:
    return isinstance(status, int) and 300 <= status < 400


def _headers(error: BaseException) -> dict[str, str]:
    """litellm keeps the upstream's headers on the exception, but not in one place."""
    response = getattr(error, "response", None)
    for held in (
        getattr(error, "litellm_response_headers", None),
        getattr(error, "headers", None),
        getattr(response, "headers", None),
    ):
        if held is not None and hasattr(held, "items"):
            found = {str(k).lower(): str(v) for k, v in held.items() if str(k).lower() in _HEADERS}
            if found:
                return found
    return {}


def _text(error: BaseException) -> str:
    """The upstream's own words: litellm's prefixes and afterwords taken off."""
    message = getattr(error, "message", None)
    text = message if isinstance(message, str) and message else str(error) or type(error).__name__
    words = _AFTERWORD.sub("", _PREFIX.sub("", text[:_MAX_BODY_CHARS])).strip()
    return _from_repr(words) if words.startswith(("b'", 'b"')) else words


def _from_repr(words: str) -> str:
    """Some handlers print the body's bytes as Python would."""
    try:
        data = ast.literal_eval(words)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return words
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else words
