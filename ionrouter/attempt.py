"""One try at one endpoint: its deadlines, its commit point, its tokens, and what it teaches about health.

Knows nothing of other candidates, but for rivals under way for the same request: the first to commit ends
the others. Whatever ends it (a good answer, a fault, the client leaving, a rival), it leaves one
AttemptRecord, no flight in the health, no claimed trial, and a closed upstream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from msgspec.structs import replace

from ionrouter.balancing.assumed_price import is_unpriced
from ionrouter.balancing.circuit_breaker import Permit
from ionrouter.balancing.cost import cost_of
from ionrouter.balancing.health import Flight
from ionrouter.balancing.verdict import INTERNAL
from ionrouter.errand import (
    Errand,
    Parts,
    Trace,
    client_left,
    fault_of_ours,
    lost_race,
    stopped,
    tell_closed,
    tell_failed,
    tell_opened,
    tell_refused,
    tell_unpriced,
)
from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.providers.base import UpstreamRequest
from ionrouter.schema.assemble import Assembly, as_chunk, is_filtered_empty
from ionrouter.schema.events import (
    Batch,
    Chunk,
    Committed,
    Complete,
    Event,
    Finished,
    Lane,
    ProviderBatch,
    ProviderEvent,
    Taker,
    TextRun,
    flat,
)
from ionrouter.schema.json import dumps
from ionrouter.schema.tally import Tally
from ionrouter.schema.usage import Cost, Usage
from ionrouter.upstream import Upstream

MAX_HELD_BYTES = 64 * 1024
CONNECT_RETRY_JITTER_S = 0.25  # a fresh connection either works at once or the next endpoint is the answer
CONNECT_ERROR = "connect_error"  # code of a failure in which no byte was sent
_NOBODYS = (FailureClass.CLIENT_LEFT, FailureClass.STOPPED, FailureClass.LOST_RACE)


class Attempt:
    """`events` may be run once. After it ended, `is_committed` says whether the client has seen anything."""

    def __init__(self, errand: Errand, permit: Permit, parts: Parts, trace: Trace) -> None:
        self.is_committed = False
        self.rivals: list[Attempt] = []  # under way for the same request
        self._flight: Flight | None = None  # None: it has not begun
        self._errand, self._permit, self._parts, self._trace = errand, permit, parts, trace
        self._health = parts.book.of(errand.endpoint)
        span = errand.request.client.span  # before the clock: a span that began later would end too late
        self._span = None if span is None else span.attempt(errand)
        self._started_at, self._started_wall = parts.clock(), parts.wall()
        self._tally = Tally()
        self._whole: Complete | None = None  # the answer, where it came whole and goes out whole
        self._assembly: Assembly | None = None  # of its pieces, where they go out together
        self._held: list[Chunk] = []
        self._num_held_bytes, self._is_settled = 0, False

    def events(self) -> AsyncIterator[Event]:
        """The same as `batches`, one after the other."""
        return flat(self.batches())

    async def batches(self) -> AsyncIterator[Batch]:
        """Yield Committed, then Chunks or one Complete, then Finished; UpstreamError on any fault.

        What came together goes out together; the first batch begins with Committed.
        """
        if self._is_settled:
            raise lost_race()
        errand = self._errand
        flight = self._health.begin(self._started_at, errand.upstream.stream, errand.is_exploring)
        self._flight = errand.upstream.queue.held = flight
        failure: UpstreamError | None = None
        try:
            async with Upstream(self, self._parts.deadlines) as source:
                while (batch := await source.next()) is not None:
                    if out := self._taken(batch, flight):
                        yield out
            yield self._end(flight)
        except UpstreamError as error:
            error.provider = error.provider or self._provider()  # clients and deadlines need not know it
            failure = error
            raise
        except Exception as error:
            failure = fault_of_ours(error, errand)
            raise failure from error
        except (asyncio.CancelledError, GeneratorExit) as ended:
            self._trace.note_end(ended)
            raise
        finally:
            self._health.end(flight)
            if not self._is_settled:
                self._settle(failure or self._left())  # nothing else ended it

    def give_way(self) -> None:
        """End it in the books: a rival was faster. Who runs it must cancel it. A second call does nothing."""
        self._stop(lost_race())

    def leave(self) -> None:
        """The same, because the client left, or this server stops; nothing if it has ended."""
        self._stop(self._left())

    def _left(self) -> UpstreamError:
        if self._errand.role in ("shadow", "probe"):
            return stopped("the server is shutting down")  # they have no client
        return client_left() if self._trace.stop is None else stopped(self._trace.stop)

    def _stop(self, failure: UpstreamError) -> None:
        if self._flight is not None:
            self._settle(failure)
        elif not self._is_settled:  # never began: all it has is the breaker's leave
            self._is_settled = True
            self._health.breaker.release(self._permit)

    @property
    def has_answered(self) -> bool:
        """Ask whether the upstream has sent something that a client could use."""
        return self._tally.first_at is not None

    def _taken(self, batch: ProviderBatch, flight: Flight) -> list[Event | TextRun]:
        """Count what came in, and see what of it goes out."""
        now, errand = self._parts.clock(), self._errand
        out: list[Event | TextRun] = []
        for event in batch:
            self._tally.add(event, now)
            if errand.upstream.stream and self._tally.first_at is not None:
                flight.has_answered = True
            if not errand.request.stream:
                self._keep(event)
            elif self.is_committed:
                out.append(as_chunk(event) if isinstance(event, Complete) else event)
            else:
                for chunk in event.chunks() if isinstance(event, TextRun) else (event,):
                    out += self._admit(as_chunk(chunk) if isinstance(chunk, Complete) else chunk, flight)
        return out

    def _keep(self, event: ProviderEvent | TextRun) -> None:
        """Keep what is to go out as a whole."""
        if isinstance(event, Complete):
            self._whole = event
            return
        if self._assembly is None:
            self._assembly = Assembly()
        self._assembly.add(event)

    def take(self, batch: ProviderBatch) -> bool:
        """Pass on and count at once what comes after the commit, if whoever is served takes it at once."""
        now, taker = self._parts.clock(), self._errand.taker
        if not self.is_committed or taker is None or not taker.take(batch):
            return False
        for event in batch:
            self._tally.add(event, now)
        return True

    def lane(self, pattern: Chunk) -> Lane | None:
        """The same for texts."""
        taker = self._errand.taker
        lane = taker.lane(pattern) if taker is not None and self.is_committed else None
        return None if lane is None else self._tally.counting(lane, self._parts.clock)

    def _admit(self, chunk: Chunk, flight: Flight) -> list[Event]:
        """Hold back what commits nothing, commit on the first that does, then pass on."""
        if self.is_committed:
            return [chunk]
        if not chunk.commits:
            self._hold(chunk)
            return []
        self._refuse_filtered(chunk)
        committed = self._commit(flight)
        held, self._held = self._held, []
        return [committed, *held, chunk]

    def _hold(self, chunk: Chunk) -> None:
        self._num_held_bytes += sum(len(dumps(choice.delta)) for choice in chunk.choices)
        if self._num_held_bytes > MAX_HELD_BYTES:
            raise self._broken("sent 64 KB without any content", "malformed")
        self._held.append(chunk)

    def _end(self, flight: Flight) -> list[Event]:
        """The upstream is through: deliver a whole answer, or find that there is none."""
        out: list[Event] = []
        if not self._errand.request.stream:
            complete = self._whole or (self._assembly or Assembly()).complete()
            if not complete.commits:
                raise self._broken("answered without any content", "empty")
            if self._errand.may_switch_model:
                self._refuse_filtered(as_chunk(complete))
            out = [self._commit(flight), complete]
        elif not self.is_committed:
            raise self._broken("ended its stream without any content", "empty")
        return [*out, self._finish(flight)]

    def _refuse_filtered(self, chunk: Chunk) -> None:
        """A content filter that let nothing through is a refusal, if another model may still be asked."""
        if self._errand.may_switch_model and is_filtered_empty(chunk):
            raise UpstreamError(
                FailureClass.CONTENT, "the content filter let nothing through", provider=self._provider()
            )

    def _commit(self, flight: Flight) -> Committed:
        now, errand = self._parts.clock(), self._errand
        ttft_s = None if (since_start_s := self._ttft_s()) is None else since_start_s - flight.held_s
        was_closed = self._health.breaker.is_closed
        self._health.commit(now, flight, ttft_s, is_bound=errand.role == "probe")
        if not was_closed and self._health.breaker.is_closed:
            tell_closed(errand)
        if self._is_settled:
            raise lost_race()  # both answered at once, and this one came second
        self.is_committed = True
        for rival in self.rivals:
            rival.give_way()  # before this one's own record: the last is the one that served
        self._trace.ttft_s = now - errand.request.arrived_at
        self._trace.committed = Committed(
            endpoint_id=errand.endpoint.id,
            model_id=errand.route.id,
            provider_name=self._provider(),
            reason=errand.reason,
            attempt=errand.number,
            dropped=errand.dropped,
            notes=errand.request.notes,
            sent=() if self._trace.sent is None else tuple(s for s in self._trace.sent if s.body),
        )
        return self._trace.committed

    def _finish(self, flight: Flight) -> Finished:
        """Book a good answer, before its last event is handed out."""
        now, tally, errand = self._parts.clock(), self._tally, self._errand
        usage, is_estimated = tally.usage_or_estimate(errand.request.prompt_tokens)
        if errand.request.kind == "rerank" and self._whole is not None:
            usage = replace(usage, search_units=self._whole.search_units)
        streamed = errand.upstream.stream and tally.first_at is not None and tally.last_at is not None
        decode_s = tally.last_at - tally.first_at if streamed else None  # type: ignore[operator]
        if errand.role != "probe":  # one token tells nothing of others' speed and length
            self._health.finish(now, flight, usage, decode_s)
            self._parts.book.answered(errand.route.id, errand.upstream.stream, usage.completion_tokens, now)
        self._settle(None, (usage, is_estimated))
        trace = self._trace
        return Finished(usage, trace.cost(), tuple(trace.attempts), trace.ttft_s, is_estimated)

    def _settle(self, failure: UpstreamError | None, spent: tuple[Usage | None, bool] | None = None) -> None:
        """Write the one record of this attempt, and tell the health what class of failure it was.

        `spent`: what it used, where that is known, and whether that is an estimate.
        """
        if self._is_settled:
            return
        self._is_settled = True
        now, errand = self._parts.clock(), self._errand
        usage, is_estimated = spent or self._spent()
        cost = cost_of(errand.price(self._tally.service_tier), usage) if usage else Cost()
        if usage is not None and is_unpriced(errand.endpoint) and not self._health.has_told_price:
            self._health.has_told_price = True
            tell_unpriced(errand)
        if self.is_committed and usage is not None:
            self._trace.usage, self._trace.is_usage_estimated = usage, is_estimated
        if failure is not None:
            self._blame(failure, now, cost)
        record = errand.record(
            self._tally,
            failure,
            usage,
            cost,
            is_estimated=is_estimated,
            started_at=self._started_wall,
            duration_s=now - self._started_at,
            ttft_s=self._ttft_s(),
            after_commit=failure is not None and self.is_committed,
        )
        self._trace.attempts.append(record)
        if self._span is not None:
            self._span.end(record)

    def _spent(self) -> tuple[Usage | None, bool]:
        """Tokens of a failure to account for; one that brought neither usage nor any answer cost none."""
        upstream, tally = self._errand.upstream.told, self._tally
        told, has_said = upstream.usage, tally.usage is not None or tally.num_characters > 0
        if upstream.num_characters is not None:
            tally.num_characters += upstream.num_characters
        elif not has_said and (told is None or told.total_tokens == 0):
            return told, False
        return tally.usage_or_estimate(self._errand.request.prompt_tokens, told)

    def _blame(self, failure: UpstreamError, now: float, cost: Cost) -> None:
        errand = self._errand
        # Cut off by the request's own deadline after others had used it up: nobody's fault here.
        is_cut_short = errand.number > 1 and now >= errand.deadline
        if failure.code != INTERNAL and not is_cut_short:
            spent_s, is_late = now - self._begun_at, self.is_committed
            breaker = self._health.breaker
            open_until = breaker.until
            if self._health.fail(now, failure, spent_s, cost.total, after_commit=is_late):
                tell_refused(errand, failure)  # one alert, not one per request
            if breaker.until > open_until and self._parts.book.holds(self._health, errand.endpoint):
                tell_opened(errand, breaker, now)
        if failure.failure is FailureClass.LOST_RACE and self._flight is not None:
            num_out = self._parts.book.expected_num_out(errand.route.id, errand.upstream.stream, now)
            self._health.give_up(now, self._flight, num_out)
        if not self.is_committed:  # a commit has settled the trial already
            self._health.breaker.release(self._permit)
        if failure.failure not in _NOBODYS:
            tell_failed(errand, failure)

    def _ttft_s(self) -> float | None:
        """Attempt start to the first usable event; not guessed for an upstream that did not stream."""
        if not self._errand.upstream.stream or self._tally.first_at is None:
            return None
        return self._tally.first_at - self._started_at

    @property
    def _begun_at(self) -> float:
        """When the endpoint's time began: not while it waits for one of our own connections."""
        return self._started_at if self._flight is None else self._flight.started_at

    def _provider(self) -> str:
        return self._errand.endpoint.provider.name

    def _broken(self, what: str, code: str) -> UpstreamError:
        message = f"{self._provider()} {what}"
        return UpstreamError(FailureClass.TRANSIENT, message, code=code, provider=self._provider())

    # Deadlines and connections.

    def limit(self) -> tuple[float, str]:
        """Seconds that the next event may take, and what is waited for."""
        return self._limit(self._parts.clock(), 0.0)

    def left(self) -> tuple[float, str]:
        """The same less what has been waited since a lane took something; 0 where none did."""
        now, taken_at, flight = self._parts.clock(), self._tally.taken_at, self._flight
        if taken_at is not None:
            return self._limit(now, now - taken_at)
        was_held = flight is not None and (flight.is_held or flight.held_s > 0)
        return self._limit(now, 0.0) if was_held and self._tally.first_at is None else (0.0, "")

    def _limit(self, now: float, waited_s: float) -> tuple[float, str]:
        errand = self._errand
        limit_s, timeouts = errand.deadline - now, errand.endpoint.timeouts
        flight = self._flight
        if errand.upstream.stream and not (flight is not None and flight.is_held):
            is_first = self._tally.first_at is None
            whole_s = self._begun_at + timeouts.first_token_s - now if is_first else timeouts.inter_token_s
            if whole_s - waited_s < limit_s:
                return whole_s - waited_s, "the first token" if is_first else "the next token"
        return limit_s, "a whole answer"

    def open(self, taker: Taker) -> AsyncIterator[ProviderEvent | ProviderBatch]:
        """Start the work upstream."""
        client, upstream = self._errand.client, self._upstream()
        if self._errand.taker is not None:
            upstream = replace(upstream, taker=taker)
        together: Callable[[UpstreamRequest], AsyncIterator[ProviderBatch]] | None
        together = getattr(client, "batches", None)  # see BatchingClient; asking its type costs 30 us
        return together(upstream) if together else client.stream(upstream)

    def whole(self) -> Awaitable[ProviderBatch] | None:
        """Start it for all that comes at once; None: it comes in pieces, or from a client that iterates."""
        if self._errand.upstream.stream:
            return None
        at_once: Callable[[UpstreamRequest], Awaitable[ProviderBatch]] | None
        at_once = getattr(self._errand.client, "whole", None)  # see WholeClient
        return at_once(self._upstream()) if at_once else None

    def _upstream(self) -> UpstreamRequest:
        if self._span is None or self._span.traceparent is None:
            return self._errand.upstream
        return replace(self._errand.upstream, traceparent=self._span.traceparent)

    def may_reconnect(self, error: BaseException) -> bool:
        """Ask whether the same endpoint deserves another connection; claims it from the retry budget."""
        if not isinstance(error, UpstreamError) or error.code != CONNECT_ERROR:
            return False
        return self._health.budget.try_take(self._parts.clock())

    def jitter_s(self) -> float:
        """Seconds to wait before reconnecting: full jitter."""
        return self._parts.rng.uniform(0.0, CONNECT_RETRY_JITTER_S)
