"""A hedged attempt: when the first has not answered for long, a second starts; the first to commit serves.

Until then each leg runs in a task of its own; from then on the winner's events pass straight on. Whether a
second may start is asked of the walk and of the model's budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import structlog

from ionrouter.balancing.hedging import patience_s
from ionrouter.balancing.outlook import streams_upstream
from ionrouter.balancing.walk import still_allows
from ionrouter.departures import Departure, Departures
from ionrouter.errors import UpstreamError
from ionrouter.schema.events import Batch

log = structlog.get_logger(__name__)


def patience_with(departure: Departure, departures: Departures) -> float | None:
    """Seconds after which this attempt gets a rival; None: never, or nobody can tell.

    Counts the request for its model's budget. One rival a request is enough.
    """
    candidate, parts = departure.candidate, departures.parts
    hedge = candidate.route.hedge
    if hedge is None or hedge.budget == 0 or departures.has_hedged:
        return None
    if departures.walk.num_attempts == 1:  # its share is of requests, not of attempts
        parts.hedges.of(candidate.route.id).deposit(hedge.budget)
    if not departures.walk.has_beside(candidate):
        return None
    stream = streams_upstream(candidate.endpoint, departures.request)
    return patience_s(hedge, parts.book.of(candidate.endpoint), stream, parts.clock())


async def raced(first: Departure, after_s: float, departures: Departures) -> AsyncIterator[Batch]:
    """Yield the batches of the first attempt, or of the rival that it gets `after_s` later.

    Raises the UpstreamError of the leg that failed last; the walk has noted every one.
    """
    race = _Race(departures)
    try:
        race.enter(first)
        winner = await race.run(after_s)
        yield winner.begun.result()
        async for batch in winner.batches:
            yield batch
    except (asyncio.CancelledError, GeneratorExit) as ended:
        departures.trace.note_end(ended)
        raise
    finally:
        await race.close()


@dataclass(slots=True)
class _Leg:
    departure: Departure
    batches: AsyncIterator[Batch]
    begun: asyncio.Task[Batch]  # ends with the commit

    async def close(self) -> None:
        if not self.begun.done():
            await asyncio.wait({self.begun})
        if not self.begun.cancelled():
            self.begun.exception()  # looked at: nobody need be told
        await self.batches.aclose()  # type: ignore[attr-defined]


@dataclass(slots=True)
class _Race:
    departures: Departures
    legs: list[_Leg] = field(default_factory=list)

    def enter(self, departure: Departure) -> None:
        """Start a leg beside those that run."""
        attempt = departure.attempt
        for leg in self.legs:
            leg.departure.attempt.rivals.append(attempt)
            attempt.rivals.append(leg.departure.attempt)
        batches = attempt.batches()
        self.legs.append(_Leg(departure, batches, asyncio.create_task(_first(batches), name="leg")))

    async def run(self, after_s: float) -> _Leg:
        """Wait until a leg commits; raises the last one's error when none did."""
        running = list(self.legs)
        patience: float | None = after_s
        while True:
            tasks = {leg.begun for leg in running}
            done, _ = await asyncio.wait(tasks, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            winner = next((leg for leg in running if leg.departure.attempt.is_committed), None)
            if winner is not None:
                for leg in running:
                    if leg is not winner:
                        leg.begun.cancel()
                return winner
            for leg in [leg for leg in running if leg.begun in done]:
                running.remove(leg)
                self._fail(leg, running)
            if not done:
                running += self._send_rival(running[0], after_s)
            patience = None

    def _fail(self, leg: _Leg, running: list[_Leg]) -> None:
        """Note a failed leg; raises its error if it was the last, or if the others could not do better."""
        error = leg.begun.exception()
        if not isinstance(error, UpstreamError):
            leg.begun.result()  # raises
            raise RuntimeError("an attempt began with something else than its commit")
        failed = leg.departure.candidate
        self.departures.walk.fail(failed, error)
        if any(still_allows(other.departure.candidate, failed, error) for other in running):
            return
        for other in running:
            other.departure.attempt.give_way()
        raise error

    def _send_rival(self, slow: _Leg, after_s: float) -> list[_Leg]:
        """Start the next candidate, if the budget has something left; the legs that this adds."""
        departures, candidate = self.departures, slow.departure.candidate
        budget = departures.parts.hedges.of(candidate.route.id)
        if slow.departure.attempt.has_answered or not budget.try_take():
            return []
        departures.has_hedged = True
        rival = departures.rival_of(candidate, after_s)
        if rival is None:
            budget.refund()
            return []
        log.info(
            "hedge_started",
            request=departures.request.id,
            slow=candidate.endpoint.id,
            endpoint=rival.candidate.endpoint.id,
            after_s=after_s,
        )
        self.enter(rival)
        return self.legs[-1:]

    async def close(self) -> None:
        """End every leg and wait until it has let go of all it held."""
        for leg in self.legs:  # in the books first: what follows may be cancelled
            leg.departure.attempt.leave()
            leg.begun.cancel()
        async with AsyncExitStack() as stack:
            for leg in self.legs:
                stack.push_async_callback(leg.close)


async def _first(batches: AsyncIterator[Batch]) -> Batch:
    return await anext(batches)
