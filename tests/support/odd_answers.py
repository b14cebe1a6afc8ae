"""Answers in which one value is what no server should send: every place of a full answer, every odd value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.support.wire import usage

Place = tuple[str | int, ...]


def nested(levels: int) -> Any:
    """A list in a list in a list."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


# Wrong types, things that are nearly right, and what breaks readers and writers of JSON and of databases.
ODD: tuple[Any, ...] = (
    *(None, True, 5, -1, 0.5, 1e308, 2**63, "", "x", "²", "9" * 30, "\ud800", "\0"),
    *([], {}, [None], [[]], ["x"], [5], [{}], {"a": None}, nested(300), nested(480), nested(600)),
)
# One of each sort.
FEW: tuple[Any, ...] = (5, "\ud800", ["x"], [{}], {"a": None}, nested(480))
# What an upstream may leave out of a message, and of a choice.
OPTIONAL = (
    *("refusal", "reasoning", "reasoning_details", "thinking_blocks", "tool_calls", "function_call"),
    *("annotations", "citations", "images", "audio"),
)
OF_CHOICES = ("logprobs", "prompt_logprobs", "stop_reason")

_TOKEN = {"token": "a", "logprob": -1, "bytes": [97], "top_logprobs": [{"token": "a", "logprob": -1}]}
_LOGPROBS = {
    "content": [_TOKEN],
    "refusal": None,
    "tokens": ["a"],
    "token_logprobs": [-1],
    "top_logprobs": [{"a": -1}],
    "text_offset": [0],
}
_MESSAGE = {
    "role": "assistant",
    "content": "a",
    "refusal": "no",
    "reasoning": "r",
    "reasoning_details": [
        {"type": "reasoning.text", "text": "r", "signature": "s", "format": "f", "index": 0, "id": "i"},
        {"type": "reasoning.summary", "summary": "z", "index": 1},
        {"type": "reasoning.encrypted", "data": "d", "index": 2},
    ],
    "thinking_blocks": [
        {"type": "thinking", "thinking": "t", "signature": "s", "index": 0},
        {"type": "redacted_thinking", "data": "d"},
    ],
    "tool_calls": [{"index": 0, "id": "i", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    "function_call": {"name": "f", "arguments": "{}"},
    "annotations": [{"type": "url_citation", "url_citation": {"url": "u", "start_index": 0}}],
    "citations": ["u"],
    "images": [{"type": "image_url", "image_url": {"url": "x"}}],
    "audio": {"id": "x", "data": "AA", "transcript": "t", "expires_at": 5},
}
_CHOICE = {"index": 0, "finish_reason": "stop", "logprobs": _LOGPROBS}
_CHOICE |= {"native_finish_reason": "S", "stop_reason": "x", "matched_stop": "x", "prompt_logprobs": [None]}
_USAGE = usage(5, 2, prompt_tokens_details={"cached_tokens": 1}, completion_tokens_details={})
_ANSWER = {"id": "c", "object": "chat.completion", "created": 1, "model": "up", "service_tier": "default"}
_ANSWER |= {"usage": _USAGE, "prompt_logprobs": [None], "citations": ["u"]}


def full(kind: str, *, stream: bool) -> dict[str, Any]:
    """An answer, or the one chunk of one, that says something in every field."""
    if kind == "completions":
        return {**_ANSWER, "choices": [{**_CHOICE, "text": "a", "reasoning": "r"}]}
    return {**_ANSWER, "choices": [{**_CHOICE, "delta" if stream else "message": _MESSAGE}]}


def places(value: Any, path: Place = ()) -> Iterator[Place]:
    """Every place inside a value, outermost first."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def put(value: Any, path: Place, odd: Any) -> Any:
    """A copy with something odd at a place."""
    if not path:
        return odd
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(copy[path[0]], path[1:], odd)
    return copy
