"""Counting an answer's tokens and gaps as events pass: usage as reported, else estimated. No prices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ionrouter.schema.events import Choice, FinishReason, Lane, ProviderEvent, TextRun
from ionrouter.schema.tool_calls import CalledTool
from ionrouter.schema.usage import CHARACTERS_PER_TOKEN, Usage


class Tally(Struct):
    """What came out of the upstream so far."""

    usage: Usage | None = None
    num_characters: int = 0  # not of what comes whole and with its usage
    first_at: float | None = None  # of the first event a client could use
    last_at: float | None = None
    max_gap_s: float | None = None
    finish_reason: FinishReason | None = None
    native_finish_reason: str | None = None
    upstream_id: str | None = None
    service_tier: str | None = None
    upstream_model: str | None = None
    calls: dict[tuple[int, int], CalledTool] = field(default_factory=dict)  # by choice and index
    taken_at: float | None = None  # when a lane took something last

    def add(self, event: ProviderEvent | TextRun, now: float) -> None:
        """Count one event, or several that came together."""
        if isinstance(event, TextRun):
            self.add_text(sum(map(len, event.texts)), now)
            return
        if event.usage is not None:
            self.usage = event.usage  # the last one stands: some repeat it
        self.upstream_id = event.upstream_id or self.upstream_id
        self.service_tier = event.service_tier or self.service_tier
        self.upstream_model = event.upstream_model or self.upstream_model
        commits = event.commits
        for choice in event.choices:
            is_whole = isinstance(choice, Choice)
            said = choice.message if isinstance(choice, Choice) else choice.delta
            if calls := said.get("tool_calls"):
                self._note_calls(choice.index, calls, is_whole=is_whole)
            if choice.finish_reason is not None:
                self.finish_reason = choice.finish_reason
                self.native_finish_reason = choice.native_finish_reason or choice.finish_reason
            if commits and not (is_whole and event.usage is not None):
                self.num_characters += length_of(said)
        if commits:
            self._mark(now)

    def add_text(self, num_characters: int, now: float) -> None:
        """Count text that came alone, or several that came together."""
        if num_characters:
            self.num_characters += num_characters
            self._mark(now)

    def counting(self, lane: Lane, clock: Callable[[], float]) -> Lane:
        """Count what a lane takes, too."""

        def counted(text: str, literal: bytes) -> bool:
            now = clock()
            if not lane(text, literal):
                return False
            self.taken_at = now
            self.add_text(len(text), now)
            return True

        return counted

    def _mark(self, now: float) -> None:
        if self.last_at is None:
            self.first_at = now
        else:
            self.max_gap_s = max(self.max_gap_s or 0.0, now - self.last_at)
        self.last_at = now

    def _note_calls(self, choice: int, fragments: Any, *, is_whole: bool) -> None:
        """Put the fragments of each call together; in a whole answer each is a call of its own."""
        for position, fragment in enumerate(fragments if isinstance(fragments, list) else ()):
            index = fragment.get("index", position if is_whole else 0)
            call = self.calls.setdefault((choice, index), CalledTool())
            call.add(fragment.get("function") or {})

    def usage_or_estimate(self, num_in: int, told: Usage | None = None) -> tuple[Usage, bool]:
        """The upstream's word, even if it is 0; else four characters a token, and whether that counts.

        `told`: what it told on its way, which an answer that was cut has cost at least.
        """
        if self.usage is not None:
            return self.usage, False
        num_out = -(-self.num_characters // CHARACTERS_PER_TOKEN)
        if told is None:
            return Usage(num_in, num_out), True
        if told.prompt_tokens and told.completion_tokens >= num_out:
            return told, False
        prompt, completion = told.prompt_tokens or num_in, max(told.completion_tokens, num_out)
        return replace(told, prompt_tokens=prompt, completion_tokens=completion), True


def length_of(delta: dict[str, Any]) -> int:
    """Characters of text in a delta or message, tool calls included."""
    total = 0
    for key in ("content", "text", "reasoning", "refusal"):
        value = delta.get(key)
        total += len(value) if isinstance(value, str) else 0
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") or {}
        total += len(function.get("name") or "") + len(function.get("arguments") or "")
    return total
