"""TextRuns: events that repeat an earlier one in every byte but their text, taken without parsing the rest.

Nine in ten events of a stream say `{"id": ..., "delta": {"content": "word"}}` with the same bytes around the
word. Once such an event has been parsed and understood, the bytes before and after its text are a pattern:
what stands between them in a later event is one JSON string or the event is parsed like any other.
Knows the bytes of an event; not what chunks mean, nor where bytes come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from ionrouter.schema.events import Chunk, TextRun

MAX_TAIL_BYTES = 64 * 1024  # of an event that is not whole yet
MAX_MISSES = 8  # patterns learned for nothing: this upstream changes more than the text in every event
_PROBE = "\x01ion\x01"
_KEYS = ("content", "text")


class TextRuns:
    """One stream's pattern. `take` before the decoder, `learn` from what the decoder found."""

    def __init__(self) -> None:
        self._pattern: Chunk | None = None
        self._key = ""
        self._before = self._after = b""
        self._tail = b""  # the beginning of an event that fits so far
        self._num_misses = 0

    @property
    def may_come(self) -> bool:
        """Ask whether it is worth looking for runs."""
        return self._num_misses < MAX_MISSES

    def take(self, data: bytes) -> tuple[TextRun | None, bytes]:
        """Return the run that `data` begins with, and the bytes that are no part of it.

        To be called at the start of an event only. The beginning of an event that may belong to the run is
        kept for the next call; `rest` gives it up.
        """
        if self._pattern is None:
            return None, data
        if self._tail:
            data, self._tail = self._tail + data, b""
        texts, literals, at = self._matches(data)
        rest = data[at:]
        if rest and len(rest) < MAX_TAIL_BYTES and self._may_fit(rest):
            self._tail, rest = rest, b""
        if not texts:
            return None, rest
        self._num_misses = 0
        return TextRun(self._pattern, self._key, tuple(texts), tuple(literals)), rest

    def one(self, data: bytes) -> tuple[str, bytes] | None:
        """Return the text, and that as JSON, if `data` is one event of the run and nothing else.

        To be called where `take` may be, and not while it keeps anything.
        """
        if not (data.startswith(self._before) and data.endswith(self._after)):
            return None
        literal = data[len(self._before) : -len(self._after)]
        try:
            text = orjson.loads(literal)  # no JSON, if a second event is in it
        except orjson.JSONDecodeError:
            return None
        return (text, literal) if type(text) is str else None

    @property
    def keeps_bytes(self) -> bool:
        """Ask whether the beginning of an event is kept."""
        return bool(self._tail)

    def rest(self) -> bytes:
        """Give up the beginning of an event that was kept."""
        rest, self._tail = self._tail, b""
        return rest

    def learn(self, event: bytes, payload: Any, chunk: Chunk) -> None:
        """Make a pattern of an event (its data, of a `data: ` line), if it holds text and nothing else."""
        key = _only_text(chunk)
        if key is None:
            return
        self._num_misses += 1  # until it has been of use
        text = chunk.choices[0].delta[key]
        for literal in _literals(text):
            before, found, after = event.partition(literal)
            if found and _is_pattern(before, after, payload, key, text):
                self._pattern, self._key = chunk, key
                self._before, self._after = b"data: " + before, after + b"\n\n"
                return

    def _matches(self, data: bytes) -> tuple[list[str], list[bytes], int]:
        before, after, loads = self._before, self._after, orjson.loads
        num_before, num_after, at = len(before), len(after), 0
        texts: list[str] = []
        literals: list[bytes] = []
        while data.startswith(before, at):
            # No JSON string holds a line feed, so the first place where `after` fits is the event's end.
            end = data.find(after, at + num_before)
            if end < 0:
                break
            literal = data[at + num_before : end]
            try:
                text = loads(literal)
            except orjson.JSONDecodeError:
                break
            if type(text) is not str:
                break
            texts.append(text)
            literals.append(literal)
            at = end + num_after
        return texts, literals, at

    def _may_fit(self, rest: bytes) -> bool:
        """Ask whether an unfinished event could still become one of the run."""
        if len(rest) <= len(self._before):
            return self._before.startswith(rest)
        return rest.startswith(self._before) and b"\n\n" not in rest


def _only_text(chunk: Chunk) -> str | None:
    """The key of the text of a chunk that holds one choice's text and nothing else that counts."""
    if len(chunk.choices) != 1 or chunk.usage is not None:
        return None
    choice = chunk.choices[0]
    if choice.finish_reason or choice.native_finish_reason or choice.logprobs or choice.stop_sequence:
        return None
    keys = [key for key in choice.delta if key != "role"]
    return keys[0] if len(keys) == 1 and keys[0] in _KEYS and choice.delta[keys[0]] else None


def _is_pattern(before: bytes, after: bytes, payload: Any, key: str, text: str) -> bool:
    """Ask by trial whether what stands between these bytes is the text, and the text alone."""
    if b"\n" in before or b"\r" in before or b"\n" in after or b"\r" in after:
        return False
    try:
        probed = orjson.loads(before + orjson.dumps(_PROBE) + after)
        choice, other = payload["choices"][0], probed["choices"][0]
        holder, changed = (choice["delta"], other["delta"]) if "delta" in choice else (choice, other)
        if holder.get(key) != text or changed.get(key) != _PROBE:
            return False
        changed[key] = text
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError):
        return False
    return bool(probed == payload) and not payload.get("usage")


def _literals(text: str) -> Iterator[bytes]:
    """The text as a JSON string in the two spellings that servers use: UTF-8, and ASCII with escapes."""
    try:
        yield orjson.dumps(text)
    except TypeError:
        return  # half a surrogate pair: no Unicode, so no run
    if not text.isascii():
        yield b'"' + b"".join(_escape(character) for character in text) + b'"'


def _escape(character: str) -> bytes:
    if character.isascii():
        return orjson.dumps(character)[1:-1]
    units = character.encode("utf-16-be")
    return b"".join(b"\\u" + units[i : i + 2].hex().encode() for i in range(0, len(units), 2))
