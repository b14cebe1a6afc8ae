"""Tool calls one after another, for surfaces that show one block or item at a time. Knows no surface.

Upstreams send a call's fragments together, in practice. Where two calls are interleaved the later one waits
until the earlier one's arguments are whole, or the answer ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    arguments: str = ""
    num_written: int = 0  # characters of arguments written
    is_open: bool = False
    is_closed: bool = False


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
        return any(not call.is_closed and not _is_whole(call.arguments) for call in self._calls.values())

    def add(self, fragments: Sequence[Mapping[str, Any]]) -> None:
        """Note a delta's `tool_calls`."""
        for fragment in fragments:
            call = self._calls.setdefault(fragment.get("index", 0), _Call())
            function = fragment.get("function") or {}
            call.id = call.id or fragment.get("id") or ""
            call.name = call.name or function.get("name") or ""
            call.arguments += function.get("arguments") or ""

    def take(self, *, is_over: bool = False) -> Iterator[Step]:
        """Yield what can be written now; `is_over`: nothing more will come, write and close all."""
        waiting = [call for call in self._calls.values() if not call.is_closed]
        for position, call in enumerate(waiting):
            if not call.name and not is_over:
                return  # a block or item begins with its name
            if step := _written(call):
                yield step
            is_last = position == len(waiting) - 1
            if not is_over and (is_last or not _is_whole(call.arguments)):
                return
            call.is_closed = True
            yield Step(call.id, call.name, closes=True)


def _written(call: _Call) -> Step | None:
    fresh, opens = call.arguments[call.num_written :], not call.is_open
    call.num_written, call.is_open = len(call.arguments), True
    return Step(call.id, call.name, fresh, opens) if fresh or opens else None


def _is_whole(arguments: str) -> bool:
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):  # nested beyond reason: nobody knows, so more may follow
        return False
    return True
