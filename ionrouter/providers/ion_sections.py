"""Cuts an answer's text as it comes into thought, content and tool calls; what may be a marker waits.

Knows formats of text (engine/tool_format.py); knows no tokens, chunks or requests. One answer each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ionrouter.engine.tool_format import END_THINK, THINK, ToolFormat

Kind = Literal["reasoning", "content", "call", "arguments"]


@dataclass(frozen=True, slots=True)
class Section:
    """A piece of one kind. `call`: a call begins, `text` is its name; `arguments` belong to the last call."""

    kind: Kind
    text: str


class Sections:
    """Feed text, read sections; `end` gives what still waits. Half a marker at the end is text."""

    def __init__(self, form: ToolFormat | None, *, thinks: bool, is_thinking: bool = False) -> None:
        self._form = form
        self._rest = ""
        self._state = self._thought if is_thinking else self._start if thinks else self._beginning
        self._is_thought_begun = False
        self._has_content = False
        self._json = _JsonEnd()
        self._num_behind_open: int | None = (
            None  # characters behind the marker in the piece that completed it
        )
        self._num_behind_close: int | None = None

    def feed_and_mark(self, text: str) -> tuple[list[Section], str | None]:
        """Take the next piece; return, too, what of it belongs to a thought, its end marker included, if any.

        Such a part may be empty: the piece opened the thought, or brought no whole character of it.
        """
        was_thinking = self._state == self._thought
        self._num_behind_open = self._num_behind_close = None
        sections = self.feed(text)
        if not was_thinking and self._num_behind_open is None:
            return sections, None
        begin = 0 if self._num_behind_open is None else len(text) - self._num_behind_open
        return sections, text[begin : len(text) - (self._num_behind_close or 0)]

    def passes(self, text: str) -> bool:
        """Whether this piece is content as it stands, known without looking further; it is taken then."""
        trigger = self._form.trigger if self._form is not None else None
        is_plain = self._state == self._content and not self._rest
        if trigger:
            is_plain = is_plain and trigger[0] not in text and not text[-1:].isspace()
        self._has_content = self._has_content or is_plain
        return is_plain

    def feed(self, text: str) -> list[Section]:
        """Take the next piece of the answer."""
        self._rest += text
        return list(self._advance(is_end=False))

    def end(self) -> list[Section]:
        """The answer is over."""
        return list(self._advance(is_end=True))

    def _advance(self, *, is_end: bool) -> Iterator[Section]:
        while True:
            state, length = self._state, len(self._rest)
            yield from state(is_end)
            if self._state == state and len(self._rest) == length:
                return

    def _start(self, is_end: bool) -> Iterator[Section]:
        """Before anything: a thought may begin."""
        found = self._rest.lstrip()
        if found.startswith(THINK):
            self._rest = found[len(THINK) :]
            self._num_behind_open = len(self._rest)
            self._state = self._thought
        elif is_end or not THINK.startswith(found):
            self._state = self._beginning
        yield from ()

    def _thought(self, is_end: bool) -> Iterator[Section]:
        text, found, after = self._rest.partition(END_THINK)
        held = 0 if found or is_end else _num_held_with_space(text, END_THINK)
        said, self._rest = text[: len(text) - held], after if found else text[len(text) - held :]
        if not self._is_thought_begun:
            said = said.lstrip("\n")
        if found:
            said = said.rstrip()
            self._num_behind_close = len(after)
            self._state = self._gap
        self._is_thought_begun = self._is_thought_begun or bool(said)
        if said:
            yield Section("reasoning", said)

    def _gap(self, is_end: bool) -> Iterator[Section]:
        """The white space between a thought and what follows is neither's."""
        self._rest = self._rest.lstrip()
        if self._rest:
            self._state = self._beginning
        yield from ()

    def _beginning(self, is_end: bool) -> Iterator[Section]:
        """Where a call without a trigger may stand."""
        form = self._form
        if form is None or form.trigger is not None:
            self._state = self._content
        elif self._rest.startswith(form.open):
            self._rest = self._rest[len(form.open) :]
            self._state = self._name
        elif is_end or not form.open.startswith(self._rest):
            self._state = self._content
        yield from ()

    def _content(self, is_end: bool) -> Iterator[Section]:
        trigger = self._form.trigger if self._form is not None else None
        if trigger is None:
            text, found, after = self._rest, "", ""
        else:
            text, found, after = self._rest.partition(trigger)
        held = 0 if found or is_end or trigger is None else _num_held_with_space(text, trigger)
        said, self._rest = text[: len(text) - held], after if found else text[len(text) - held :]
        if found:
            said = said.rstrip()
            self._state = self._opening
        self._has_content = self._has_content or bool(said)
        if said:
            yield Section("content", said)

    def _opening(self, is_end: bool) -> Iterator[Section]:
        """Behind the trigger: what is left of the first call's opening."""
        form = self._known()
        wanted = (form.begin + form.open).removeprefix(form.trigger or "")
        yield from self._expect(wanted, self._name, is_end)

    def _name(self, is_end: bool) -> Iterator[Section]:
        name, found, after = self._rest.partition(self._known().middle)
        if found:
            self._rest, self._state, self._json = after, self._arguments, _JsonEnd()
            yield Section("call", name)

    def _arguments(self, is_end: bool) -> Iterator[Section]:
        length = self._json.feed(self._rest)
        if length:
            said, self._rest = self._rest[:length], self._rest[length:]
            yield Section("arguments", said)
        if self._json.is_over:
            self._state = self._closing

    def _closing(self, is_end: bool) -> Iterator[Section]:
        yield from self._expect(self._known().close, self._after_call, is_end)

    def _after_call(self, is_end: bool) -> Iterator[Section]:
        """Another call, or the end; text behind calls belongs to neither and is content."""
        form = self._known()
        again, last = form.between + form.open, form.end
        if self._rest.startswith(again):
            self._rest, self._state = self._rest[len(again) :], self._name
        elif last and self._rest.startswith(last):
            self._rest, self._state = self._rest[len(last) :], self._content
        elif self._rest and not again.startswith(self._rest) and not (last and last.startswith(self._rest)):
            self._state = self._content
        yield from ()

    def _expect(self, wanted: str, then: Any, is_end: bool) -> Iterator[Section]:
        """The grammar lets nothing else follow; where there was none, what does is content."""
        if self._rest.startswith(wanted):
            self._rest, self._state = self._rest[len(wanted) :], then
        elif not wanted.startswith(self._rest):
            self._state = self._content
        yield from ()

    def _known(self) -> ToolFormat:
        assert self._form is not None
        return self._form


class _JsonEnd:
    """Finds where a JSON object ends, a piece at a time."""

    def __init__(self) -> None:
        self.is_over = False
        self._depth = 0
        self._is_text = False
        self._is_escaped = False

    def feed(self, text: str) -> int:
        """Count the characters that belong to the object; `is_over` after its last."""
        for index, character in enumerate(text):
            if self.is_over:
                return index
            self._take(character)
        return len(text)

    def _take(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif self._is_text:
            self._is_escaped = character == "\\"
            self._is_text = character != '"'
        elif character == '"':
            self._is_text = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.is_over = self._depth <= 0


def _num_held(text: str, marker: str) -> int:
    """Count the characters at the end that may be the marker's beginning."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)


def _num_held_with_space(text: str, marker: str) -> int:
    """Count these and the white space before them, which is dropped if the marker comes."""
    before = text[: len(text) - _num_held(text, marker)]
    return len(text) - len(before.rstrip())
