"""Which endpoint a session's last good answer came from, while its prompt cache is likely warm.

Remembers; whether to follow is decided here too, purely. Bounded; calls no clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from ionrouter.balancing.assumed_price import is_unpriced
from ionrouter.balancing.cost import score
from ionrouter.balancing.outlook import Size, cached_price, queue_s
from ionrouter.balancing.plan import Candidate
from ionrouter.routing.table import Endpoint
from ionrouter.schema.json import dumps
from ionrouter.schema.load import EngineLoad
from ionrouter.schema.request import InferenceRequest
from ionrouter.schema.usage import Usage

TTL_S = 600.0  # idle; the client's cache_control.ttl beats it
MAX_QUEUE_S = 2.0  # a local engine busier than this has lost more than its cache saves
MAX_SCORE_RATIO = 3.0  # to the best candidate, with everything cached
MAX_SESSIONS = 65_536
_INSTRUCTIONS = ("system", "developer")
_TTLS = {"5m": 300.0, "1h": 3600.0}

Key = tuple[str | None, str, str]  # the caller's key, the model asked for, the session


@dataclass(slots=True)
class Affinity:
    """Session -> endpoint identity; the longest unused go first when there are too many."""

    _entries: dict[Key, tuple[str, float]] = field(default_factory=dict)  # -> identity, when it expires

    def find(self, request: InferenceRequest, now: float) -> str | None:
        """Find the identity of the endpoint that served this session last, unless that is too long ago."""
        key = _key(request) if self._entries else None
        identity, expires_at = self._entries.get(key, ("", now)) if key else ("", now)
        return identity if now < expires_at else None

    def remember(
        self, request: InferenceRequest, endpoint: Endpoint, now: float, usage: Usage | None = None
    ) -> None:
        """Note a success; an endpoint that caches nothing is not worth coming back to.

        A conversation that nobody named begins once an answer's `usage` showed that the prompt cache works.
        """
        if not (self._entries or request.session_id or _has_cached(usage)):
            return  # nobody stays anywhere: a conversation's name is not worth its hash
        key = _key(request)
        if key is None or not (request.session_id or key in self._entries or _has_cached(usage)):
            return
        self._entries.pop(key, None)
        if caches(endpoint):
            self._entries[key] = (endpoint.identity, now + _ttl_s(request))
        if len(self._entries) > MAX_SESSIONS:
            del self._entries[next(iter(self._entries))]


def caches(endpoint: Endpoint) -> bool:
    """Ask whether a repeated prompt is cheaper or quicker at this endpoint."""
    price = endpoint.price
    is_cheaper = price.cache_read is not None and price.cache_read < price.prompt
    return is_cheaper or endpoint.caches or endpoint.provider.type == "ion"


def is_worth_staying(
    sticky: Candidate, best: Candidate, size: Size, value_of_time: float, load: EngineLoad | None
) -> bool:
    """Ask whether a session should stay although others may be better: not if it is overloaded."""
    if load is not None and queue_s(load) > MAX_QUEUE_S:
        return False
    outlook = sticky.outlook
    if not is_unpriced(sticky.endpoint):
        outlook = replace(outlook, price=cached_price(sticky.endpoint, size))
    return score(outlook, value_of_time).total <= MAX_SCORE_RATIO * best.score.total


def _key(request: InferenceRequest) -> Key | None:
    session = request.session_id or conversation_of(request.body)
    return (request.key_id, request.model, session) if session else None


def conversation_of(body: Mapping[str, Any]) -> str | None:
    """Name a conversation by its first system message and its first other one, which later turns repeat."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return None
    told = [message for message in messages if isinstance(message, dict)]
    system = next((message for message in told if message.get("role") in _INSTRUCTIONS), None)
    first = next((message for message in told if message.get("role") not in _INSTRUCTIONS), None)
    if first is None:
        return None
    text = dumps([system and system.get("content"), first.get("content")])
    return f"conversation {hashlib.blake2b(text, digest_size=16).hexdigest()}"


def _has_cached(usage: Usage | None) -> bool:
    return usage is not None and (usage.cached_tokens > 0 or usage.cache_write_tokens > 0)


def _ttl_s(request: InferenceRequest) -> float:
    control = request.gateway_fields.get("cache_control")
    ttl = control.get("ttl") if isinstance(control, dict) else None
    return _TTLS.get(ttl, TTL_S) if isinstance(ttl, str) else TTL_S
