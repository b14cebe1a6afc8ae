"""Who a caller is, by key: bearer token or x-api-key, inference and management keys disjoint.

A wrong key costs a look-up in memory, never a write, and is never echoed.
"""

from __future__ import annotations

import enum
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from aiohttp import hdrs, web

from ionrouter.addresses import subscriber_of
from ionrouter.errors import RequestError
from ionrouter.store.keys import ApiKey, KeyStore


class Access(enum.Enum):
    """What a route asks of its caller."""

    OPEN = "open"  # nothing, ever: health
    CATALOGUE = "catalogue"  # nothing, but a key that is shown must be right
    INFERENCE = "inference"  # an inference key, while keys are on
    ANY_KEY = "any_key"  # either kind, while keys are on
    MANAGEMENT = "management"  # a management key, even while keys are off


MISSING = "no API key: send it as `Authorization: Bearer <key>` or `x-api-key: <key>`"
WRONG = "this API key is not valid"
DISABLED = "this API key is disabled"
EXPIRED = "this API key has expired"


def presented_key(request: web.Request) -> str | None:
    """Read the credential; a bare Authorization value without "Bearer" is none."""
    scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return request.headers.get("x-api-key") or None


def authenticate(
    request: web.Request, access: Access, keys: KeyStore | None, *, asks_for_keys: bool
) -> ApiKey | None:
    """Return the caller's key, None where none is asked for; raises RequestError 401 or 403."""
    if access is Access.OPEN or (not asks_for_keys and access is not Access.MANAGEMENT):
        return None
    plain = presented_key(request)
    if plain is None:
        if access is Access.CATALOGUE:
            return None
        raise _unauthorized(MISSING)
    return usable(keys.find(plain) if keys is not None else None, access)


def usable(key: ApiKey | None, access: Access) -> ApiKey:
    """Let a key pass that was found; raises RequestError 401 or 403."""
    if key is None:
        raise _unauthorized(WRONG)
    if key.is_disabled:
        raise _unauthorized(DISABLED)
    if key.has_expired(time.time()):
        raise _unauthorized(EXPIRED)
    _check_kind(key, access)
    return key


def _check_kind(key: ApiKey, access: Access) -> None:
    if access in (Access.INFERENCE, Access.MANAGEMENT) and key.kind != access.value:
        raise RequestError(
            f"this is a key for {key.kind}; this route needs one for {access.value}",
            status=403,
            error_type="permission_denied",
        )


def _unauthorized(message: str) -> RequestError:
    return RequestError(
        message, status=401, error_type="authentication", headers={"WWW-Authenticate": "Bearer"}
    )


MAX_ADDRESSES = 10_000


@dataclass(slots=True)
class WrongKeys:
    """Counts wrong keys per address (IPv6: per /64) in a leaking bucket: `per_minute` drain away each minute.

    It bounds what guessing and misconfigured clients cost; a right key from the same address still works,
    so that one bad program behind a shared address cannot lock the others out. 256 random bits need no more.
    """

    per_minute: int
    _levels: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)  # level, at

    def add(self, address: str, now: float) -> float | None:
        """Count one; returns the seconds to wait if the address is over its limit, else None."""
        address, rate = subscriber_of(address), self.per_minute / 60.0
        level, at = self._levels.pop(address, (0.0, now))
        level = max(0.0, level - (now - at) * rate) + 1.0
        self._levels[address] = (min(level, self.per_minute + 1.0), now)
        if len(self._levels) > MAX_ADDRESSES:
            self._levels.popitem(last=False)
        over = level - self.per_minute
        return over / rate if over > 0 else None
