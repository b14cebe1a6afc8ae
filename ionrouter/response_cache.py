"""Values by key, bounded in bytes and in time: what was not used for the longest time goes first.

Pure: knows no answers, and no clock but the `now` it is told.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")
PARTS = 8  # one value may fill so much of the whole, or one large answer would drive out all others


@dataclass(frozen=True, slots=True)
class Entry(Generic[Value]):
    """A value that is kept. `made_at` is the time of `keep`, in seconds."""

    value: Value
    num_bytes: int
    made_at: float
    ttl_s: int


class ResponseCache(Generic[Value]):
    """Not for several threads. `max_bytes` 0: keeps nothing."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0  # of all values, also of those whose time is over and nobody asked for since
        self._entries: OrderedDict[Hashable, Entry[Value]] = OrderedDict()

    @property
    def max_value_bytes(self) -> int:
        return self.max_bytes // PARTS

    def find(self, key: Hashable, now: float) -> Entry[Value] | None:
        """Look one up that is not too old."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if now - entry.made_at >= entry.ttl_s:
            self.drop(key)
            return None
        self._entries.move_to_end(key)
        return entry

    def keep(self, key: Hashable, value: Value, num_bytes: int, ttl_s: int, now: float) -> None:
        """Keep a value in the place of the one that had its key; one that is too large takes it away only."""
        self.drop(key)
        if num_bytes > self.max_value_bytes:
            return
        self._entries[key] = Entry(value, num_bytes, now, ttl_s)
        self.num_bytes += num_bytes
        while self.num_bytes > self.max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self.num_bytes -= oldest.num_bytes

    def drop(self, key: Hashable) -> None:
        """Forget one, if it is there."""
        if (entry := self._entries.pop(key, None)) is not None:
            self.num_bytes -= entry.num_bytes
