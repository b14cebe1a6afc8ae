"""Go there, and on to the next candidate on failure: the second of the two middle pages.

Before commit any fault moves on as its class says; after commit there is no silent switch. Each endpoint at
most once, each within its own deadline. How one attempt runs is attempt.py's business, how two run beside
each other race.py's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

from ionrouter.balancing.plan import Plan
from ionrouter.balancing.verdict import all_failed, nobody_left
from ionrouter.departures import Clients, Departures
from ionrouter.errand import Parts, Trace
from ionrouter.errors import StreamBroken, UpstreamError
from ionrouter.race import patience_with, raced
from ionrouter.routing.table import RoutingSettings
from ionrouter.schema.events import Batch, Taker
from ionrouter.schema.request import InferenceRequest


async def dispatch(
    plan: Plan,
    request: InferenceRequest,
    clients: Clients,
    settings: RoutingSettings,
    parts: Parts,
    trace: Trace,
    taker: Taker | None = None,
    afford: Callable[[float], Awaitable[bool]] | None = None,
) -> AsyncIterator[Batch]:
    """Yield Committed, then Chunks or one Complete, then Finished, in batches as they came.

    Raises RequestError or AllAttemptsFailed before commit, StreamBroken after. `trace` holds every attempt,
    also when the caller closes the iterator early. After commit `taker` may be given batches instead.
    Behind failed attempts that did cost so many USD `afford` is asked whether there is money for another.
    """
    departures = Departures(plan, request, clients, settings, parts, trace, taker)
    walk = departures.walk
    while (departure := departures.next()) is not None:
        after_s = patience_with(departure, departures)
        alone = departure.attempt.batches
        batches = alone() if after_s is None else raced(departure, after_s, departures)
        try:
            async with aclosing(batches) as source:  # type: ignore[type-var]
                async for batch in source:
                    yield batch
            return
        except UpstreamError as error:
            if trace.committed is not None:
                raise StreamBroken(error) from error
            walk.fail(departure.candidate, error)
        paid = trace.cost().total if afford is not None and walk.rest else 0.0
        if afford is not None and paid > 0 and not await afford(paid):
            break
    now = parts.clock()
    raise all_failed(walk.errors, plan.exclusions, now) if walk.errors else nobody_left(plan, request, now)
