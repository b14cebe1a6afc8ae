"""Anthropic's content blocks as they arrive, and the chat parts they mean. What cannot be kept is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, StrictBool, StrictStr, WrapValidator, model_validator

from ionrouter.schema import json
from ionrouter.schema.conversation import Conversation, Part, text_part

CLAUDE = "anthropic-claude-v1"  # reasoning details in Anthropic's format
# Source type -> what it needs.
_SOURCES: dict[str, tuple[str, ...]] = {
    "base64": ("media_type", "data"),
    "url": ("url",),
    "text": ("data",),
    "content": ("content",),
}
_IMAGE_SOURCES = ("base64", "url")
_DOCUMENT_SOURCES = ("base64", "url", "text", "content")


class Source(BaseModel):
    """Where an image or document comes from."""

    model_config = ConfigDict(extra="allow")
    type: StrictStr
    media_type: StrictStr | None = None
    data: StrictStr | None = None
    url: StrictStr | None = None
    content: StrictStr | list[Block] | None = None

    @model_validator(mode="after")
    def _has_payload(self) -> Source:
        needed = _SOURCES
        if self.type not in needed:
            raise ValueError(f"source type '{self.type}' is not supported; known: {', '.join(needed)}")
        for name in needed[self.type]:
            if getattr(self, name) is None:
                raise ValueError(f"a source of type '{self.type}' needs '{name}'")
        return self

    @property
    def address(self) -> str:
        """A URL, or the data as one."""
        return self.url or f"data:{self.media_type};base64,{self.data}"


def _or_plain(value: Any, check: Callable[[Any], Any]) -> Any:
    """Let strings and lists pass: a search result's source is a URL, an answer's citations are a list."""
    return value if isinstance(value, str | list) else check(value)


class Citations(BaseModel):
    model_config = ConfigDict(extra="allow")
    enabled: StrictBool | None = None


class Block(BaseModel):
    """One content block of a message, a system prompt or a tool result."""

    model_config = ConfigDict(extra="allow")
    type: StrictStr
    text: StrictStr | None = None
    source: Annotated[Source, WrapValidator(_or_plain)] | None = None
    content: StrictStr | list[Block] | None = None
    title: StrictStr | None = None
    context: StrictStr | None = None
    citations: Annotated[Citations, WrapValidator(_or_plain)] | None = None
    cache_control: dict[str, Any] | None = None
    id: StrictStr | None = None
    name: StrictStr | None = None
    input: dict[str, Any] | None = None
    tool_use_id: StrictStr | None = None
    is_error: StrictBool | None = None
    thinking: StrictStr | None = None
    signature: StrictStr | None = None
    data: StrictStr | None = None

    @model_validator(mode="after")
    def _whole(self) -> Block:
        if self.type not in _NEEDS:
            raise ValueError(f"content block type '{self.type}' is not supported; known: {', '.join(_NEEDS)}")
        for name in _NEEDS[self.type]:
            if getattr(self, name) is None:
                raise ValueError(f"a block of type '{self.type}' needs '{name}'")
        if isinstance(self.citations, Citations) and self.citations.enabled:
            raise ValueError("citations are not supported; leave them out or disable them")
        self._check_source()
        self._check_inner()
        return self

    def _check_inner(self) -> None:
        source = self.source.content if isinstance(self.source, Source) else None
        inner = source if self.type == "document" else self.content
        for block in inner if isinstance(inner, list) else ():
            if block.type not in _HOLDS.get(self.type, ()):
                raise ValueError(f"a block of type '{self.type}' cannot hold one of type '{block.type}'")

    def _check_source(self) -> None:
        allowed = {"image": _IMAGE_SOURCES, "document": _DOCUMENT_SOURCES}.get(self.type)
        if allowed is None:
            return
        if not isinstance(self.source, Source):
            raise ValueError(f"a block of type '{self.type}' needs an object as 'source'")
        if self.source.type not in allowed:
            raise ValueError(f"an {self.type} cannot have a source of type '{self.source.type}'")


_NEEDS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "image": ("source",),
    "document": ("source",),
    "search_result": ("source", "title", "content"),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
    "thinking": ("thinking",),
    "redacted_thinking": ("data",),
}

# What a block may hold inside; no deeper than this.
_HOLDS: dict[str, frozenset[str]] = {
    "document": frozenset({"text", "image"}),
    "search_result": frozenset({"text"}),
    "tool_result": frozenset({"text", "image", "document", "search_result"}),
}


def blocks_of(content: str | list[Block] | None) -> list[Block]:
    """A string is a text block; nothing is none."""
    if isinstance(content, str):
        return [Block(type="text", text=content)]
    return content or []


def parts_of(blocks: list[Block]) -> list[Part]:
    """Turn what is shown to a model into chat parts; other blocks (calls, thoughts) give none."""
    return [part for block in blocks if block.type in _PARTS for part in _marked(block)]


def _marked(block: Block) -> list[Part]:
    """A block's parts; its cache mark goes to the last, because it covers everything before it."""
    parts = _PARTS[block.type](block)
    if block.cache_control is not None and parts:
        parts[-1] = {**parts[-1], "cache_control": block.cache_control}
    return parts


def _text(block: Block) -> list[Part]:
    return [text_part(block.text or "")]


def _image(block: Block) -> list[Part]:
    assert isinstance(block.source, Source)  # validated
    return [{"type": "image_url", "image_url": {"url": block.source.address}}]


def _document(block: Block) -> list[Part]:
    source = block.source
    assert isinstance(source, Source)  # validated
    about = [text_part(text) for text in (block.title, block.context) if text]
    if source.type == "text":
        return [*about, text_part(source.data or "")]
    if source.type == "content":
        return [*about, *parts_of(blocks_of(source.content))]
    file = {"filename": block.title or "document.pdf", "file_data": source.address}
    return [*([text_part(block.context)] if block.context else []), {"type": "file", "file": file}]


def _search_result(block: Block) -> list[Part]:
    return [text_part(f"{block.title}\n{block.source}"), *parts_of(blocks_of(block.content))]


_PARTS: dict[str, Callable[[Block], list[Part]]] = {
    "text": _text,
    "image": _image,
    "document": _document,
    "search_result": _search_result,
}


def add_user_turn(chat: Conversation, blocks: list[Block]) -> None:
    """Add a user turn: tool results first, as chat wants them, then whatever else it says."""
    for block in blocks:
        if block.type == "tool_result":
            parts, is_error = parts_of(blocks_of(block.content)), block.is_error is True
            chat.result(block.tool_use_id or "", parts, is_error=is_error, mark=block.cache_control)
    if parts := parts_of(blocks):
        chat.say("user", parts)


def add_assistant_turn(chat: Conversation, blocks: list[Block]) -> None:
    """Add what the assistant thought, said and called, in its order."""
    for block in blocks:
        chat.answer(parts_of([block]))
        if block.type == "thinking":
            signature = {"signature": block.signature} if block.signature else {}
            text = {"type": "reasoning.text", "text": block.thinking, **signature, "format": CLAUDE}
            chat.think(text)
        elif block.type == "redacted_thinking":
            chat.think({"type": "reasoning.encrypted", "data": block.data, "format": CLAUDE})
        elif block.type == "tool_use":
            arguments = json.dumps(block.input).decode()
            chat.call(block.id or "", block.name or "", arguments, block.cache_control)


Role = Literal["user", "assistant", "system"]
# What may stand in a turn, by who speaks.
ALLOWED: dict[Role, frozenset[str]] = {
    "user": frozenset({"text", "image", "document", "search_result", "tool_result"}),
    "assistant": frozenset({"text", "thinking", "redacted_thinking", "tool_use"}),
    "system": frozenset({"text"}),
}
