"""ChunkReader: an answer's server-sent events as chunks, all that one read brings together in one batch.

Joins the framing of bytes, runs of plain text, JSON and the normaliser. Knows no HTTP and no deadlines but
how long an answer's trailer may take.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from typing import Any, Protocol

from ionrouter.providers.base import UpstreamRequest
from ionrouter.providers.batches import in_batches
from ionrouter.providers.http_errors import ErrorReader
from ionrouter.providers.http_faults import Cut
from ionrouter.providers.normalise import StreamNormaliser
from ionrouter.providers.sse import EventTooLong, SseDecoder, SseEvent
from ionrouter.providers.text_runs import TextRuns
from ionrouter.providers.upstream_body import count_choices
from ionrouter.schema import json
from ionrouter.schema.events import Chunk, ProviderEvent, TextRun


class Source(Protocol):
    """Where bytes come from."""

    async def readany(self) -> bytes: ...


class ChunkReader:
    """Reads one stream. `trailer_s`: how long after the last finish reason usage and [DONE] may take."""

    def __init__(self, request: UpstreamRequest, errors: ErrorReader, trailer_s: float) -> None:
        self._errors, self._trailer_s = errors, trailer_s
        self._stream = StreamNormaliser(request.kind, errors, count_choices(request.body))
        self._decoder, self._runs = SseDecoder(), TextRuns()

    def batches(self, source: Source) -> AsyncGenerator[list[ProviderEvent | TextRun], None]:
        """Yield what each read completes; raises UpstreamError after what came before the fault."""
        return in_batches(partial(self._next, source), self._take_in)

    def _take_in(self, data: bytes, batch: list[ProviderEvent | TextRun]) -> bool:
        self._read(data, batch)
        is_over = self._decoder.is_done or not data
        if is_over:
            batch += self._stream.end(is_done=self._decoder.is_done)
        return is_over

    async def _next(self, source: Source) -> bytes:
        """Read what is there, b"" at the end. After the last finish the end may be waited for briefly."""
        if not self._stream.is_finished:
            return await source.readany()
        try:
            async with asyncio.timeout(self._trailer_s):
                return await source.readany()
        except (TimeoutError, Cut):
            return b""  # the answer is whole; only its trailer is missing

    def _read(self, data: bytes, batch: list[ProviderEvent | TextRun]) -> None:
        if not data:
            rest = self._runs.rest()
            self._parse((self._feed(rest) if rest else []) + self._decoder.finish(), batch)
        while data and not self._decoder.is_done:
            if self._decoder.is_between_events:
                run, data = self._runs.take(data)
                if run is not None:
                    batch.append(run)
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
            for payload in _payloads(event, self._errors):
                chunk: Chunk | None = self._stream.chunk(payload)
                if chunk is not None:
                    batch.append(chunk)
                    if event.is_plain and self._runs.may_come:
                        self._runs.learn(event.data, payload, chunk)


def _payloads(event: SseEvent, errors: ErrorReader) -> Iterator[Any]:
    """Parse an event. Lines that are each an object came from a server that ends events with one LF."""
    try:
        payload = json.loads(event.data)
    except ValueError as whole_error:
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
