"""Attempts that no caller waits for: their answers are thrown away, their records kept. Chooses no endpoint.

Each runs in a task of its own; `close` ends them all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import structlog
from msgspec.structs import replace

from ionrouter.attempt import Attempt
from ionrouter.balancing.circuit_breaker import Permit
from ionrouter.departures import Clients, client_for, upstream_request
from ionrouter.errand import Errand, Parts, Trace
from ionrouter.errors import UpstreamError
from ionrouter.routing.table import Endpoint, ModelRoute
from ionrouter.schema.events import AttemptRecord, AttemptRole
from ionrouter.schema.request import InferenceRequest

log = structlog.get_logger(__name__)

Witness = Callable[[AttemptRecord], None]  # hears of attempts that belong to no request's record
LOW_PRIORITY = -1  # in the local engine's queue: callers go first


@dataclass(slots=True)
class Aside:
    """Runs attempts for their record's sake. Not for several threads."""

    clients: Clients
    parts: Parts
    witnesses: Sequence[Witness] = ()
    may_start: Callable[[], bool] = lambda: True  # not while draining
    running: Counter[str] = field(default_factory=Counter)  # by endpoint identity
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def start(
        self,
        request: InferenceRequest,
        endpoint: Endpoint,
        route: ModelRoute,
        permit: Permit,
        *,
        role: AttemptRole,
        deadline: float,
    ) -> None:
        """Begin one; the permit is its to settle."""
        prepared = upstream_request(request, endpoint)
        errand = Errand(
            request=request,
            upstream=replace(prepared.request, priority=LOW_PRIORITY),
            endpoint=endpoint,
            route=route,
            client=client_for(endpoint, self.clients),
            number=1,
            reason=role,
            dropped=prepared.dropped,
            deadline=deadline,
            role=role,
        )
        trace = Trace()
        attempt = Attempt(errand, permit, self.parts, trace)
        self.running[endpoint.identity] += 1
        task = asyncio.create_task(_run(attempt), name=role)
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self.running[endpoint.identity] -= 1
            self.running += Counter()  # forgets those at 0
            attempt.leave()  # where the task was cancelled before its first step
            self._tell(trace)

        task.add_done_callback(ended)

    def _tell(self, trace: Trace) -> None:
        for record in trace.attempts:
            for witness in self.witnesses:
                try:
                    witness(record)
                except Exception:
                    log.exception("observer_failed", observer=repr(witness), request=record.role)

    @property
    def num_running(self) -> int:
        return len(self._tasks)

    async def close(self) -> None:
        """End all of them now."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(attempt: Attempt) -> None:
    try:
        async with aclosing(attempt.events()) as events:  # type: ignore[type-var]
            async for _ in events:
                pass  # nobody reads it
    except UpstreamError:
        pass  # in its record, and in the endpoint's health
