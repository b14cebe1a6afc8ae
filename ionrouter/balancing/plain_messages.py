"""A conversation for servers that know OpenAI's shapes and refuse what is not in them. Pure.

Taken out: marks for caches that such a server does not keep, and what only our answers carry, which clients
send back as it came. A server that knows one of them declares it among its supported parameters.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from ionrouter.schema.fields import OF_CLAUDE
from ionrouter.schema.reasoning_details import TOLD_IN, thoughts_of

_MARKS = frozenset({"cache_control", "prompt_cache_breakpoint", *OF_CLAUDE})
_OF_ANSWERS = frozenset({"reasoning_details", "annotations", "images"})
_HELD = frozenset({*TOLD_IN, "reasoning_details"})


def make_plain(body: dict[str, Any], declared: Set[str], thought_fields: Sequence[str] = ()) -> None:
    """Put plain `messages` and `tools` into a body; the client's own lists and dicts stay as they are.

    `thought_fields`: where an answer's thoughts go, if that is known.
    """
    marks, extras = (_MARKS - declared, _OF_ANSWERS - declared) if declared else (_MARKS, _OF_ANSWERS)
    messages, tools = body.get("messages"), body.get("tools")
    if isinstance(messages, list):
        body["messages"] = [_message(message, marks, extras, thought_fields) for message in messages]
    if isinstance(tools, list):
        body["tools"] = [_without(tool, marks) for tool in tools]


def _message(message: Any, marks: Set[str], extras: Set[str], thought_fields: Sequence[str]) -> Any:
    if not isinstance(message, dict):
        return message
    message = _without(message, marks)
    if message.get("role") == "assistant":
        thoughts = thoughts_of(message) if thought_fields and not _HELD.isdisjoint(message) else ""
        message = _asked_back(message, extras)
        if thoughts:
            rest = {name: value for name, value in message.items() if name not in TOLD_IN}
            message = {**rest, **dict.fromkeys(thought_fields, thoughts)}
        if any(
            isinstance(call, dict) and not marks.isdisjoint(call) for call in message.get("tool_calls") or ()
        ):
            message = {**message, "tool_calls": [_without(call, marks) for call in message["tool_calls"]]}
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [_without(part, marks) for part in content]
    is_marked = any(part is not before for part, before in zip(parts, content, strict=True))
    return {**message, "content": _as_text(parts)} if is_marked else message


def _asked_back(message: dict[str, Any], extras: Set[str]) -> dict[str, Any]:
    """An answer as part of a question: without its empty fields, which strict servers refuse as well."""
    lost = {
        name
        for name, value in message.items()
        if (value is None and name != "content") or (name in extras and _is_ours(name, value))
    }
    return {name: value for name, value in message.items() if name not in lost} if lost else message


def _is_ours(name: str, value: Any) -> bool:
    """Ask whether a field says nothing that its maker needs back: signed and encrypted thoughts it does."""
    if name != "reasoning_details" or not isinstance(value, Sequence):
        return True
    return all(
        isinstance(detail, dict)
        and not (detail.get("signature") or detail.get("data"))
        and detail.get("format") in (None, "unknown")
        for detail in value
    )


def _as_text(parts: list[Any]) -> Any:
    """A text that was a list to carry a mark; the older servers know no lists."""
    if len(parts) == 1 and isinstance(parts[0], dict) and parts[0].keys() == {"type", "text"}:
        return parts[0]["text"]
    return parts


def _without(value: Any, names: Set[str]) -> Any:
    if not isinstance(value, dict) or names.isdisjoint(value):
        return value
    return {name: item for name, item in value.items() if name not in names}
