"""What a chat message or tool says beside chat's own fields, for Claude alone.

Chat has no word for a tool's failure, and its results hold no pictures: these go into the next user message.
Claude has both in the result, so how it was is told beside the message. Knows no surface and no wire.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ionrouter.schema.fields import OF_CLAUDE, TOOL_EXTRAS, TOOL_RESULT

SEE_BELOW = "The result is attached to the next message."
FAILED = "Error: "  # before the words of a tool's failure
TOOL_FIELDS = ("strict", "input_examples", "eager_input_streaming")  # of a tool

Part = Mapping[str, Any]


def without_claudes(value: Any) -> Any:
    """A message or tool as anybody but Claude takes it."""
    if not isinstance(value, Mapping) or OF_CLAUDE.isdisjoint(value):
        return value
    return {name: item for name, item in value.items() if name not in OF_CLAUDE}


def tool_of_claude(tool: Any) -> Any:
    """A tool with its extras where litellm takes them."""
    extras = tool.get(TOOL_EXTRAS) if isinstance(tool, Mapping) else None
    known = (
        {name: extras[name] for name in TOOL_FIELDS if name in extras} if isinstance(extras, Mapping) else {}
    )
    return {**without_claudes(tool), **known} if known else without_claudes(tool)


def told_of_result(parts: Sequence[Part], *, is_error: bool) -> dict[str, Any]:
    """What to tell of a result beside its message; nothing where chat can say it all.

    `places`: of each part, how many characters a text has; None for what is none.
    """
    told: dict[str, Any] = {"is_error": True} if is_error else {}
    if any(part["type"] != "text" for part in parts):
        told["places"] = [len(part["text"]) if part["type"] == "text" else None for part in parts]
    return {TOOL_RESULT: told} if told else {}


def whole_results(messages: Sequence[Any]) -> list[Any]:
    """The messages with each result's media inside it again, and its failure as a field."""
    out: list[Any] = []
    waiting: list[tuple[int, list[Any]]] = []  # the results whose media come next, by their place in `out`
    for message in messages:
        is_result = isinstance(message, Mapping) and message.get("role") == "tool"
        told = message.get(TOOL_RESULT) if is_result else None
        if isinstance(told, Mapping):
            if isinstance(places := told.get("places"), list):
                waiting.append((len(out), places))
            message = _failed(message) if told.get("is_error") is True else message
        elif waiting and not is_result:
            message, waiting = _moved_back(out, waiting, message), []
        if message is not None:
            out.append(message)
    return out


def _failed(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        content = content.removeprefix(FAILED) or content
    elif isinstance(content, list) and len(content) > 1 and _text(content[0]) == FAILED:
        content = content[1:]
    return {**message, "content": content, "is_error": True}


def _moved_back(out: list[Any], waiting: Sequence[tuple[int, list[Any]]], message: Any) -> Any:
    """Take the results' media out of the message after them; None if it held nothing else."""
    num_media = sum(places.count(None) for _, places in waiting)
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list) or message.get("role") != "user" or len(content) < num_media:
        return message  # a plugin has shortened the conversation
    media = iter(content[:num_media])
    if any(_text(part) is not None for part in content[:num_media]):
        return message
    for place, places in waiting:
        out[place] = {**out[place], "content": _mixed(out[place].get("content"), places, media)}
    rest = content[num_media:]
    return {**message, "content": rest} if rest else None


def _mixed(content: Any, places: Sequence[Any], media: Iterator[Any]) -> list[Any]:
    """The parts of a result in the order that they had; texts whose place is unknown come first."""
    texts = _texts(content, [place for place in places if place is not None])
    if len(texts) != len(places) - places.count(None):
        return [*texts, *(next(media) for place in places if place is None)]
    rest = iter(texts)
    return [next(media if place is None else rest) for place in places]


def _texts(content: Any, lengths: Sequence[Any]) -> list[Any]:
    if isinstance(content, list):
        return content
    if not isinstance(content, str) or content == SEE_BELOW:
        return []
    if not all(isinstance(length, int) for length in lengths) or sum(lengths) != len(content):
        return [{"type": "text", "text": content}]
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    return [
        {"type": "text", "text": content[end - size : end]} for end, size in zip(ends, lengths, strict=True)
    ]


def _text(part: Any) -> Any:
    return part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
