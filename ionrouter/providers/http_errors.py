"""ErrorReader: an upstream's refusal or fault as an UpstreamError with the class that decides what is next.

A known `code` beats `type` beats the HTTP status (docs/routing.md, "Failure classes"), but for redirects;
words are read only where neither settles it. Knows nothing of sockets; one object a provider, one redactor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.providers.error_body import ErrorBody, read_body, read_error
from ionrouter.providers.error_tables import (
    BY_CODE,
    BY_STATUS,
    BY_TYPE,
    ERROR_TYPES,
    WEAK_TYPES,
    Verdict,
    by_status,
)
from ionrouter.providers.error_words import BY_WORDS
from ionrouter.redact import Redactor
from ionrouter.schema import json
from ionrouter.schema.retry_after import parse_retry_after

_MAX_WORDS = 4096  # what an error means is said at its beginning
MAX_NAME_BYTES, MAX_WORD_BYTES = 256, 512  # of an answer's ids, of an error's code: kept with every request
OWN_LIMIT_S = 1.0  # after which a place may have come free


class ErrorReader:
    """Reads the errors of one provider. `redact` sees every text of the upstream before it leaves.

    But for what is an answer: that is not changed.
    """

    def __init__(self, provider: str, redact: Redactor) -> None:
        self.provider = provider
        self.redact = redact

    def response(
        self, status: int, headers: Mapping[str, str], body: bytes, now_wall: float
    ) -> UpstreamError:
        """Read an HTTP answer that is no success; `now_wall` (epoch seconds) is for dates in Retry-After."""
        content_type = next((v for k, v in headers.items() if k.lower() == "content-type"), "")
        error = read_body(body, content_type)
        if 300 <= status < 400:
            error = replace(error, message=f"redirected to {_location(headers)}, redirects are not followed")
        retry_after_s = parse_retry_after(headers, now_wall)
        return self._build(error, status, body.decode("utf-8", "replace"), retry_after_s)

    def payload(self, error: Any, status: int | None = None) -> UpstreamError:
        """Read an error object that came inside an answer of status 200."""
        return self._build(read_error(error), status, _raw(error), None)

    def fault(self, code: str, message: str, *, status: int = 502, raw: str | None = None) -> UpstreamError:
        """Make the error of a transport fault or a malformed answer: always F1."""
        return UpstreamError(
            failure=FailureClass.TRANSIENT,
            message=self.redact(message),
            status=None if status == 502 else status,
            code=code,
            error_type=ERROR_TYPES.get(status, "provider_unavailable"),
            provider=self.provider,
            raw=None if raw is None else self.redact(raw),
        )

    def own_limit(self, code: str, message: str) -> UpstreamError:
        """Make the error of what this server has no room for."""
        return UpstreamError(
            failure=FailureClass.OWN_LIMIT,
            message=self.redact(message),
            code=code,
            error_type="provider_overloaded",
            provider=self.provider,
            retry_after_s=OWN_LIMIT_S,
        )

    def refused(self, code: str, message: str) -> UpstreamError:
        """Make the error of an endpoint that cannot be used as configured: F2."""
        return UpstreamError(
            failure=FailureClass.DOMAIN,
            message=self.redact(message),
            code=code,
            error_type="provider_unavailable",
            provider=self.provider,
        )

    def _build(
        self, error: ErrorBody, status: int | None, raw: str, retry_after_s: float | None
    ) -> UpstreamError:
        verdict = judge(error, status)
        return UpstreamError(
            failure=verdict.failure,
            message=self.redact(error.message) or _plain_message(verdict.status),
            status=verdict.status,
            code=self._word(error.code),
            error_type=verdict.error_type or ERROR_TYPES.get(verdict.status, "unmapped"),
            param=self._word(error.param),
            provider=self.provider,
            retry_after_s=error.retry_after_s if retry_after_s is None else retry_after_s,
            raw=self.redact(raw) or None,
            native_type=self._word(error.type),
        )

    def name(self, value: Any) -> str | None:
        """Read what an answer calls itself, its model or its tier: a text without our keys, if it is any."""
        return self.redact.name(value, MAX_NAME_BYTES) if isinstance(value, str) and value else None

    def _word(self, text: str | None) -> str | None:
        """Redact a field that should be one word; upstreams put whole texts there too."""
        return None if text is None else self.redact(text, MAX_WORD_BYTES)


def judge(error: ErrorBody, status: int | None) -> Verdict:
    """Decide class and status: known code, numeric code, known type, words, HTTP status; 502 if nothing.

    Of a redirect the status alone: whoever says more in its body is not whom we meant to ask.
    """
    if status is not None and 300 <= status < 400:
        return by_status(status)
    known = BY_CODE.get(_name(error.code)) or _by_number(error, status)
    known = known or BY_TYPE.get(_name(error.type))
    if known is None or known.is_vague:
        known = _by_words(error, status if known is None else known.status) or known
    if known is None and (status is None or status < 300):
        known = WEAK_TYPES.get(_name(error.type), Verdict(FailureClass.TRANSIENT, 502))
    if known is None:
        return by_status(status or 502)
    return _with_http_status(known, status)


def _by_number(error: ErrorBody, status: int | None) -> Verdict | None:
    """A numeric code is a status: it beats the type and the HTTP status, but says no more than they do."""
    if error.number is None or not 400 <= error.number <= 599 or error.number == status:
        return None
    return replace(by_status(error.number), is_vague=True)


def _by_words(error: ErrorBody, status: int | None) -> Verdict | None:
    for statuses, words, verdict in BY_WORDS:
        if (status is None or status < 300 or status in statuses) and words.search(
            error.message[:_MAX_WORDS]
        ):
            return verdict
    return None


def _with_http_status(verdict: Verdict, status: int | None) -> Verdict:
    """Keep the status the upstream sent when it says the same thing, such as 503 beside `server_error`."""
    if status in BY_STATUS and BY_STATUS[status].failure is verdict.failure and not verdict.is_vague:
        return replace(verdict, status=status)
    return verdict


def _raw(error: Any) -> str:
    try:
        return error if isinstance(error, str) else json.dumps(error).decode("utf-8", "replace")
    except (RecursionError, ValueError):
        return ""  # nested beyond reason; the words are what counts


def _name(text: str | None) -> str:
    return (text or "").strip().lower().replace(" ", "_").replace("-", "_")


def _location(headers: Mapping[str, str]) -> str:
    return next((v for k, v in headers.items() if k.lower() == "location"), "nowhere")


def _plain_message(status: int) -> str:
    try:
        return f"the upstream answered {status} {HTTPStatus(status).phrase} and gave no reason"
    except ValueError:
        return f"the upstream answered {status} and gave no reason"
