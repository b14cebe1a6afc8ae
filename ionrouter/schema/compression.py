"""The `context-compression` plugin, middle-out: a prompt that fits nowhere loses its middle. Pure.

System messages at the start and the last turn stay; whole turns go first, from the middle outwards, tool
calls together with their results; what is still too long is cut inside, at the middle of its longest texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from ionrouter.schema.plugins import CONTEXT_COMPRESSION, is_enabled
from ionrouter.schema.request import InferenceRequest
from ionrouter.schema.usage import CHARACTERS_PER_TOKEN

MARGIN = 0.1  # of the context: the estimate errs, and the chat template adds tokens
CUT = " [...] "  # stands where text was taken out
MIN_TEXT = 64  # characters left of a text that is cut


def wants_compression(request: InferenceRequest) -> bool:
    """Ask whether the caller lets the prompt be shortened."""
    return request.kind in ("chat", "completions") and is_enabled(request.gateway_fields, CONTEXT_COMPRESSION)


def compressed(request: InferenceRequest, context_length: int) -> InferenceRequest | None:
    """Shorten the prompt to fit a context, with a note of it; None where that leaves nothing sensible."""
    room = int(context_length * (1 - MARGIN)) - (request.max_tokens or 0)
    excess = (request.prompt_tokens - room) * CHARACTERS_PER_TOKEN
    if excess <= 0:
        return request
    if room <= 0:
        return None
    work = _Work(excess)
    body = dict(request.body)
    if isinstance(prompt := body.get("prompt"), str):
        body["prompt"] = work.shorten(prompt)
    elif isinstance(messages := body.get("messages"), list):
        body["messages"] = work.squeeze(messages)
    if work.excess > 0:
        return None
    note = f"{CONTEXT_COMPRESSION}: {work.num_dropped} messages left out, {work.num_cut} shortened"
    tokens = max(request.prompt_tokens - (excess - work.excess) // CHARACTERS_PER_TOKEN, 1)
    return replace(
        request, body=body, prompt_tokens=tokens, context_tokens=None, notes=(*request.notes, note)
    )


@dataclass(slots=True)
class _Work:
    """How many characters must still go, and what was done so far."""

    excess: int
    num_dropped: int = 0
    num_cut: int = 0
    kept: list[Any] = field(default_factory=list)

    def squeeze(self, messages: Sequence[Mapping[str, Any]]) -> list[Any]:
        head, middle, tail = _parted(messages)
        while self.excess > 0 and middle:
            place = len(middle) // 2
            size = sum(map(_size, middle[place]))
            if size - self.excess >= MIN_TEXT and all(map(_is_text, middle[place])):
                break  # to shorten it is enough
            self.num_dropped += len(middle[place])
            self.excess -= size
            del middle[place]
        if self.excess > 0 and middle:
            place = len(middle) // 2
            middle[place] = self._cut_longest(middle[place])
        kept = [*head, *(message for turn in middle for message in turn), *tail]
        return self._cut_longest(kept) if self.excess > 0 else kept

    def shorten(self, text: str) -> str:
        """Take the middle out of a text, as much as must go and may."""
        goal = max(len(text) - self.excess - len(CUT), MIN_TEXT)
        if goal + len(CUT) >= len(text):
            return text
        self.excess -= len(text) - goal - len(CUT)
        self.num_cut += 1
        half = goal // 2
        return text[: goal - half] + CUT + text[len(text) - half :]

    def _cut_longest(self, messages: Sequence[Any]) -> list[Any]:
        out = list(messages)
        for index in sorted(range(len(out)), key=lambda i: -_size(out[i])):
            if self.excess > 0:
                out[index] = self._cut(out[index])
        return out

    def _cut(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        content = message.get("content")
        if isinstance(content, str):
            return {**message, "content": self.shorten(content)}
        if isinstance(content, list):
            return {**message, "content": [self._cut_part(part) for part in content]}
        return message

    def _cut_part(self, part: Any) -> Any:
        if self.excess > 0 and isinstance(part, Mapping) and isinstance(part.get("text"), str):
            return {**part, "text": self.shorten(part["text"])}
        return part


Turn = list[Mapping[str, Any]]


def _parted(messages: Sequence[Mapping[str, Any]]) -> tuple[Turn, list[Turn], Turn]:
    """System messages at the start, the turns between, and the last turn."""
    num_head = next(
        (i for i, m in enumerate(messages) if m.get("role") not in ("system", "developer")), len(messages)
    )
    turns = list(_turns(messages[num_head:]))
    return list(messages[:num_head]), turns[:-1], turns[-1] if turns else []


def _turns(messages: Sequence[Mapping[str, Any]]) -> Iterator[Turn]:
    """Group tool results with the message that called for them: neither is valid alone."""
    turn: Turn = []
    for message in messages:
        if turn and message.get("role") != "tool":
            yield turn
            turn = []
        turn.append(message)
    if turn:
        yield turn


def _size(message: Mapping[str, Any]) -> int:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    calls = [call.get("function") or {} for call in message.get("tool_calls") or ()]
    called = [str(call.get(name) or "") for call in calls for name in ("name", "arguments")]
    return sum(len(text) for text in [*texts, *called] if isinstance(text, str))


def _is_text(message: Mapping[str, Any]) -> bool:
    return isinstance(message.get("content"), str) and not message.get("tool_calls")
