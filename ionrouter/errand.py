"""What an attempt is given and what a request leaves behind: values between router, dispatch and attempt."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from ionrouter.balancing.health import HealthBook
from ionrouter.balancing.plan import Candidate
from ionrouter.providers.base import ProviderClient, UpstreamRequest
from ionrouter.routing.table import Endpoint
from ionrouter.schema.events import AttemptRecord, Committed
from ionrouter.schema.request import InferenceRequest
from ionrouter.schema.usage import Cost, Usage


@dataclass(frozen=True, slots=True)
class Parts:
    """What every attempt works with; time and chance come in here."""

    book: HealthBook
    clock: Callable[[], float]  # monotonic seconds
    wall: Callable[[], float]  # seconds since the epoch
    rng: random.Random


@dataclass(slots=True)
class Trace:
    """What became of one request so far; its record is made from this at the end, however it ends."""

    attempts: list[AttemptRecord] = field(default_factory=list)
    committed: Committed | None = None
    endpoint: Endpoint | None = None  # whose answer was committed
    ttft_s: float | None = None  # arrival to commit
    usage: Usage = field(default_factory=Usage)
    is_usage_estimated: bool = False

    def cost(self) -> Cost:
        """Add up all attempts."""
        return Cost(sum(a.cost.prompt for a in self.attempts), sum(a.cost.completion for a in self.attempts))


@dataclass(frozen=True, slots=True)
class Errand:
    """What one attempt is to do."""

    request: InferenceRequest
    upstream: UpstreamRequest
    candidate: Candidate
    client: ProviderClient
    number: int  # 1-based
    reason: str
    dropped: tuple[str, ...]
    deadline: float  # of the whole request, on the clock
    may_switch_model: bool  # a refusal of content may go on to another model
