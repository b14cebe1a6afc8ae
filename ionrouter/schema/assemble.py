"""Chunks into a whole answer, for a client that did not stream from an upstream that did. Knows no wire."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from ionrouter.schema.events import Choice, ChoiceDelta, Chunk, Complete, FinishReason, TextRun
from ionrouter.schema.pieces import Pieces
from ionrouter.schema.reasoning_details import ReasoningDetails
from ionrouter.schema.turn_order import deltas_of

_JOINED = ("content", "text", "reasoning", "refusal")
_AUDIO = frozenset(("data", "transcript"))


@dataclass(slots=True)
class _Draft:
    """One choice so far."""

    message: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, list[str]] = field(default_factory=dict)  # field -> its pieces, joined at the end
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)  # index -> tool call, but its arguments
    arguments: dict[int, list[str]] = field(default_factory=dict)  # index -> their pieces
    details: ReasoningDetails | None = None
    audio: Pieces | None = None
    logprobs: dict[str, list[Any]] = field(default_factory=dict)
    finish_reason: FinishReason | None = None
    native_finish_reason: str | None = None
    stop_sequence: str | None = None
    prompt_logprobs: list[Any] | None = None

    def add(self, choice: ChoiceDelta) -> None:
        """Take in one delta."""
        for key, value in choice.delta.items():
            if key in _JOINED and isinstance(value, str):
                self.parts.setdefault(key, []).append(value)
            elif key == "tool_calls":
                for call in value or ():
                    self._add_call(call)
            elif key in ("images", "annotations"):
                self.message.setdefault(key, []).extend(value or ())
            elif value is not None:
                self._add_other(key, value)
        for key, values in (choice.logprobs or {}).items():
            if values:
                self.logprobs.setdefault(key, []).extend(values)
        self.finish_reason = choice.finish_reason or self.finish_reason
        self.native_finish_reason = choice.native_finish_reason or self.native_finish_reason
        self.stop_sequence = choice.stop_sequence or self.stop_sequence
        self.prompt_logprobs = choice.prompt_logprobs or self.prompt_logprobs

    def _add_other(self, key: str, value: Any) -> None:
        if key == "reasoning_details":
            self.details = self.details or ReasoningDetails()
            self.details.add(value)
        elif key == "audio":
            self.audio = self.audio or Pieces(_AUDIO)
            self.audio.add(value)
        else:
            self.message[key] = value

    def _add_call(self, call: dict[str, Any]) -> None:
        index = call.get("index", 0)
        if index not in self.calls:
            self.calls[index], self.arguments[index] = {"type": "function", "function": {"name": ""}}, []
        whole = self.calls[index]
        for key in ("id", "type"):
            if call.get(key):
                whole[key] = call[key]
        function = call.get("function") or {}
        whole["function"]["name"] += function.get("name") or ""
        if arguments := function.get("arguments"):
            self.arguments[index].append(arguments)

    def _call(self, index: int) -> dict[str, Any]:
        call = self.calls[index]
        return {**call, "function": {**call["function"], "arguments": "".join(self.arguments[index])}}

    def choice(self, index: int) -> Choice:
        """Finish."""
        message: dict[str, Any] = {**self.message, **{key: "".join(p) for key, p in self.parts.items()}}
        if self.details is not None:
            message["reasoning_details"] = self.details.joined()
        if self.audio is not None:
            message["audio"] = self.audio.joined()
        if self.calls:
            message["tool_calls"] = [self._call(i) for i in sorted(self.calls)]
        if "text" not in message:
            message = {"role": "assistant", "content": None, **message}
        logprobs = dict(self.logprobs) or None
        ending = (self.finish_reason, self.native_finish_reason, logprobs, self.stop_sequence)
        return Choice(index, message, *ending, prompt_logprobs=self.prompt_logprobs)


@dataclass(slots=True)
class Assembly:
    """Collects an upstream's events, whichever shape it answers in."""

    _drafts: dict[int, _Draft] = field(default_factory=dict)
    _upstream_id: str | None = None
    _service_tier: str | None = None
    _whole: Complete | None = None

    def add(self, event: Chunk | Complete | TextRun) -> None:
        """Take in one event."""
        if isinstance(event, TextRun):
            for chunk in event.chunks():
                self.add(chunk)
            return
        if isinstance(event, Complete):
            self._whole = event
            return
        self._upstream_id = event.upstream_id or self._upstream_id
        self._service_tier = event.service_tier or self._service_tier
        for choice in event.choices:
            self._drafts.setdefault(choice.index, _Draft()).add(choice)

    def complete(self) -> Complete:
        """Put the whole answer together; its usage is the caller's business."""
        if self._whole is not None:
            return self._whole
        choices = tuple(self._drafts[index].choice(index) for index in sorted(self._drafts))
        return Complete(choices, upstream_id=self._upstream_id, service_tier=self._service_tier)


def as_chunk(complete: Complete) -> Chunk:
    """Turn a whole answer into one chunk, for a client that streams from an upstream that did not."""
    choices = tuple(
        ChoiceDelta(
            c.index,
            _delta(c.message),
            c.finish_reason,
            c.native_finish_reason,
            c.logprobs,
            c.stop_sequence,
            c.prompt_logprobs,
        )
        for c in complete.choices
    )
    ids = (complete.upstream_id, complete.service_tier, complete.upstream_model)
    return Chunk(choices, complete.usage, *ids)


def as_deltas(complete: Complete) -> Iterator[Chunk]:
    """The same in several chunks, where the only choice's thoughts, texts and calls come mixed."""
    chunk = as_chunk(complete)
    if len(complete.choices) != 1 or not (order := complete.choices[0].order):
        yield chunk
        return
    (ending,) = chunk.choices
    for delta in deltas_of(ending.delta, order):
        yield Chunk((ChoiceDelta(ending.index, delta),), chunk.usage, chunk.upstream_id, chunk.service_tier)
    yield replace(chunk, choices=(replace(ending, delta={}),))


def _delta(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{"index": i, **call} for i, call in enumerate(message.get("tool_calls") or ())]
    return {**message, **({"tool_calls": calls} if calls else {})}


def is_filtered_empty(chunk: Chunk) -> bool:
    """Ask whether a chunk ends an answer by the content filter with nothing said."""
    finishes = [c.finish_reason for c in chunk.choices if c.finish_reason is not None]
    said = Chunk(tuple(ChoiceDelta(c.index, c.delta) for c in chunk.choices)).commits
    return bool(finishes) and all(f == "content_filter" for f in finishes) and not said
