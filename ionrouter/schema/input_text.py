"""A custom tool's text out of its function's arguments, while these come. Knows no surface."""

from __future__ import annotations

import json
import re

from ionrouter.schema.responses_tools import INPUT, as_input

_BEGIN = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
# Characters, none of them half. A backslash that begins no escape is one that a model forgot to escape.
_WHOLE = re.compile(r'(?:[^"\\]+|\\(?:[^u]|u[0-9a-fA-F]{4}|u(?=[0-9a-fA-F]{0,3}[^0-9a-fA-F])))*', re.S)
_LONE = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\', re.S)
_HALF_PAIR = re.compile(r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})$")
_DECODER = json.JSONDecoder(strict=False)  # models write new lines as they are, too


class InputText:
    """Takes pieces of JSON and gives pieces of the text in it."""

    __slots__ = ("_has_begun", "_pieces", "_said", "_tail")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._said: list[str] = []
        self._tail = ""  # what cannot be read yet
        self._has_begun = False

    def add(self, piece: str) -> str:
        """Take one in; returns the text that is known with it."""
        self._pieces.append(piece)
        self._tail += piece
        if not self._has_begun:
            if (found := _BEGIN.match(self._tail)) is None:
                return ""
            self._has_begun, self._tail = True, self._tail[found.end() :]
        found = _WHOLE.match(self._tail)
        raw = found[0] if found else ""
        is_over = self._tail.startswith('"', len(raw))
        if not is_over and (half := _HALF_PAIR.search(raw)):
            raw = raw[: half.start(1)]
        text = _decoded(raw)
        self._tail = self._tail[len(raw) :]
        if text:
            self._said.append(text)
        return text

    def rest(self) -> str:
        """The text that was not given yet, now that nothing more comes: all of it, where it is no `input`."""
        return "" if self._has_begun else as_input("".join(self._pieces))

    def whole(self) -> str:
        """All of it."""
        return "".join(self._said) if self._has_begun else self.rest()


def _decoded(raw: str) -> str:
    try:
        text: str = _DECODER.decode(f'"{raw}"')
    except ValueError:
        mended = _LONE.sub(lambda found: found[1] or r"\\", raw)
        text = _DECODER.decode(f'"{mended}"')
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # halves of pairs are none
