"""An answer as it is kept, to be given again to whoever asks the same: its events, without what they cost.

Kept as bytes, because that is what a bound in bytes can count: as objects they are ten times as much. They
are pickled, which alone gives back every value as it was; this process wrote them, and nobody else can.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from ionrouter.schema.events import Batch, Chunk, Committed, Complete, Event, Finished, Source, TextRun
from ionrouter.schema.usage import Cost, Usage

AT_NO_COST = Finished(Usage(), Cost(), (), None)
EVENTS_A_PIECE = 256  # written to a client at once, a millisecond's work
OVERHEAD_BYTES = 2048  # of an entry, beside its pieces


class KeptAnswer(Struct, frozen=True):
    """What one answer was. `committed` says that it was kept."""

    source: Source
    committed: Committed
    pieces: tuple[bytes, ...]

    @property
    def num_bytes(self) -> int:
        return OVERHEAD_BYTES + sum(map(len, self.pieces))

    def batches(self) -> Iterator[Batch]:
        """Committed, then Chunks and runs of text, or one Complete, as they came."""
        yield [self.committed]
        for piece in self.pieces:
            yield cast(Batch, pickle.loads(piece))


class Recording:
    """Takes down the events of one answer while it is given, as far as `max_bytes` reach."""

    def __init__(self, max_bytes: int) -> None:
        self._room = max_bytes - OVERHEAD_BYTES
        self._pieces: list[bytes] = []
        self._events: list[Any] = []
        self._committed: Committed | None = None
        self._finished: Finished | None = None
        self._is_too_large = False

    def add(self, batch: Batch) -> None:
        """Take down what was given."""
        for event in batch:
            match event:
                case Committed():
                    self._committed = event
                case Finished():
                    self._finished = event
                case _:
                    self._events.append(_without_usage(event))
        if len(self._events) >= EVENTS_A_PIECE:
            self._pack()

    def answer(self, request_id: str) -> KeptAnswer | None:
        """The answer, once it has ended well; None for what did not, or is too large."""
        self._pack()
        if self._committed is None or self._finished is None or self._is_too_large:
            return None
        committed = replace(self._committed, attempt=0, reason=f"kept answer of {request_id}")
        return KeptAnswer(_source(request_id, self._finished), committed, tuple(self._pieces))

    def _pack(self) -> None:
        events, self._events = self._events, []
        if not events or self._is_too_large:
            return
        piece = _Piece(self._room)
        try:
            pickle.dump(events, piece, pickle.HIGHEST_PROTOCOL)
        except _TooLarge:
            self._is_too_large, self._pieces = True, []
            return
        self._pieces.append(piece.data())
        self._room = piece.room


class _TooLarge(Exception):
    """There is more than may be kept."""


class _Piece:
    """Where a pickle is written, as long as there is room: what is too large is not copied whole first."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._parts: list[bytes] = []

    def write(self, part: bytes) -> int:
        self.room -= len(part)
        if self.room < 0:
            raise _TooLarge
        self._parts.append(bytes(part))
        return len(part)

    def data(self) -> bytes:
        return b"".join(self._parts)


def _without_usage(event: Event | TextRun) -> Event | TextRun:
    if isinstance(event, Chunk) and event.usage is not None:
        return replace(event, usage=None)
    if isinstance(event, Complete):
        return replace(event, usage=None, search_units=None if event.search_units is None else 0)
    return event


def _source(request_id: str, finished: Finished) -> Source:
    if not finished.attempts:
        return Source(request_id)
    last = finished.attempts[-1]
    return Source(request_id, last.finish_reason, last.native_finish_reason, last.service_tier)
