"""POST /chat/completions as it arrives: messages, content parts, tools. Checks shapes, keeps every value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

from ionrouter.schema.common import TextRequest, ToolName
from ionrouter.schema.whole_numbers import WHOLE

Role = Literal["system", "developer", "user", "assistant", "tool"]

# Part type -> (the key that must hold its payload, the payload's type, the modality it needs).
PARTS: dict[str, tuple[str, type, str]] = {
    "text": ("text", str, "text"),
    "refusal": ("refusal", str, "text"),
    "image_url": ("image_url", dict, "image"),
    "input_audio": ("input_audio", dict, "audio"),
    "video_url": ("video_url", dict, "video"),
    "input_video": ("video_url", dict, "video"),
    "file": ("file", dict, "file"),
}
_TEXT = frozenset({"text"})
RESPONSE_FORMATS = ("text", "json_object", "json_schema", "grammar", "python")


class Part(BaseModel):
    model_config = ConfigDict(extra="allow")
    type: StrictStr

    @model_validator(mode="after")
    def _payload(self) -> Part:
        if self.type not in PARTS:
            raise ValueError(f"unknown content part type '{self.type}'; known: {', '.join(PARTS)}")
        key, kind, _ = PARTS[self.type]
        if not isinstance((self.model_extra or {}).get(key), kind):
            raise ValueError(
                f"a part of type '{self.type}' needs '{key}' ({'a string' if kind is str else 'an object'})"
            )
        return self


class FunctionCall(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: StrictStr
    arguments: StrictStr = ""


class ToolCall(BaseModel):
    model_config = ConfigDict(extra="allow")
    id: StrictStr | None = None
    function: FunctionCall | None = None


class Message(BaseModel):
    model_config = ConfigDict(extra="allow")
    role: Role
    content: StrictStr | list[Part] | None = None
    name: StrictStr | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: StrictStr | None = None

    @model_validator(mode="after")
    def _complete(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a {self.role} message needs content")
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("a tool message needs tool_call_id")
        return self


class ToolFunction(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: ToolName
    description: StrictStr | None = None
    parameters: dict[str, Any] | None = None
    strict: StrictBool | None = None


class Tool(BaseModel):
    model_config = ConfigDict(extra="allow")
    type: StrictStr
    function: ToolFunction | None = None

    @model_validator(mode="after")
    def _has_function(self) -> Tool:
        if self.type == "function" and self.function is None:
            raise ValueError("a tool of type 'function' needs 'function'")
        return self


class JsonSchemaFormat(BaseModel):
    model_config = ConfigDict(extra="allow", populate_by_name=True)
    name: Annotated[StrictStr, Field(min_length=1, max_length=64)]
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: StrictBool | None = None


class ResponseFormat(BaseModel):
    model_config = ConfigDict(extra="allow")
    type: Literal["text", "json_object", "json_schema", "grammar", "python"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("type 'json_schema' needs 'json_schema'")
        return self


class ChatRequest(TextRequest):
    """OpenRouter's chat request."""

    messages: Annotated[list[Message], Field(min_length=1)]
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20), WHOLE] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: StrictBool | None = None
    response_format: ResponseFormat | None = None
    modalities: list[Literal["text", "image", "audio"]] | None = None

    def input_modalities(self) -> frozenset[str]:
        in_parts = [m.content for m in self.messages if isinstance(m.content, list)]
        if not in_parts:
            return _TEXT
        return _TEXT.union([PARTS[part.type][2] for parts in in_parts for part in parts])

    def num_characters(self) -> int:
        """Count what becomes prompt text: texts, tool calls, tool descriptions. Media are not counted."""
        total = 0
        for message in self.messages:
            content = message.content
            if isinstance(content, str):
                total += len(content)
            elif content:
                total += sum(len((part.model_extra or {})["text"]) for part in content if part.type == "text")
            for call in message.tool_calls or ():
                if call.function:
                    total += len(call.function.name) + len(call.function.arguments)
        if self.tools:
            total += sum(_text_length(tool.model_dump(exclude_none=True)) for tool in self.tools)
        return total


def _text_length(value: Any) -> int:
    """Characters of all strings in a JSON value, keys included."""
    measure: Callable[[Any], int] = _text_length
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(str(key)) + measure(item) for key, item in value.items())
    if isinstance(value, list):
        return sum(measure(item) for item in value)
    return len(str(value))
