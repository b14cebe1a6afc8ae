"""resolve -> select -> dispatch: the first of the two middle pages. Where clocks and chance are chosen.

State: the table, replaced whole on reload, the health book, and whom sessions stay with. A request keeps the
table it began with.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Protocol

import structlog
from msgspec.structs import replace

from ionrouter.aside import Aside, Witness
from ionrouter.balancing.affinity import Affinity
from ionrouter.balancing.explain import Explanation, Moment, explained
from ionrouter.balancing.health import HealthBook
from ionrouter.balancing.plan import Plan
from ionrouter.balancing.reasoning import thinking
from ionrouter.balancing.select import Scene, room_of, select
from ionrouter.balancing.thoughts import Makers
from ionrouter.balancing.verdict import nobody_left
from ionrouter.departures import Clients, counted
from ionrouter.dispatch import dispatch
from ionrouter.ending import Ending, record_of, status_of, why
from ionrouter.errand import Parts, Trace
from ionrouter.observers import tell
from ionrouter.prober import Prober
from ionrouter.routing.naming import routes_of
from ionrouter.routing.resolve import serves
from ionrouter.routing.table import Endpoint, ModelRoute, RoutingTable
from ionrouter.schema.compression import compressed, wants_compression
from ionrouter.schema.events import (
    Batch,
    Chunk,
    Committed,
    Event,
    Finished,
    Lane,
    Observer,
    ProviderBatch,
    RequestRecord,
    Taker,
    TextRun,
    flat,
)
from ionrouter.schema.kept import AT_NO_COST, KeptAnswer
from ionrouter.schema.load import EngineLoad
from ionrouter.schema.request import InferenceRequest, Kind
from ionrouter.shadow import Shadows

log = structlog.get_logger(__name__)


class Router:
    """One router for the life of the process. Not for several threads."""

    def __init__(
        self,
        table: RoutingTable,
        clients: Clients,
        *,
        engine_load: Callable[[Endpoint], EngineLoad | None] = lambda endpoint: None,
        observers: Sequence[Observer] = (),
        books: Books | None = None,
        witnesses: Sequence[Witness] = (),
        may_measure: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        self.book, self.affinity, self.makers = HealthBook(), Affinity(), Makers()
        self._table, self._clients = table, clients
        self._resolved: dict[tuple[str, Kind], tuple[ModelRoute, ...]] = {}  # of the table's own names
        self._engine_load, self._observers = engine_load, tuple(observers)
        self._books = books
        self._parts = Parts(self.book, clock, wall, rng if rng is not None else random.Random())
        self.aside = Aside(clients, self._parts, witnesses, may_measure)
        self.shadows = Shadows(self.aside, engine_load)
        self.prober = Prober(self.aside, lambda: self._table, engine_load)

    @property
    def table(self) -> RoutingTable:
        """What new requests read."""
        return self._table

    @table.setter
    def table(self, table: RoutingTable) -> None:
        """Swap the table; endpoints of the same identity keep their health, vanished ones lose it."""
        self._table, self._resolved = table, {}
        endpoints = [endpoint for model in table.models.values() for endpoint in model.endpoints]
        self.book.keep([*endpoints, *(pattern.endpoint for pattern in table.patterns)])
        self._parts.hedges.keep(frozenset(table.models))

    def engine_load(self, endpoint: Endpoint) -> EngineLoad | None:
        """Say how busy the engine inside is that answers for an endpoint; None where none does."""
        return self._engine_load(endpoint)

    def hedge_counts(self) -> Mapping[str, tuple[int, int]]:
        """For each hedged model: rivals sent, and those that the budget refused."""
        return self._parts.hedges.counts()

    def resolve(self, request: InferenceRequest) -> tuple[ModelRoute, ...]:
        """Find where the request could go: the model, the caller's `models`, the table's fallbacks.

        Raises AvailabilityError 400 (`model_not_found`) for a name that nothing fits.
        """
        known = None if request.models else self._resolved.get((request.model, request.kind))
        if known is not None:
            return known
        table = self._table
        primary = routes_of(table, request.model, request)
        named = [*primary, *(r for name in request.models for r in routes_of(table, name, request))]
        listed = (table.models.get(name) for route in primary for name in route.fallbacks)
        fallbacks = [route for route in listed if route is not None and serves(route, request.kind)]
        tiers: dict[str, ModelRoute] = {}
        for route in (*named, *fallbacks):
            tiers.setdefault(route.id, route)  # each model once, at its first place
        routes = tuple(tiers.values())
        if not request.models and request.model in table.models:
            self._resolved[request.model, request.kind] = routes
        return routes

    def select(self, request: InferenceRequest) -> Plan:
        """Decide where it should go now; an empty plan says why nobody may serve it."""
        return self._planned(request)[1]

    def _planned(self, request: InferenceRequest) -> tuple[InferenceRequest, Plan]:
        """Decide where it should go, and how: a suffix or a plugin may change what is asked."""
        routes = self.resolve(request)
        if routes and "thinking" in routes[0].variants:
            request = thinking(request)
        plan = select(routes, request, self._scene(request), self._parts.rng)
        if not wants_compression(request) or (room := room_of(plan, request)) is None:
            return request, plan
        shorter = compressed(request, room)
        if shorter is None:
            return request, plan
        return shorter, select(routes, shorter, self._scene(request), self._parts.rng)

    def _scene(self, request: InferenceRequest) -> Scene:
        now, maker = self._parts.clock(), self.makers.find(request)
        sticky = maker or self.affinity.find(request, now)
        settings = self._table.settings
        return Scene(self.book, settings, now, self._engine_load, sticky, is_pinned=maker is not None)

    def explain(self, request: InferenceRequest) -> Explanation:
        """Run resolve and select dry, for people; claims nothing: the next request draws the same."""
        return explained(request, self._dry(request), Moment(self.book, self._parts.clock()))

    def _dry(self, request: InferenceRequest) -> Plan:
        state = self._parts.rng.getstate()
        try:
            return self.select(request)
        finally:
            self._parts.rng.setstate(state)

    async def count_prompt(self, request: InferenceRequest) -> int | None:
        """Count a prompt's tokens as the endpoint would that is asked first; None where it cannot be known.

        Asks nobody for an answer, and raises RequestError as `batches` does, but not for a length.
        """
        plan = self._dry(replace(request, prompt_tokens=1, context_tokens=None, max_tokens=None))
        if not plan.candidates:
            raise nobody_left(plan, request, self._parts.clock())
        return await counted(request, plan.candidates[0].endpoint, self._clients)

    def stream(self, request: InferenceRequest) -> AsyncIterator[Event]:
        """The same as `batches`, one after the other."""
        return flat(self.batches(request))

    async def batches(
        self,
        request: InferenceRequest,
        taker: Taker | None = None,
        tell: Callable[[Explanation], None] | None = None,
    ) -> AsyncIterator[Batch]:
        """Serve one request: Committed, then Chunks or one Complete, then Finished, in batches as they came.

        Raises RequestError, AvailabilityError or AllAttemptsFailed before commit, StreamBroken after. One
        RequestRecord goes to the observers before Finished is yielded, or when the request ends otherwise;
        the last event and an error wait until it is kept. While who called waits for a batch, `taker` may
        be given it instead. `tell` hears the plan that is followed, before anything is asked.
        """
        if not request.arrived_at:
            request = replace(request, arrived_at=self._parts.clock())
        trace, started_at, ending = Trace(), self._parts.wall(), Ending()
        try:
            settings = self._table.settings
            request, plan = self._planned(request)
            trace.strategy = plan.strategy
            if not plan.candidates:
                raise nobody_left(plan, request, self._parts.clock())
            self.book.take_turn(plan.candidates[0].endpoint)
            if self._books is not None:
                plan = await self._books.admit(request, plan)
                self._books.begin(request, started_at)
            if tell is not None:
                tell(explained(request, plan, Moment(self.book, self._parts.clock())))
            if plan.routes[0].shadow is not None and self.makers.find(request) is None:
                self.shadows.follow(request, plan, settings)
            hear = partial(self._hear_batch, request, plan, trace)
            heard = None if taker is None else _Heard(taker, hear, hears_text=self._hears)
            afford = None if self._books is None else partial(self._books.affords, request)
            batches = dispatch(plan, request, self._clients, settings, self._parts, trace, heard, afford)
            async with aclosing(batches) as source:  # type: ignore[type-var]
                try:
                    async for batch in source:
                        hear(batch)
                        if isinstance(batch[-1], Finished):
                            if request.stream and len(batch) > 1:
                                yield batch[:-1]  # only the last event waits
                                batch = batch[-1:]
                            ending.status = 200
                            self._report(request, trace, started_at, ending)
                            await self._kept(request)
                        yield batch
                except (asyncio.CancelledError, GeneratorExit) as ended:
                    trace.note_end(ended)  # before the attempts are closed, which cannot hear it
                    raise
        except Exception as error:
            ending.status, ending.error = status_of(error), str(error)
            self._report(request, trace, started_at, ending)
            await self._kept(request)
            raise
        except (asyncio.CancelledError, GeneratorExit) as ended:
            if not ending.is_reported:
                ending.status, ending.error = why(ended)
            raise
        finally:
            self._report(request, trace, started_at, ending)

    async def replay(self, request: InferenceRequest, kept: KeptAnswer) -> AsyncIterator[Batch]:
        """Serve a request with an answer that was kept: Committed, its Chunks or Complete, then Finished.

        Nobody is asked, nothing is reserved and nothing costs. Told to the books and the observers as all.
        """
        trace, started_at, ending = Trace(), self._parts.wall(), Ending(kept.source)
        trace.committed = kept.committed
        try:
            if self._books is not None:
                self._books.begin(request, started_at)
            for batch in kept.batches():
                if self._books is not None and self._hears:
                    for event in batch:
                        self._books.hear(request.id, event)
                yield batch
            ending.status = 200
            self._report(request, trace, started_at, ending)
            await self._kept(request)
            yield [AT_NO_COST]
        except (asyncio.CancelledError, GeneratorExit) as ended:
            if not ending.is_reported:
                ending.status, ending.error = why(ended)
            raise
        finally:
            self._report(request, trace, started_at, ending)

    @property
    def _hears(self) -> bool:
        """Whether a run of text tells anything: only to books that keep words."""
        return self._books is not None and self._books.hears

    def _hear_batch(self, request: InferenceRequest, plan: Plan, trace: Trace, batch: Batch) -> None:
        hears = self._hears
        for event in batch:
            if trace.endpoint is None or hears or event.__class__ is not TextRun:
                self._hear(request, event, plan, trace)

    def _hear(self, request: InferenceRequest, event: Event | TextRun, plan: Plan, trace: Trace) -> None:
        """Let the session, and thoughts that only it can read, come back to the endpoint that answered."""
        if self._books is not None and self._books.hears and not isinstance(event, Finished):
            self._books.hear(request.id, event)
        if isinstance(event, Committed):
            served = (c.endpoint for c in plan.candidates if c.endpoint.id == event.endpoint_id)
            trace.endpoint = next(served, None)
        elif trace.endpoint is None or isinstance(event, TextRun):
            return
        elif not isinstance(event, Finished):
            self.makers.hear(request, event, trace.endpoint.identity)
        else:  # an error changes nothing
            self.affinity.remember(request, trace.endpoint, self._parts.clock(), event.usage)
            self.makers.served(request, trace.endpoint.identity)

    def _report(self, request: InferenceRequest, trace: Trace, started_at: float, ending: Ending) -> None:
        """Tell the books and the observers, once; nothing that one of them does reaches the client."""
        if ending.is_reported:
            return
        ending.is_reported = True
        record = record_of(request, trace, started_at, self._parts.clock() - request.arrived_at, ending)
        if self._books is not None:
            try:
                self._books.end(record, request)
            except Exception:
                log.exception("observer_failed", observer=repr(self._books.end), request=record.id)
        tell(self._observers, (record,))
        if (span := request.client.span) is not None:
            try:
                span.report(record, request, trace.strategy)
            except Exception:
                log.exception("observer_failed", observer=repr(span.report), request=record.id)

    async def _kept(self, request: InferenceRequest) -> None:
        if self._books is not None:
            await self._books.kept(request.id)


class Books(Protocol):
    """Who may spend how much, and what became of every request. Nothing here may fail but `admit`."""

    @property
    def hears(self) -> bool:
        """Whether it wants to know what is answered."""
        ...

    async def admit(self, request: InferenceRequest, plan: Plan) -> Plan:
        """Reserve what the request may cost and return what of the plan it may use; raises RequestError."""
        ...

    async def affords(self, request: InferenceRequest, paid: float) -> bool:
        """Ask whether it may go on after attempts that failed and did cost so many USD."""
        ...

    def begin(self, request: InferenceRequest, started_at: float) -> None:
        """Note that it goes out."""
        ...

    def hear(self, request_id: str, event: Event | TextRun) -> None:
        """Note what is answered."""
        ...

    def end(self, record: RequestRecord, request: InferenceRequest) -> None:
        """Note how it ended, exactly once for every request, admitted or not."""
        ...

    async def kept(self, request_id: str) -> None:
        """Wait until that is safe, or waiting is no use."""
        ...


class _Heard:
    """Whoever is served, where the router hears what it takes."""

    __slots__ = ("_hear", "_hears_text", "_taker")

    def __init__(self, taker: Taker, hear: Callable[[Batch], None], *, hears_text: bool) -> None:
        self._taker, self._hear, self._hears_text = taker, hear, hears_text

    def take(self, batch: ProviderBatch) -> bool:
        if not self._taker.take(batch):
            return False
        self._hear(batch)
        return True

    def lane(self, pattern: Chunk) -> Lane | None:
        return None if self._hears_text else self._taker.lane(pattern)
