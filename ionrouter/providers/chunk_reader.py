"""ChunkReader: an answer's server-sent events as chunks, all that one read brings together in one batch.

Joins the framing of bytes, runs of plain text, JSON and the normaliser. Knows no HTTP and no deadlines but
how long an answer's trailer may take.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, Protocol

from ionrouter.errors import UpstreamError
from ionrouter.providers.base import UpstreamRequest
from ionrouter.providers.http_errors import ErrorReader
from ionrouter.providers.http_faults import HttpFault
from ionrouter.providers.normalise import StreamNormaliser
from ionrouter.providers.sse import EventTooLong, SseDecoder, SseEvent
from ionrouter.providers.text_runs import TextRuns
from ionrouter.providers.upstream_body import count_choices
from ionrouter.schema import json
from ionrouter.schema.events import Chunk, Lane, ProviderEvent, Taker, TextRun


class Source(Protocol):
    """Where bytes come from: `pour` calls `take` with what comes, b"" at the end, until it answers False."""

    async def pour(self, take: Callable[[bytes], bool]) -> None: ...


def limit_of_trailer(most_s: float, request: UpstreamRequest) -> float:
    """How long after the last finish reason usage and the end may take.

    Shorter than silence may last between tokens: the answer is whole, and nobody must give it up.
    """
    return min(most_s, request.endpoint.timeouts.inter_token_s / 2)


class Trailer:
    """The time that what follows the last finish reason has, all of it together: comments do not move it."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._ends_by: float | None = None  # of the loop's clock, once only a trailer may come

    def limit(self) -> asyncio.Timeout:
        """Limit what is awaited to what is left of that time; raises TimeoutError."""
        if self._ends_by is None:
            self._ends_by = asyncio.get_running_loop().time() + self._within_s
        return asyncio.timeout_at(self._ends_by)

    def has_gone_on(self) -> None:
        """Begin anew: it was no trailer."""
        self._ends_by = None


class ChunkReader:
    """Reads one stream. `trailer_s`: how long after the last finish reason usage and [DONE] may take."""

    def __init__(self, request: UpstreamRequest, errors: ErrorReader, trailer_s: float) -> None:
        self._trailer = Trailer(limit_of_trailer(trailer_s, request))
        self._errors = errors
        self._stream = StreamNormaliser(request.kind, errors, count_choices(request.body), request.told)
        self._decoder, self._runs = SseDecoder(), TextRuns()
        self._taker = request.taker
        self._batch: list[ProviderEvent | TextRun] = []  # to be yielded
        self._fault: Exception | None = None  # to be raised after it
        self._is_over = False
        self._lane: Lane | None = None  # for what comes next
        self._pattern: Chunk | None = None  # of the last lane that was asked for
        self._lane_of_pattern: Lane | None = None

    async def batches(self, source: Source) -> AsyncGenerator[list[ProviderEvent | TextRun], None]:
        """Yield what each read completes, unless the request's taker takes it.

        Raises UpstreamError after what came before the fault.
        """
        while not self._is_over:
            await self._read_on(source)
            if self._batch:
                batch, self._batch = self._batch, []
                yield batch
            if self._fault is not None:
                try:
                    raise self._fault
                finally:
                    self._fault = None  # each would hold the other

    async def _read_on(self, source: Source) -> None:
        """Read until something is to be yielded or raised.

        After the last finish reason the end is waited for briefly.
        """
        if not self._stream.is_finished:
            await source.pour(self._take_in)
            return
        try:
            async with self._trailer.limit():
                await source.pour(self._take_in)
        except (TimeoutError, HttpFault):
            if not self._is_over:  # else it came at the very last moment
                self._take_in(b"")  # the answer is whole; only its trailer is missing
        if self._batch:
            self._trailer.has_gone_on()

    def _take_in(self, data: bytes) -> bool:
        """Parse what was read and offer it; tells whether to read on: nothing is left to yield or raise."""
        try:
            if self._lane is not None and (one := self._runs.one(data)) is not None and self._lane(*one):
                return True
            self._lane = None
            self._read(data, self._batch)
            self._is_over = self._decoder.is_done or not data
            if self._is_over:
                self._batch += self._stream.end(is_done=self._decoder.is_done)
            if self._is_over or self._stream.is_finished:
                return False
            return not self._batch or (self._taker is not None and self._is_taken(self._taker))
        except Exception as fault:
            self._fault = fault
            return False

    def _is_taken(self, taker: Taker) -> bool:
        offered, self._batch = self._batch, []  # should the taker break, nobody knows how far it came
        if not taker.take(offered):
            self._batch = offered
            return False
        self._lane = self._lane_after(offered[-1], taker)
        return True

    def _lane_after(self, last: ProviderEvent | TextRun, taker: Taker) -> Lane | None:
        """How the next event is taken if only its text is new; None where bytes of another are kept."""
        if not isinstance(last, TextRun) or not self._decoder.is_between_events or self._runs.keeps_bytes:
            return None
        if last.pattern is not self._pattern:
            self._pattern, self._lane_of_pattern = last.pattern, taker.lane(last.pattern)
        return self._lane_of_pattern

    def _read(self, data: bytes, batch: list[ProviderEvent | TextRun]) -> None:
        if not data:
            rest = self._runs.rest()
            self._parse((self._feed(rest) if rest else []) + self._decoder.finish(), batch)
        while data and not self._decoder.is_done:
            if self._decoder.is_between_events:
                run, data = self._runs.take(data)
                if run is not None:
                    batch.append(run)
                if not data:
                    return
            # While a run may begin with the next event, one event at a time.
            end = data.find(b"\n\n") + 2 if self._runs.may_come else 0
            piece, data = (data[:end], data[end:]) if end > 1 else (data, b"")
            self._parse(self._feed(piece) if piece else [], batch)

    def _feed(self, data: bytes) -> list[SseEvent]:
        try:
            return self._decoder.feed(data)
        except EventTooLong as error:
            raise self._errors.fault("malformed", str(error)) from error

    def _parse(self, events: list[SseEvent], batch: list[ProviderEvent | TextRun]) -> None:
        for event in events:
            try:
                self._parse_one(event, batch)
            except UpstreamError as error:
                if error.code != "malformed" or not self._stream.is_finished:
                    raise  # else it is a part of the trailer, which is missing then

    def _parse_one(self, event: SseEvent, batch: list[ProviderEvent | TextRun]) -> None:
        for payload in _payloads(event, self._errors):
            chunk: Chunk | None = self._stream.chunk(payload)
            if chunk is not None:
                batch.append(chunk)
                if event.is_plain and self._runs.may_come:
                    self._runs.learn(event.data, payload, chunk)


def _payloads(event: SseEvent, errors: ErrorReader) -> Iterator[Any]:
    """Parse an event. Lines that are each an object came from a server that ends events with one LF.

    An event with nothing in it says nothing: some servers and proxies keep a connection alive so.
    """
    try:
        payload = json.loads(event.data)
    except ValueError as whole_error:
        if not event.data.strip() and event.name != "error":
            return
        lines = [line for line in event.data.split(b"\n") if line.strip() not in (b"", b"[DONE]")]
        if b"\n" not in event.data:
            lines = []
        try:
            yield from [json.loads(line) for line in lines]
        except ValueError:
            lines = []
        if not lines:
            message = "the upstream sent an event that is not JSON"
            raise errors.fault("malformed", message, raw=sample(event.data)) from whole_error
        return
    is_bare_error = event.name == "error" and not (isinstance(payload, dict) and "error" in payload)
    yield {"error": payload} if is_bare_error else payload


def sample(data: bytes) -> str:
    """The beginning of some bytes, as words for people."""
    return data[: 8 * 1024].decode("utf-8", "replace")
