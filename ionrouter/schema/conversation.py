"""A chat conversation in the making, for surfaces that write theirs as blocks or items. Knows no surface.

Chat wants one assistant message for everything said and called in a turn, a tool message for each result
right after it, and media in user messages only: many servers refuse images in a tool's answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from ionrouter.schema.claudes_fields import FAILED, SEE_BELOW, told_of_result
from ionrouter.schema.fields import TURN_ORDER
from ionrouter.schema.turn_order import CALL, RANKS, TEXT, THOUGHT

Part = dict[str, Any]


def text_part(text: str, **extra: Any) -> Part:
    return {"type": "text", "text": text, **extra}


class Conversation:
    """Collects turns in order; `messages` is the result."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._answer: list[Part] = []  # of the assistant message that is open
        self._reasoning: list[Part] = []
        self._images: list[Part] = []
        self._calls: list[Part] = []
        self._order: list[str] = []  # of what it thought, said and called
        self._media: list[Part] = []  # of tool results, kept for the next user message

    def say(self, role: str, parts: Sequence[Part]) -> None:
        """Add a system, developer or user message."""
        self._close()
        media, self._media = self._media, []
        if role != "user" and media:
            self._messages.append({"role": "user", "content": media})
            media = []
        self._messages.append({"role": role, "content": _content([*media, *parts])})

    def answer(self, parts: Iterable[Part]) -> None:
        """Add to what the assistant said."""
        self._flush_media()
        for part in parts:
            self._answer.append(part)
            self._order.append(TEXT)

    def think(self, detail: Part) -> None:
        """Add one of the assistant's reasoning details."""
        self._flush_media()
        self._reasoning.append({**detail, "index": len(self._reasoning)})
        self._order.append(THOUGHT)

    def draw(self, image: Part) -> None:
        """Add an image of the assistant's."""
        self._flush_media()
        self._images.append(image)

    def call(self, call_id: str, name: str, arguments: str, mark: Part | None = None) -> None:
        """Add a tool call of the assistant's; `mark`: its `cache_control`."""
        self._flush_media()
        function = {"name": name, "arguments": arguments}
        about: Part = {} if mark is None else {"cache_control": mark}
        self._calls.append({"id": call_id, "type": "function", "function": function, **about})
        self._order.append(CALL)

    def result(
        self, call_id: str, parts: Sequence[Part], *, is_error: bool = False, mark: Part | None = None
    ) -> None:
        """Add a tool's result; `mark`: its `cache_control`, which covers all of it.

        Empty texts are left out: Claude refuses them in a list, and a mark on one anywhere.
        """
        self._close()
        parts = [part for part in parts if part["type"] != "text" or part["text"]]
        texts = [part for part in parts if part["type"] == "text"]
        media = [part for part in parts if part["type"] != "text"]
        if is_error:
            texts = [text_part(FAILED if texts else FAILED.rstrip(": ")), *texts]
        if media and not texts:
            texts = [text_part(SEE_BELOW)]
        about: Part = told_of_result(parts, is_error=is_error)
        if mark is not None and (marked := media or texts):
            marked[-1] = {**marked[-1], "cache_control": mark}
        elif mark is not None:
            about["cache_control"] = mark
        self._media.extend(media)
        is_plain = all(part.keys() == {"type", "text"} for part in texts)
        content: Any = "".join(part["text"] for part in texts) if is_plain else texts
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": content, **about})

    def messages(self) -> list[dict[str, Any]]:
        """Finish."""
        self._close()
        self._flush_media()
        return self._messages

    def _flush_media(self) -> None:
        if self._media:
            self._messages.append({"role": "user", "content": self._media})
            self._media = []

    def _close(self) -> None:
        """Write the open assistant message."""
        if not (self._answer or self._reasoning or self._images or self._calls):
            return
        message: dict[str, Any] = {"role": "assistant", "content": None}
        if self._answer:
            message["content"] = _content(self._answer)
        if self._images:
            message["images"] = self._images
        if self._calls:
            message["tool_calls"] = self._calls
        if self._reasoning:
            if text := "".join(
                detail.get("text") or detail.get("summary") or "" for detail in self._reasoning
            ):
                message["reasoning"] = text
            message["reasoning_details"] = self._reasoning
        if any(RANKS[one] > RANKS[next_one] for one, next_one in pairwise(self._order)):
            message[TURN_ORDER] = self._order
        self._messages.append(message)
        self._answer, self._images, self._calls, self._reasoning, self._order = [], [], [], [], []


def _content(parts: Sequence[Part]) -> Any:
    """Write a single plain text as a string: every server takes that."""
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        return parts[0]["text"]
    return list(parts)
