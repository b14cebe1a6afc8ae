"""Tool calls one after another, for surfaces that show one block or item at a time. Knows no surface.

Upstreams send a call's fragments together, in practice. Where two calls are interleaved the later one waits
until the earlier one's arguments are whole, or the answer ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ionrouter.schema import json


@dataclass(frozen=True, slots=True)
class Step:
    """What to write next: a new call (`opens`), more arguments of the current one, or its end (`closes`)."""

    id: str
    name: str
    arguments: str = ""
    opens: bool = False
    closes: bool = False


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)  # of the arguments, none empty; joined where it must be
    num_written: int = 0  # of the pieces
    is_open: bool = False
    is_closed: bool = False
    _num_judged: int = -1  # of the pieces, when it was asked last whether they are whole
    _was_whole: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether its arguments are; asked at every event while another one waits."""
        if self._num_judged != len(self.pieces):
            self._num_judged, self._was_whole = len(self.pieces), _is_whole("".join(self.pieces))
        return self._was_whole


class ToolStream:
    """Takes fragments by index as they come; `take` gives steps, each call whole before the next begins."""

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}

    @property
    def has_calls(self) -> bool:
        return bool(self._calls)

    @property
    def is_mid_call(self) -> bool:
        """Whether a call is open whose arguments are not whole yet."""
        return any(not call.is_closed and not call.is_whole for call in self._calls.values())

    def add(self, fragments: Sequence[Mapping[str, Any]]) -> None:
        """Note a delta's `tool_calls`."""
        for fragment in fragments:
            call = self._calls.setdefault(fragment.get("index", 0), _Call())
            function = fragment.get("function") or {}
            call.id = call.id or fragment.get("id") or ""
            call.name = call.name or function.get("name") or ""
            if arguments := function.get("arguments"):
                call.pieces.append(arguments)

    def take(self, *, is_over: bool = False) -> Iterator[Step]:
        """Yield what can be written now; `is_over`: nothing more will come, write and close all."""
        waiting = [call for call in self._calls.values() if not call.is_closed]
        for position, call in enumerate(waiting):
            if not call.name and not is_over:
                return  # a block or item begins with its name
            if step := _written(call):
                yield step
            is_last = position == len(waiting) - 1
            if not is_over and (is_last or not call.is_whole):
                return
            call.is_closed = True
            yield Step(call.id, call.name, closes=True)


def _written(call: _Call) -> Step | None:
    fresh, opens = "".join(call.pieces[call.num_written :]), not call.is_open
    call.num_written, call.is_open = len(call.pieces), True
    return Step(call.id, call.name, fresh, opens) if fresh or opens else None


def _is_whole(arguments: str) -> bool:
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):  # nested beyond reason: nobody knows, so more may follow
        return False
    return True
