"""Counting an answer's tokens and gaps as events pass: usage as reported, else estimated. No prices."""

from __future__ import annotations

from dataclasses import dataclass, field

from ionrouter.schema.assemble import as_chunk
from ionrouter.schema.events import Chunk, Complete, FinishReason, ProviderEvent, TextRun
from ionrouter.schema.tool_calls import CalledTool
from ionrouter.schema.usage import Usage

CHARACTERS_PER_TOKEN = 4


@dataclass(slots=True)
class Tally:
    """What came out of the upstream so far."""

    usage: Usage | None = None
    num_characters: int = 0
    first_at: float | None = None  # of the first event a client could use
    last_at: float | None = None
    max_gap_s: float | None = None
    finish_reason: FinishReason | None = None
    native_finish_reason: str | None = None
    upstream_id: str | None = None
    service_tier: str | None = None
    upstream_model: str | None = None
    calls: dict[tuple[int, int], CalledTool] = field(default_factory=dict)  # by choice and index

    def add(self, event: ProviderEvent | TextRun, now: float) -> None:
        """Count one event, or several that came together."""
        if isinstance(event, TextRun):
            self.add_text(sum(map(len, event.texts)), now)
            return
        if event.usage is not None:
            self.usage = event.usage  # the last one stands: some repeat it
        chunk = as_chunk(event) if isinstance(event, Complete) else event
        self._note(chunk)
        if event.commits:
            for choice in chunk.choices:
                self.num_characters += _length(choice.delta)
            self._mark(now)

    def add_text(self, num_characters: int, now: float) -> None:
        """Count text that came alone, or several that came together."""
        if num_characters:
            self.num_characters += num_characters
            self._mark(now)

    def _mark(self, now: float) -> None:
        if self.last_at is not None:
            self.max_gap_s = max(self.max_gap_s or 0.0, now - self.last_at)
        self.first_at, self.last_at = self.first_at if self.first_at is not None else now, now

    def _note(self, chunk: Chunk) -> None:
        """Remember how it ended and what the upstream calls it."""
        self.upstream_id = chunk.upstream_id or self.upstream_id
        self.service_tier = chunk.service_tier or self.service_tier
        self.upstream_model = chunk.upstream_model or self.upstream_model
        for choice in chunk.choices:
            if calls := choice.delta.get("tool_calls"):
                self._note_calls(choice.index, calls)
            if choice.finish_reason is not None:
                self.finish_reason = choice.finish_reason
                self.native_finish_reason = choice.native_finish_reason or choice.finish_reason

    def _note_calls(self, choice: int, fragments: object) -> None:
        """Put the fragments of each call together."""
        for fragment in fragments if isinstance(fragments, list) else ():
            call = self.calls.setdefault((choice, fragment.get("index", 0)), CalledTool())
            call.add(fragment.get("function") or {})

    def usage_or_estimate(self, num_in: int) -> tuple[Usage, bool]:
        """The upstream's word, even if it is 0; else four characters a token."""
        if self.usage is not None:
            return self.usage, False
        return Usage(num_in, -(-self.num_characters // CHARACTERS_PER_TOKEN)), True


def _length(delta: dict[str, object]) -> int:
    """Characters of text in a delta, tool calls included."""
    total = 0
    for key in ("content", "text", "reasoning", "refusal"):
        value = delta.get(key)
        total += len(value) if isinstance(value, str) else 0
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") or {}
        total += len(function.get("name") or "") + len(function.get("arguments") or "")
    return total
