"""A provider client whose answers are the world's outcomes, after the world's times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.providers.base import UpstreamRequest
from ionrouter.schema.events import ChoiceDelta, Chunk, ProviderEvent
from ionrouter.simulation.scenario import Upstream
from ionrouter.simulation.world import Bucket, World, usage_of

FIRST = Chunk((ChoiceDelta(0, {"content": "a"}),))


class SimulatedClient:
    """Plays one world. Not for two runs: rate limits and prompt caches fill."""

    def __init__(self, world: World, clock: Callable[[], float]) -> None:
        self._world, self._clock = world, clock
        self._upstreams = {upstream.name: upstream for upstream in world.scenario.upstreams}
        self._buckets = {name: Bucket() for name in self._upstreams}
        self._warm: set[tuple[str, str]] = set()  # endpoint, session

    async def stream(self, request: UpstreamRequest) -> AsyncIterator[ProviderEvent]:
        """Answer, fail, hang or refuse, as the dice say."""
        now, number = self._clock(), int(request.request_id)
        upstream, ask = self._upstreams[request.endpoint.id], self._world.asks[number]
        self._admit(upstream, now)
        outcome = self._world.outcome(number, upstream, now)
        await asyncio.sleep(outcome.ttft_s)
        if outcome.fate in ("fails", "hangs"):
            raise _error(FailureClass.TRANSIENT, 503)
        yield FIRST
        await asyncio.sleep((outcome.whole_s - outcome.ttft_s) * (0.5 if outcome.fate == "breaks" else 1.0))
        if outcome.fate == "breaks":
            raise _error(FailureClass.TRANSIENT, None)
        is_warm = upstream.caches and (upstream.name, ask.session or "") in self._warm
        if ask.session is not None:
            self._warm.add((upstream.name, ask.session))
        yield Chunk((ChoiceDelta(0, {"content": "b"}, "stop"),), usage_of(ask, is_warm))

    def _admit(self, upstream: Upstream, now: float) -> None:
        conduct = self._world.conduct(upstream, now)
        if not self._buckets[upstream.name].admits(conduct, now):
            raise _error(FailureClass.CAPACITY, 429, conduct.retry_after_s)

    async def close(self) -> None:
        """Nothing is held."""


def _error(failure: FailureClass, status: int | None, retry_after_s: float | None = None) -> UpstreamError:
    return UpstreamError(failure, "simulated", status=status, retry_after_s=retry_after_s)
