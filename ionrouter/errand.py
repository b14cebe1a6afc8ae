"""What an attempt is given and what a request leaves behind: values between router, dispatch and attempt."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from msgspec import Struct

from ionrouter.alarm import Deadlines
from ionrouter.balancing.assumed_price import is_unpriced
from ionrouter.balancing.circuit_breaker import CircuitBreaker
from ionrouter.balancing.cost import price_at_tier
from ionrouter.balancing.health import HealthBook
from ionrouter.balancing.hedging import HedgeBook
from ionrouter.balancing.verdict import INTERNAL
from ionrouter.errors import FailureClass, RequestError, UpstreamError
from ionrouter.providers.base import ProviderClient, UpstreamRequest
from ionrouter.routing.table import Endpoint, ModelRoute, Price
from ionrouter.schema.events import AttemptRecord, AttemptRole, Committed, SentBody, Taker
from ionrouter.schema.request import InferenceRequest
from ionrouter.schema.tally import Tally
from ionrouter.schema.tool_calls import count_calls
from ionrouter.schema.usage import Cost, Usage

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What every attempt works with; time and chance come in here."""

    book: HealthBook
    clock: Callable[[], float]  # monotonic seconds
    wall: Callable[[], float]  # seconds since the epoch
    rng: random.Random
    hedges: HedgeBook = field(default_factory=HedgeBook)
    deadlines: Deadlines = field(default_factory=Deadlines)


class Trace(Struct):
    """What became of one request so far; its record is made from this at the end, however it ends."""

    attempts: list[AttemptRecord] = []  # each its own
    committed: Committed | None = None
    endpoint: Endpoint | None = None  # whose answer was committed
    ttft_s: float | None = None  # arrival to commit
    usage: Usage = Usage()
    is_usage_estimated: bool = False
    strategy: str = ""  # of its plan
    sent: list[SentBody] | None = None  # by its attempts; None: nobody wants to see it
    stop: str | None = None  # why this server ended the request before its time; None: it did not

    def note_end(self, ended: BaseException) -> None:
        """Note whether it was this server that ended the request from outside; else its client left."""
        if (cause := stop_in(ended)) is not None:
            self.stop = str(cause)

    def cost(self) -> Cost:
        """Add up all attempts."""
        if len(self.attempts) == 1:
            return self.attempts[0].cost
        return Cost(sum(a.cost.prompt for a in self.attempts), sum(a.cost.completion for a in self.attempts))


class Errand(Struct, frozen=True):
    """What one attempt is to do."""

    request: InferenceRequest
    upstream: UpstreamRequest
    endpoint: Endpoint
    route: ModelRoute
    client: ProviderClient
    number: int  # 1-based
    reason: str
    dropped: tuple[str, ...]
    deadline: float  # of the whole request, on the clock
    may_switch_model: bool = False  # a refusal of content may go on to another model
    is_exploring: bool = False
    role: AttemptRole = "main"
    taker: Taker | None = None  # of whoever is served

    def price(self, told_tier: str | None) -> Price:
        """By the level of service that the answer tells, else the one that was asked for."""
        return price_at_tier(self.endpoint.price, told_tier or self.upstream.body.get("service_tier"))

    def record(
        self,
        tally: Tally,
        failure: UpstreamError | None,
        usage: Usage | None,
        cost: Cost,
        *,
        is_estimated: bool,
        started_at: float,
        duration_s: float,
        ttft_s: float | None,
        after_commit: bool,
    ) -> AttemptRecord:
        """What it comes to. `started_at` is wall clock."""
        num_calls = num_bad = 0
        if tally.calls and failure is None:
            num_calls, num_bad = count_calls(tally.calls.values(), self.request.body.get("tools"))
        return AttemptRecord(
            endpoint_id=self.endpoint.id,
            model_id=self.route.id,
            provider_name=self.endpoint.provider.name,
            started_at=started_at,
            stream=self.upstream.stream,
            duration_s=duration_s,
            ttft_s=ttft_s,
            after_commit=after_commit,
            status=200 if failure is None else failure.status,
            failure=failure.failure if failure else None,
            message=failure.message if failure else "",
            usage=usage,
            cost=cost,
            max_gap_s=tally.max_gap_s,
            is_usage_estimated=is_estimated,
            prompt_tokens=self.request.prompt_tokens,
            finish_reason=tally.finish_reason,
            native_finish_reason=tally.native_finish_reason,
            upstream_id=tally.upstream_id,
            service_tier=tally.service_tier,
            upstream_model=tally.upstream_model,
            is_unpriced=is_unpriced(self.endpoint),
            queue_s=self.upstream.queue.seconds,
            num_tool_calls=num_calls,
            num_bad_tool_calls=num_bad,
            subject=self.endpoint.subject,
            role=self.role,
        )


def lost_race() -> UpstreamError:
    """How an attempt ends that was not needed any longer."""
    return UpstreamError(FailureClass.LOST_RACE, "another attempt answered first", status=499)


def client_left() -> UpstreamError:
    """How an attempt ends that nobody waits for any longer."""
    return UpstreamError(FailureClass.CLIENT_LEFT, "the client left", status=499)


def stopped(why: str) -> UpstreamError:
    """How an attempt ends that nobody waits for any longer because this server stops."""
    return UpstreamError(FailureClass.STOPPED, why, status=503)


def fault_of_ours(error: Exception, errand: Errand) -> UpstreamError:
    """A provider client broke its contract: another endpoint may help, but this one is not to blame."""
    log.exception("provider_client_failed", request=errand.request.id, endpoint=errand.endpoint.id)
    return UpstreamError(
        FailureClass.TRANSIENT,
        f"internal error ({type(error).__name__})",
        code=INTERNAL,
        provider=errand.endpoint.provider.name,
    )


def stop_in(ended: BaseException) -> RequestError | None:
    """The error with which this server ended what was cancelled, if it did."""
    return next((cause for cause in ended.args if isinstance(cause, RequestError)), None)


def tell_failed(errand: Errand, failure: UpstreamError) -> None:
    """Log a failure that somebody may want to know of."""
    log.info(
        "attempt_failed",
        request=errand.request.id,
        endpoint=errand.endpoint.id,
        role=errand.role,
        failure=failure.failure.value,
        status=failure.status,
        code=failure.code,
        error=failure.message[:300],
    )


def tell_refused(errand: Errand, failure: UpstreamError) -> None:
    """Alert: a key or a balance is at fault."""
    log.error(
        "endpoint_refused_us", endpoint=errand.endpoint.id, status=failure.status, error=failure.message
    )


def tell_opened(errand: Errand, breaker: CircuitBreaker, now: float) -> None:
    """Log that an endpoint gets no traffic for a while."""
    log.warning(
        "breaker_opened",
        endpoint=errand.endpoint.id,
        for_s=round(breaker.until - now, 1),
        num_openings=breaker.num_openings,
        cause=breaker.cause,
    )


def tell_closed(errand: Errand) -> None:
    """Log that it works again."""
    log.info("breaker_closed", endpoint=errand.endpoint.id, role=errand.role)


def tell_unpriced(errand: Errand) -> None:
    """Warn: what this costs is not known, and reported as 0."""
    log.warning("endpoint_unpriced", endpoint=errand.endpoint.id, model=errand.route.id)
