"""Retry-After in all the forms upstreams send it. Says how long; whether to wait is decided elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

MAX_RETRY_AFTER_S = 3600.0  # a date in 2099 or "1e9" must not bench an endpoint for years


def parse_retry_after(headers: Mapping[str, str], now_wall: float) -> float | None:
    """Read `retry-after-ms`, else `Retry-After` (RFC 9110, 10.2.3), as seconds from `now_wall`.

    None when absent, negative or not understood. A date in the past is 0.
    """
    lowered = {name.lower(): value for name, value in headers.items()}
    milliseconds = _number(lowered.get("retry-after-ms"))
    if milliseconds is not None:
        return _bounded(milliseconds / 1000)
    text = lowered.get("retry-after")
    seconds = _number(text)
    if seconds is not None:
        return _bounded(seconds)
    date = _date(text)
    return None if date is None else _bounded(max(date - now_wall, 0.0))


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").strip())
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _date(text: str | None) -> float | None:
    try:
        moment = parsedate_to_datetime((text or "").strip())
    except ValueError:
        return None
    # RFC 9110 dates are in GMT; a date without a zone is read the same way.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _bounded(seconds: float) -> float | None:
    return None if seconds < 0 else min(seconds, MAX_RETRY_AFTER_S)
