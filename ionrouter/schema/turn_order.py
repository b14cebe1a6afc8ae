"""The order of what an assistant thought, said and called in one turn, where a chat message cannot say it.

Chat has a list of each, and means thoughts, then text, then calls. Claude's own turns may be mixed, and it
refuses signed thoughts that were moved. Knows no surface and no wire.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ionrouter.schema.fields import TURN_ORDER

THOUGHT, TEXT, CALL = "thought", "text", "call"
RANKS: Mapping[str, int] = {THOUGHT: 0, TEXT: 1, CALL: 2}  # as chat has them
_LISTS = ((THOUGHT, "reasoning_details"), (TEXT, "content"), (CALL, "tool_calls"))
_ITEMS = ("reasoning_details", "tool_calls")
_PLAIN = ("reasoning", "reasoning_content", TURN_ORDER)


def in_order(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Cut a mixed turn into messages of which each has chat's own order, and all together the turn's.

    What the order does not name comes last. A message without one is given as it is.
    """
    order = message.get(TURN_ORDER)
    if not isinstance(order, list):
        yield dict(message)
        return
    waiting = {kind: _listed(message.get(name)) for kind, name in _LISTS}
    rest = {name: value for name, value in message.items() if name not in (*dict(_LISTS).values(), *_PLAIN)}
    named = [kind for kind in order if isinstance(kind, str) and kind in RANKS]
    unnamed = [kind for kind in RANKS for _ in waiting[kind][named.count(kind) :]]
    piece: dict[str, list[Any]] = {}
    last = 0
    for kind in (*named, *unnamed):
        if not waiting[kind]:
            continue
        if RANKS[kind] < last and piece:
            yield {**rest, **_message(piece)}
            piece = {}
        last = RANKS[kind]
        if not _is_blank(part := waiting[kind].pop(0)):  # alone in a message, litellm would write about it
            piece.setdefault(kind, []).append(part)
    if piece:
        yield {**rest, **_message(piece)}


def order_of(told: Any, message: Mapping[str, Any]) -> tuple[str | int, ...]:
    """Read a whole answer's order: THOUGHT, CALL, or how many characters of text; () if it does not fit."""
    if not isinstance(told, list) or not all(map(_is_place, told)):
        return ()
    num_characters = sum(one for one in told if isinstance(one, int))
    if num_characters != len(message.get("content") or ""):
        return ()
    nums = {kind: len(message.get(name) or ()) for kind, name in _LISTS if kind != TEXT}
    return tuple(told) if all(told.count(kind) == num for kind, num in nums.items()) else ()


def _is_place(one: Any) -> bool:
    return one in (THOUGHT, CALL) if isinstance(one, str) else isinstance(one, int) and one >= 0


def deltas_of(message: Mapping[str, Any], order: tuple[str | int, ...]) -> Iterator[dict[str, Any]]:
    """Cut a whole answer into deltas as a stream would have them; the first has all else that it says."""
    text, thoughts, calls = message["content"] or "", *(iter(message.get(name) or ()) for name in _ITEMS)
    held = (*_ITEMS, *_PLAIN, "content")
    yield {name: value for name, value in message.items() if name not in held}
    position = 0
    for one in order:
        if isinstance(one, int):
            yield {"content": text[position : position + one]}
            position += one
        elif one == THOUGHT:
            yield {"reasoning_details": [next(thoughts)]}
        else:
            yield {"tool_calls": [next(calls)]}


def _listed(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    return list(value) if isinstance(value, list) else []


def _is_blank(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and not str(part.get("text")).strip()


def _message(piece: Mapping[str, list[Any]]) -> dict[str, Any]:
    return {"content": None} | {name: piece[kind] for kind, name in _LISTS if kind in piece}
