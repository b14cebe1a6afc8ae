"""SseDecoder: server-sent events framed on bytes, cut anywhere. Knows nothing of JSON, HTTP or chat.

The WHATWG rules (HTML standard, "Event stream interpretation") with the leniences real upstreams need:
the last event needs no blank line, `[DONE]` ends at once, `error: {...}` (llama.cpp) and a bare JSON
line count as data. Bytes are handed on whole, so half a character is never decoded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_EVENT_BYTES = 16 * 1024 * 1024  # images travel as base64 inside one event
_BOM = b"\xef\xbb\xbf"
_DONE = b"[DONE]"


class EventTooLong(ValueError):
    """One event is larger than the decoder will hold."""


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event's data, lines joined by LF, and its name ("" for the usual kind).

    `is_plain`: it was one `data: ` line, no other field, no other spelling.
    """

    data: bytes
    name: str = ""
    is_plain: bool = field(default=False, compare=False)


class SseDecoder:
    """Feed bytes as they come; events come out as soon as they are whole.

    `buffer` holds [start of the pending event, end of input); bytes before `_scanned` hold no blank line.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.is_done = False  # [DONE] was seen: whatever follows is ignored
        self._max_event_bytes = max_event_bytes
        self._buffer = bytearray()
        self._scanned = 0
        self._after_cr = False  # the last byte was CR: an LF now belongs to it
        self._head: bytes | None = b""  # the first bytes, until we know whether they are a BOM

    @property
    def is_between_events(self) -> bool:
        """Ask whether the next byte begins an event."""
        return not (self._buffer or self._after_cr or self.is_done) and self._head is None

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return the events completed by `data`; raises EventTooLong."""
        if self.is_done:
            return []
        if self._head is not None:
            data = self._without_bom(data)
        self._buffer += self._with_lf(data)
        events = self._whole_events()
        if len(self._buffer) > self._max_event_bytes:
            raise EventTooLong(f"an event is longer than {self._max_event_bytes} bytes")
        return events

    def finish(self) -> list[SseEvent]:
        """Return what a clean end of input completes: a last event without its blank line."""
        if self.is_done:
            return []
        if self._head:
            self._buffer += self._with_lf(self._head)
            self._head = None
        block, self._buffer = bytes(self._buffer), bytearray()
        event = self._event(block)
        return [] if event is None else [event]

    def _without_bom(self, data: bytes) -> bytes:
        head = (self._head or b"") + data
        if len(head) < len(_BOM) and _BOM.startswith(head):
            self._head = head
            return b""
        self._head = None
        return head.removeprefix(_BOM)

    def _with_lf(self, data: bytes) -> bytes:
        """Make every line end an LF; CR alone ends a line too, so a CR never waits for its LF."""
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data

    def _whole_events(self) -> list[SseEvent]:
        events: list[SseEvent] = []
        start = 0
        while (end := self._buffer.find(b"\n\n", max(self._scanned, start))) >= 0:
            event = self._event(bytes(self._buffer[start:end]))
            start = end + 2
            if event is not None:
                events.append(event)
            if self.is_done:
                break
        del self._buffer[:start]
        self._scanned = max(len(self._buffer) - 1, 0)
        self._see_early_done()
        return events

    def _see_early_done(self) -> None:
        # No JSON starts with [DONE], so nothing that follows could change what this line means.
        if len(self._buffer) < 32 and _is_done_line(bytes(self._buffer)):
            self.is_done = True

    def _event(self, block: bytes) -> SseEvent | None:
        if block.startswith(b"data: ") and b"\n" not in block:
            return self._data_event(block[6:], "", is_plain=True)
        lines: list[bytes] = []
        name = ""
        for line in block.split(b"\n"):
            field, _, value = line.partition(b":")
            if line.startswith(b"{"):
                lines.append(line)
            elif field == b"data":
                lines.append(value.removeprefix(b" "))
            elif field == b"event":
                name = value.strip().decode("utf-8", "replace")
            elif field == b"error":
                name = "error"
                lines.append(value.removeprefix(b" "))
        return self._data_event(b"\n".join(lines), name) if lines else None

    def _data_event(self, data: bytes, name: str, *, is_plain: bool = False) -> SseEvent | None:
        if len(data) < 16 and data.strip() == _DONE:
            self.is_done = True
            return None
        return SseEvent(data, name, is_plain)


def _is_done_line(line: bytes) -> bool:
    field, _, value = line.strip().partition(b":")
    return field == b"data" and value.strip() == _DONE
