"""Which endpoint a session's last good answer came from, while its prompt cache is likely warm.

Remembers; whether to follow is decided here too, purely. Bounded; calls no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ionrouter.balancing.assumed_price import is_unpriced
from ionrouter.balancing.cost import score
from ionrouter.balancing.outlook import Size, cached_price, queue_s
from ionrouter.balancing.plan import Candidate
from ionrouter.routing.table import Endpoint
from ionrouter.schema.load import EngineLoad
from ionrouter.schema.request import InferenceRequest

TTL_S = 600.0  # idle; the client's cache_control.ttl beats it
MAX_QUEUE_S = 2.0  # a local engine busier than this has lost more than its cache saves
MAX_SCORE_RATIO = 3.0  # to the best candidate, with everything cached
MAX_SESSIONS = 65_536
_TTLS = {"5m": 300.0, "1h": 3600.0}

Key = tuple[str | None, str, str]  # the caller's key, the model asked for, the session


@dataclass(slots=True)
class Affinity:
    """Session -> endpoint identity; the longest unused go first when there are too many."""

    _entries: dict[Key, tuple[str, float]] = field(default_factory=dict)  # -> identity, when it expires

    def find(self, request: InferenceRequest, now: float) -> str | None:
        """Find the identity of the endpoint that served this session last, unless that is too long ago."""
        key = _key(request)
        identity, expires_at = self._entries.get(key, ("", now)) if key else ("", now)
        return identity if now < expires_at else None

    def remember(self, request: InferenceRequest, endpoint: Endpoint, now: float) -> None:
        """Note a success; an endpoint that caches nothing is not worth coming back to."""
        key = _key(request)
        if key is None:
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
    if not request.session_id:
        return None
    return (request.key_id, request.model, request.session_id)


def _ttl_s(request: InferenceRequest) -> float:
    control = request.gateway_fields.get("cache_control")
    ttl = control.get("ttl") if isinstance(control, dict) else None
    return _TTLS.get(ttl, TTL_S) if isinstance(ttl, str) else TTL_S
