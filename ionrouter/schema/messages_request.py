"""POST /messages (Anthropic's shape) as it arrives, and the chat request it means.

Checks what is Anthropic's own; routing fields (provider, models, plugins ...) are checked with the chat
request. What would change the answer and cannot be kept is an error that names the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

from ionrouter.schema.callers_paths import CallersPaths, Convert
from ionrouter.schema.claudes_fields import TOOL_FIELDS
from ionrouter.schema.common import MAX_MODELS, Effort, ModelName, PositiveInt, Stop, ToolName, Twofold, Unit
from ionrouter.schema.conversation import Conversation
from ionrouter.schema.fields import AS_CLAUDE, TOOL_EXTRAS
from ionrouter.schema.messages_blocks import (
    ALLOWED,
    Block,
    Role,
    add_assistant_turn,
    add_user_turn,
    blocks_of,
    parts_of,
)
from ionrouter.schema.validation import validated
from ionrouter.schema.whole_numbers import WHOLE

MAX_FALLBACKS = 3


class Turn(BaseModel):
    model_config = ConfigDict(extra="allow")
    role: Role
    content: StrictStr | list[Block]

    @model_validator(mode="after")
    def _speaks_as_it_may(self) -> Turn:
        if self.role == "user" and not self.content and isinstance(self.content, list):
            raise ValueError("a user message needs at least one block")  # as chat it would be none at all
        for block in self.content if isinstance(self.content, list) else ():
            if block.type not in ALLOWED[self.role]:
                raise ValueError(f"a {self.role} message cannot hold a block of type '{block.type}'")
        return self


class Tool(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: ToolName
    type: StrictStr | None = None
    description: StrictStr | None = None
    input_schema: dict[str, Any] | None = None
    strict: StrictBool | None = None
    cache_control: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _is_ours_to_offer(self) -> Tool:
        if self.type not in (None, "custom"):
            raise ValueError(
                f"tool type '{self.type}' is not supported; define it with name and input_schema"
            )
        if self.input_schema is None:
            raise ValueError("a tool needs 'input_schema'")
        return self

    def to_chat(self) -> dict[str, Any]:
        optional = {"description": self.description, "strict": self.strict}
        function = {"name": self.name, "parameters": self.input_schema, **_given(optional)}
        told = {"strict": self.strict, **(self.model_extra or {})}
        extras = {name: told[name] for name in TOOL_FIELDS if told.get(name) is not None}
        about = {"cache_control": self.cache_control, TOOL_EXTRAS: extras or None}
        return {"type": "function", "function": function, **_given(about)}


class ToolChoice(BaseModel):
    model_config = ConfigDict(extra="allow")
    type: Literal["auto", "any", "tool", "none"]
    name: StrictStr | None = None
    disable_parallel_tool_use: StrictBool | None = None

    @model_validator(mode="after")
    def _names_its_tool(self) -> ToolChoice:
        if self.type == "tool" and not self.name:
            raise ValueError("type 'tool' needs 'name'")
        return self

    def to_chat(self) -> dict[str, Any]:
        choice: Any = {"auto": "auto", "any": "required", "none": "none"}.get(self.type)
        body: dict[str, Any] = {
            "tool_choice": choice or {"type": "function", "function": {"name": self.name}}
        }
        if self.disable_parallel_tool_use is not None:
            body["parallel_tool_calls"] = not self.disable_parallel_tool_use
        return body


class Thinking(BaseModel):
    model_config = ConfigDict(extra="allow")
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: PositiveInt | None = None
    display: Literal["summarized", "omitted"] | None = None

    @model_validator(mode="after")
    def _has_budget(self) -> Thinking:
        if self.type == "enabled" and self.budget_tokens is None:
            raise ValueError("type 'enabled' needs 'budget_tokens'")
        return self


class OutputFormat(BaseModel):
    model_config = ConfigDict(extra="allow", populate_by_name=True)
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(BaseModel):
    model_config = ConfigDict(extra="allow")
    effort: Effort | None = None
    format: OutputFormat | None = None


class Edit(BaseModel):
    model_config = ConfigDict(extra="allow")
    type: StrictStr

    @model_validator(mode="after")
    def _may_be_left_out(self) -> Edit:
        # Clearing old content saves tokens; without it the answer is at least as well informed.
        if not self.type.startswith("clear_"):
            raise ValueError(f"'{self.type}' is not supported")
        return self


class ContextManagement(BaseModel):
    model_config = ConfigDict(extra="allow")
    edits: list[Edit] | None = None


class Fallback(BaseModel):
    model_config = ConfigDict(extra="forbid")
    model: ModelName


class MessagesRequest(BaseModel):
    """Anthropic's message request with OpenRouter's routing fields."""

    model_config = ConfigDict(extra="allow")

    model: ModelName
    messages: Annotated[list[Turn], Field(min_length=1)]
    system: StrictStr | list[Block] | None = None
    max_tokens: PositiveInt | None = None
    stop_sequences: Stop | None = None
    stream: StrictBool | None = None
    temperature: Twofold | None = None
    top_p: Unit | None = None
    top_k: Annotated[StrictInt, Field(ge=-1), WHOLE] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # what output_config.format was called at first
    context_management: ContextManagement | None = None
    metadata: dict[str, Any] | None = None
    speed: Literal["standard", "fast"] | None = None
    service_tier: StrictStr | None = None
    models: Annotated[list[ModelName], Field(max_length=MAX_MODELS)] | None = None
    fallbacks: Annotated[list[Fallback], Field(max_length=MAX_FALLBACKS)] | None = None
    n: Literal[1] | None = None  # one answer is all this shape can hold
    mcp_servers: Annotated[list[Any], Field(max_length=0)] | None = None
    container: None = None

    @model_validator(mode="after")
    def _consistent(self) -> MessagesRequest:
        if self.output_format and self.output_config and self.output_config.format:
            raise ValueError("output_format: give this or output_config.format, not both")
        if self.fallbacks and self.models:
            raise ValueError("fallbacks: give these or models, not both")
        if not self.tools and self.tool_choice and self.tool_choice.type in ("any", "tool"):
            raise ValueError("tool_choice: asks for a call, but there are no tools")
        budget = self.thinking.budget_tokens if self.thinking else None
        if budget is not None and self.max_tokens is not None and budget >= self.max_tokens:
            raise ValueError("thinking.budget_tokens: must be less than max_tokens")
        if any(block.type != "text" for block in blocks_of(self.system)):
            raise ValueError("system: can hold text blocks only")
        return self

    def to_chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Write the chat request; `body` is the JSON this was made of, whose other fields are kept."""
        kept = {name: value for name, value in body.items() if name not in _TRANSLATED}
        return {**kept, "messages": self._conversation(), **self._tools(), **_given(self._options())}

    @classmethod
    def paths(cls, body: Mapping[str, Any]) -> CallersPaths:
        """Where in `body` the things are that its chat request names."""
        convert: Convert = lambda marked: validated(cls, marked)._conversation()  # noqa: E731
        return CallersPaths(body, convert, ("system", "messages"), _NAMES, "input_schema")

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields that were accepted and have no effect here."""
        found = ["context_management"] if self.context_management and self.context_management.edits else []
        if self._has_budget and self.output_config and self.output_config.effort:
            found.append("output_config.effort")
        if self.output_config and (self.output_config.model_extra or {}).get("task_budget"):
            found.append("output_config.task_budget")
        return tuple(found)

    @property
    def omits_thoughts(self) -> bool:
        """Whether thoughts come without their text, but with the signatures that the next turn needs."""
        return self.thinking is not None and self.thinking.display == "omitted"

    @property
    def _has_budget(self) -> bool:
        return self.thinking is not None and self.thinking.type == "enabled"

    def _conversation(self) -> list[dict[str, Any]]:
        chat = Conversation()
        if system := parts_of(blocks_of(self.system)):
            chat.say("system", system)
        for turn in self.messages:
            blocks = blocks_of(turn.content)
            if turn.role == "assistant":
                add_assistant_turn(chat, blocks)
            elif turn.role == "user":
                add_user_turn(chat, blocks)
            else:
                chat.say("system", parts_of(blocks))
        return chat.messages()

    def _tools(self) -> dict[str, Any]:
        if not self.tools:
            return {}
        choice = self.tool_choice.to_chat() if self.tool_choice else {}
        return {"tools": [tool.to_chat() for tool in self.tools], **choice}

    def _options(self) -> dict[str, Any]:
        user_id = (self.metadata or {}).get("user_id")
        return {
            "stop": self.stop_sequences or None,
            "reasoning": self._reasoning() or None,
            "response_format": self._format(),
            "models": [entry.model for entry in self.fallbacks] if self.fallbacks else self.models,
            "service_tier": self._tier(),
            "user": (self.model_extra or {}).get("user") or (user_id if isinstance(user_id, str) else None),
        }

    def _reasoning(self) -> dict[str, Any]:
        effort = self.output_config.effort if self.output_config else None
        thinking = self.thinking
        if thinking is None:
            return {"effort": effort} if effort else {}
        if thinking.type == "disabled":
            return {"enabled": False}
        said = thinking.model_dump(include={"type", "budget_tokens", "display"}, exclude_none=True)
        own = {AS_CLAUDE: said}
        if thinking.type == "enabled":
            return {"max_tokens": thinking.budget_tokens, **own}
        return {"effort": effort, **own} if effort else {"enabled": True, **own}

    def _format(self) -> dict[str, Any] | None:
        wanted = (self.output_config.format if self.output_config else None) or self.output_format
        if wanted is None:
            return None
        schema = {"name": "answer", "schema": wanted.schema_, "strict": True}
        return {"type": "json_schema", "json_schema": schema}

    def _tier(self) -> str | None:
        if self.speed == "fast":
            return "priority"
        return None if self.service_tier in ("auto", "standard_only", "standard") else self.service_tier


_NAMES = {
    "stop": "stop_sequences",
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
    "reasoning": "thinking",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}  # chat's fields that Anthropic calls otherwise
_TRANSLATED = frozenset(
    {
        "messages", "system", "stop_sequences", "tools", "tool_choice", "thinking", "output_config",
        "output_format", "context_management", "speed", "service_tier", "models", "fallbacks", "n",
        "mcp_servers", "container", "user",
    }
)  # fmt: skip


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
