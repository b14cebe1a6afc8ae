"""Errors by fault, and nothing else.

IonrouterError
├── ConfigError            ours, at start: routes.yaml, settings, weights; lists every problem
├── RequestError           the client's; no fallback will help
│   └── AvailabilityError  the client's wishes leave no endpoint (says which filter removed what)
├── UpstreamError          one endpoint's; another endpoint may help
└── AllAttemptsFailed      every candidate was tried; status and message follow the last telling failure
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


class FailureClass(enum.Enum):
    """What a failure says about where to go next (docs/routing.md, "Failure classes")."""

    TRANSIENT = "transient"  # F1: connection, 5xx, deadline, malformed answer
    DOMAIN = "domain"  # F2: the account or provider refuses us: 401, 402, 403, unknown model, redirect
    CAPACITY = "capacity"  # F3: 429, quota
    REQUEST = "request"  # F4: anyone would refuse this request
    ENDPOINT_REQUEST = "endpoint_request"  # F5: this endpoint refuses it, another may not
    CONTENT = "content"  # F6: moderation
    OWN_LIMIT = "own_limit"  # this server has no file or connection left for it: not the endpoint's fault
    CLIENT_LEFT = "client_left"  # F7
    STOPPED = "stopped"  # cut by this server's own stop, when the time to drain was over
    LOST_RACE = "lost_race"  # cancelled: another attempt for the same request answered first; nobody's fault


# The failures of uptime: not an endpoint's limits, bad requests, refused content, callers who left.
DOWN = frozenset({FailureClass.TRANSIENT.value, FailureClass.DOMAIN.value})


class IonrouterError(Exception):
    """Root of everything this package raises on purpose."""


def printable(text: str) -> str:
    """Write out what would steer a terminal (`\\x1b`, `\\u202e`); new lines stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault in a file: `models.m.endpoints[0].provider` at line 12."""

    path: str
    message: str
    line: int | None = None
    severity: str = "error"  # error | warning

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line is not None else ""
        return printable(f"{where}{self.path}: {self.message}" if self.path else f"{where}{self.message}")


class ConfigError(IonrouterError):
    """Our own configuration is wrong. All problems at once."""

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        self.problems: tuple[Problem, ...] = (
            (Problem("", problems),) if isinstance(problems, str) else tuple(problems)
        )
        super().__init__("\n".join(str(p) for p in self.problems))


@dataclass(eq=False)
class RequestError(IonrouterError):
    """The client's request cannot be served as it stands.

    `status` is the HTTP status and `error.code`; `error_type` is OpenRouter's vocabulary
    (`invalid_request`, `context_length_exceeded`, `not_found`, ...); `param` names the field.
    """

    message: str
    status: int = 400
    error_type: str = "invalid_request"
    param: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False)
class AvailabilityError(RequestError):
    """No endpoint is left. `availability` is OpenRouter's object: code, retryable, excluded_by, ..."""

    status: int = 404
    error_type: str = "not_found"
    availability: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class UpstreamError(IonrouterError):
    """One attempt at one endpoint failed.

    `status` is what the upstream said (None when it said nothing), `message` is redacted already,
    `retry_after_s` is in seconds from now, `raw` is at most 2 KB of redacted upstream text.
    """

    failure: FailureClass
    message: str
    status: int | None = None
    code: str | None = None
    error_type: str | None = None
    param: str | None = None
    provider: str = ""
    retry_after_s: float | None = None
    raw: str | None = None
    native_type: str | None = None  # the upstream's own `error.type`

    def __str__(self) -> str:
        return self.message


class AllAttemptsFailed(IonrouterError):
    """Every candidate failed before commit. `errors` pairs endpoint ids with failures, in order tried."""

    def __init__(
        self,
        message: str,
        status: int,
        errors: Sequence[tuple[str, UpstreamError]],
        *,
        retry_after_s: float | None = None,
        error_type: str = "provider_unavailable",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.errors = tuple(errors)
        self.retry_after_s = retry_after_s
        self.error_type = error_type
        self.param = param


class StreamBroken(IonrouterError):
    """The endpoint failed after commit: the client gets one error chunk and no [DONE]."""

    def __init__(self, cause: UpstreamError) -> None:
        super().__init__(str(cause))
        self.cause = cause
