"""The `response-healing` plugin: JSON that a model wrapped or left open, made parseable again. Pure.

Mends code fences, prose around, trailing commas, bare keys, missing closing brackets. Never guesses values,
and leaves an answer alone that was cut off by its length.
"""

from __future__ import annotations

import json
import re
from itertools import islice

from msgspec.structs import replace

from ionrouter.schema.events import Choice, Complete
from ionrouter.schema.plugins import RESPONSE_HEALING, is_enabled
from ionrouter.schema.request import InferenceRequest

_FENCE = re.compile(r"```[A-Za-z0-9_-]*[ \t]*\n?(.*?)(?:```|\Z)", re.DOTALL)
_BARE_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*(?=\s*:)")
_IS_BARE = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")
_OPENING = re.compile(r"[{\[]")
MAX_STARTS = 8  # brackets at which an answer is looked for
MAX_CHARACTERS = 128 * 1024  # of a text that is mended: longer ones would hold up everybody else
_CLOSING = {"{": "}", "[": "]"}
_JSON_FORMATS = ("json_object", "json_schema")


def wants_healing(request: InferenceRequest) -> bool:
    """Ask whether the caller wants a whole JSON answer mended."""
    wanted = request.body.get("response_format")
    is_json = isinstance(wanted, dict) and wanted.get("type") in _JSON_FORMATS
    return is_json and not request.stream and is_enabled(request.gateway_fields, RESPONSE_HEALING)


def healed_answer(complete: Complete) -> tuple[Complete, bool]:
    """Mend every choice that needs it and can be mended; tells whether any was changed."""
    choices = tuple(_healed_choice(choice) for choice in complete.choices)
    is_changed = any(a is not b for a, b in zip(choices, complete.choices, strict=True))
    return (replace(complete, choices=choices) if is_changed else complete), is_changed


def _healed_choice(choice: Choice) -> Choice:
    content = choice.message.get("content")
    if not isinstance(content, str) or choice.finish_reason != "stop":
        return choice
    mended = heal(content)
    if mended is None or mended == content:
        return choice
    return replace(choice, message={**choice.message, "content": mended})


def heal(text: str) -> str | None:
    """Return text that parses as a JSON object or array, `text` itself if it does; None if there is none."""
    if _parses(text):
        return text
    if len(text) > MAX_CHARACTERS:
        return None
    fenced = _FENCE.search(text)
    for source in ([fenced.group(1)] if fenced else []) + [text]:
        starts = [found.start() for found in islice(_OPENING.finditer(source), MAX_STARTS)]
        mended = [value for start in starts if _parses(value := _mended(source[start:]))]
        if mended:
            return max(mended, key=len)  # a bracket in the prose around is shorter than the answer
    return None


def _parses(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


def _mended(text: str) -> str:
    """Copy one JSON value from its opening bracket to its end, mending on the way."""
    copy = _Copy()
    position = 0
    while position < len(text) and not copy.is_closed:
        piece = _piece(text, position, is_key=copy.expects_key)
        position += len(piece)
        copy.add(piece)
    return copy.closed()


def _piece(text: str, position: int, *, is_key: bool) -> str:
    """The next string, bare key or single character."""
    if text[position] == '"':
        return text[position : _string_end(text, position)]
    bare = _BARE_KEY.match(text, position) if is_key else None
    return bare.group() if bare else text[position]


class _Copy:
    """What was copied so far, and which brackets are open."""

    def __init__(self) -> None:
        self._out: list[str] = []
        self._open: list[str] = []  # the closing bracket of each
        self._last = -1  # index of the last piece that is no space
        self.is_closed = False

    @property
    def expects_key(self) -> bool:
        return self._open[-1:] == ["}"] and self._out[self._last] in ("{", ",")

    def add(self, piece: str) -> None:
        if self.expects_key and _IS_BARE.fullmatch(piece):
            piece = f'"{piece}"'
        if piece in _CLOSING:
            self._open.append(_CLOSING[piece])
        elif piece in ("}", "]"):
            self._close(piece)
            return
        self._append(piece)

    def closed(self) -> str:
        """The copy with what is still open closed."""
        if self._open:
            self._drop_comma()
        return "".join([*self._out, *reversed(self._open)])

    def _close(self, bracket: str) -> None:
        self._drop_comma()
        while self._open and self._open[-1] != bracket:
            self._append(self._open.pop())  # an inner bracket was forgotten
        if self._open:
            self._append(self._open.pop())
        self.is_closed = not self._open  # what follows is prose

    def _append(self, piece: str) -> None:
        if not piece.isspace():
            self._last = len(self._out)
        self._out.append(piece)

    def _drop_comma(self) -> None:
        """Take back a comma after which nothing came."""
        if self._last >= 0 and self._out[self._last] == ",":
            self._out[self._last] = ""


def _string_end(text: str, start: int) -> int:
    position = start + 1
    while position < len(text) and text[position] != '"':
        position += 2 if text[position] == "\\" else 1
    return min(position + 1, len(text))
