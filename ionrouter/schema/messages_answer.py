"""Answers in Anthropic's shape: events one after another, and whole messages joined from the same events.

One machine writes both, so that a stream and its whole twin cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ionrouter.schema import json
from ionrouter.schema.annotations import as_messages_citation, listed
from ionrouter.schema.answers import cost_fields
from ionrouter.schema.assemble import as_deltas
from ionrouter.schema.errors import ErrorBody
from ionrouter.schema.events import ChoiceDelta, Chunk, Committed, Complete, Finished, SentBody
from ionrouter.schema.reasoning_details import ENCRYPTED, Block, Detail, details_of
from ionrouter.schema.tool_stream import ToolStream
from ionrouter.schema.usage import Cost, Usage

SseEvent = dict[str, Any]

# Our five finish reasons -> Anthropic's stop reasons.
STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
# Anthropic's own words that say more than ours.
_NATIVE = frozenset({"stop_sequence", "pause_turn", "model_context_window_exceeded", "refusal"})
_UNSAID = frozenset({"images", "audio"})  # chat's parts that no block can hold
_EXTRAS = _UNSAID | {"annotations"}
_TIERS = {None: "standard", "default": "standard", "auto": "standard"}


@dataclass(slots=True)
class MessagesAnswer:
    """One answer being written. `stop_sequences` are the caller's, `num_in` the estimated prompt tokens."""

    id: str
    model: str  # until commit the requested one
    stop_sequences: tuple[str, ...] = ()
    hides_reasoning: bool = False
    omits_thoughts: bool = False  # of thoughts, shows the signatures and what is encrypted alone
    num_in: int = 0
    provider: str = ""
    _has_begun: bool = False
    _index: int = -1  # of the block opened last
    _open: str | None = None  # its type
    _tools: ToolStream = field(default_factory=ToolStream)
    _late: list[tuple[Mapping[str, Any], Sequence[Detail]]] = field(default_factory=list)  # came in mid-call
    _thought: Block = field(default_factory=Block)
    _sealed: str | None = None  # an encrypted thought, until its last piece is known to be there
    _citations: list[dict[str, Any]] = field(default_factory=list)  # that wait for a text
    _left_out: set[str] = field(default_factory=set)
    _finish: ChoiceDelta | None = None
    _tier: str | None = None

    @property
    def left_out(self) -> frozenset[str]:
        """Parts of the answer that a message has no place for, by chat's names."""
        has_late_text = any(delta.get("content") or delta.get("refusal") for delta, _ in self._late)
        waits_in_vain = {"annotations"} if self._citations and not has_late_text else set()
        return frozenset(self._left_out | waits_in_vain)

    def commit(self, committed: Committed) -> None:
        """Note who serves."""
        self.model, self.provider = committed.model_id, committed.provider_name
        if committed.attempt == 0:  # a kept answer takes no tokens
            self.num_in = 0

    def shown(self, sent: Sequence[SentBody]) -> Iterator[SseEvent]:
        """Nothing: Anthropic's clients know no event for what was sent upstream."""
        yield from ()

    def pieces(self, chunk: Chunk) -> Iterator[SseEvent]:
        """Write one chunk."""
        self._tier = chunk.service_tier or self._tier
        for choice in chunk.choices:
            if choice.index == 0:
                yield from self._begin(chunk.usage)
                yield from self._delta(choice.delta)
                if choice.logprobs is not None:
                    self._left_out.add("logprobs")
                if choice.prompt_logprobs is not None:
                    self._left_out.add("prompt_logprobs")
                self._finish = choice if choice.finish_reason else self._finish

    def finish(self, finished: Finished, report: Mapping[str, Any] | None = None) -> Iterator[SseEvent]:
        """Write the end: open blocks closed, the stop reason, usage."""
        yield from self._begin(finished.usage)
        yield from self._calls(is_over=True)
        for delta, thoughts in self._late:
            yield from self._speak(delta, thoughts)
        yield from self._close()
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": self._stop_sequence()}
        usage = messages_usage(finished.usage, finished.cost, self._tier)
        told = {} if report is None else {"ionrouter": dict(report)}
        nothing = {"container": None, "stop_details": None}
        yield {"type": "message_delta", "delta": {**delta, **nothing}, "usage": usage, **told}
        yield {"type": "message_stop"}

    def fail(self, error: ErrorBody) -> Iterator[SseEvent]:
        """Write the end of a stream that broke."""
        yield error.messages_envelope(self.id)

    def whole(self, complete: Complete, finished: Finished) -> dict[str, Any]:
        """Write a whole message."""
        pieces = (event for chunk in as_deltas(complete) for event in self.pieces(chunk))
        events: list[SseEvent] = [*pieces, *self.finish(finished)]
        message = events[0]["message"]
        message["content"] = joined_blocks(events)
        ending = next(event for event in events if event["type"] == "message_delta")
        return {**message, **ending["delta"], "usage": ending["usage"]}

    def _begin(self, usage: Usage | None) -> Iterator[SseEvent]:
        """Write the start, with what is known of the usage by now; the true one comes at the end."""
        if self._has_begun:
            return
        self._has_begun = True
        known = usage if usage and usage.prompt_tokens else Usage(prompt_tokens=self.num_in)
        message: dict[str, Any] = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "provider": self.provider,
            "container": None,
            "content": [],
            "stop_reason": None,
            "stop_details": None,
            "stop_sequence": None,
            "usage": messages_usage(known, None, self._tier),
        }
        yield {"type": "message_start", "message": message}

    def _delta(self, delta: Mapping[str, Any]) -> Iterator[SseEvent]:
        thoughts = () if self.hides_reasoning else details_of(delta)
        if thoughts or delta.get("content") or delta.get("refusal"):
            if self._tools.is_mid_call:
                self._late.append((delta, thoughts))  # a block that was left cannot be gone back to
            else:
                yield from self._calls(is_over=True)
                yield from self._speak(delta, thoughts)
        if not _EXTRAS.isdisjoint(delta):  # hardly ever
            self._left_out |= _UNSAID & delta.keys()
            citations = [as_messages_citation(one) for one in listed(delta.get("annotations"))]
            self._left_out |= {"annotations"} if None in citations else set()
            self._citations += filter(None, citations)
            yield from self._cite()
        if calls := delta.get("tool_calls"):
            self._tools.add(calls)
            yield from self._calls()

    def _speak(self, delta: Mapping[str, Any], thoughts: Sequence[Detail]) -> Iterator[SseEvent]:
        for position, detail in enumerate(thoughts):
            yield from self._think(detail, is_first=position == 0)
        for key in ("content", "refusal"):
            if text := delta.get(key):
                yield from self._continue("text", {"text": "", "citations": None})
                yield self._piece("text_delta", text=text)
        if self._citations:
            yield from self._cite()

    def _cite(self) -> Iterator[SseEvent]:
        """Write the citations that wait, if the open block is a text."""
        if self._open != "text":
            return
        for citation in self._citations:
            yield self._piece("citations_delta", citation=citation)
        self._citations = []

    def _think(self, detail: Detail, *, is_first: bool) -> Iterator[SseEvent]:
        goes_on = self._thought.takes(detail, is_first=is_first)
        if detail.get("type") == ENCRYPTED:
            if not goes_on or self._sealed is None:
                yield from self._close()
                self._sealed = ""
            self._sealed += detail.get("data") or ""
            return
        if not goes_on and self._open == "thinking":
            yield from self._close()  # a signature must not sign what another block says
        if (text := detail.get("text") or detail.get("summary")) and not self.omits_thoughts:
            yield from self._continue("thinking", {"thinking": "", "signature": ""})
            yield self._piece("thinking_delta", thinking=text)
        if signature := detail.get("signature"):
            yield from self._continue("thinking", {"thinking": "", "signature": ""})
            yield self._piece("signature_delta", signature=signature)
            yield from self._close()  # it signs what came before; the next thought is another block

    def _calls(self, *, is_over: bool = False) -> Iterator[SseEvent]:
        """Write what of the tool calls can be written in order, a block at a time."""
        for step in self._tools.take(is_over=is_over):
            if step.opens:
                tool = {"id": step.id, "name": step.name, "input": {}, "caller": {"type": "direct"}}
                yield from self._start("tool_use", tool)
            if step.arguments:
                yield self._piece("input_json_delta", partial_json=step.arguments)

    def _continue(self, kind: str, empty: dict[str, Any]) -> Iterator[SseEvent]:
        if self._open != kind:
            yield from self._start(kind, empty)

    def _start(self, kind: str, block: dict[str, Any]) -> Iterator[SseEvent]:
        yield from self._close()
        self._open = kind
        yield self._started({"type": kind, **block})

    def _started(self, block: dict[str, Any]) -> SseEvent:
        self._index += 1
        return {"type": "content_block_start", "index": self._index, "content_block": block}

    def _piece(self, kind: str, **delta: Any) -> SseEvent:
        return {"type": "content_block_delta", "index": self._index, "delta": {"type": kind, **delta}}

    def _close(self) -> Iterator[SseEvent]:
        """End the block that is open, and write one that was held back: it has all of its pieces now."""
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}
        if self._sealed is not None:
            data, self._sealed = self._sealed, None
            yield self._started({"type": "redacted_thinking", "data": data})
            yield {"type": "content_block_stop", "index": self._index}

    def _stop_reason(self) -> str:
        finish = self._finish
        if finish is None:
            return "tool_use" if self._tools.has_calls else "end_turn"
        if finish.stop_sequence in self.stop_sequences:
            return "stop_sequence"
        if finish.native_finish_reason in _NATIVE:
            return finish.native_finish_reason or ""
        if finish.finish_reason == "tool_calls" and not self._tools.has_calls:
            return "end_turn"  # agents that are told to use a tool look for its block
        return STOP_REASONS.get(finish.finish_reason or "stop", "end_turn")

    def _stop_sequence(self) -> str | None:
        """Which one it was: as the upstream says, or the only one there was; never guessed."""
        if self._finish is not None and self._finish.stop_sequence in self.stop_sequences:
            return self._finish.stop_sequence
        known = self._stop_reason() == "stop_sequence" and len(self.stop_sequences) == 1
        return self.stop_sequences[0] if known else None


def joined_blocks(events: list[SseEvent]) -> list[dict[str, Any]]:
    """Put content blocks together from a stream's events."""
    blocks: list[dict[str, Any]] = []
    inputs: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            index, delta = event["index"], event["delta"]
            for key in ("text", "thinking", "signature"):
                if key in delta:
                    blocks[index][key] += delta[key]
            if "citation" in delta:
                blocks[index]["citations"] = [*(blocks[index]["citations"] or ()), delta["citation"]]
            inputs[index] = inputs.get(index, "") + delta.get("partial_json", "")
    for index, block in enumerate(blocks):
        if block["type"] == "tool_use":
            block["input"] = _object(inputs.get(index, ""))
    return blocks


def _object(arguments: str) -> dict[str, Any]:
    """Parse a call's arguments; what is no object (cut by length, say), or too deep, is shown as it came."""
    if not arguments.strip():
        return {}
    try:
        value = json.loads_exactly(arguments)  # an id may be a long number
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) and json.is_shallow(value) else {"_raw": arguments}


def messages_usage(usage: Usage, cost: Cost | None, tier: str | None) -> dict[str, Any]:
    """Usage as Anthropic counts: input without what was read from or written to a cache."""
    cached, written = usage.cached_tokens, usage.cache_write_tokens
    return {
        "input_tokens": max(usage.prompt_tokens - cached - written, 0),
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "cache_creation": None,
        "inference_geo": None,
        "server_tool_use": None,
        "service_tier": _TIERS.get(tier, tier),
        **(cost_fields(cost) if cost is not None else {}),
    }
