"""POST /responses (OpenAI's shape, stateless) as it arrives, and the chat request it means.

Nothing is stored here, so what refers to stored things is refused. Routing fields (provider, models,
plugins ...) are checked with the chat request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    WrapValidator,
    model_validator,
)

from ionrouter.schema.allowed_tools import ALLOWED_TOOLS
from ionrouter.schema.callers_paths import CallersPaths, Convert
from ionrouter.schema.common import PositiveInt, Reasoning
from ionrouter.schema.conversation import Conversation, text_part
from ionrouter.schema.responses_items import Item
from ionrouter.schema.responses_tools import Tool, Toolbox, toolbox
from ionrouter.schema.validation import validated
from ionrouter.schema.whole_numbers import WHOLE

# What `include` may name: two things we give, and parts of tools that nobody has here, so nothing is missing.
INCLUDED = Literal[
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
]
MAX_TOOL_CALLS = 30
CHOICES = ("none", "auto", "required")


def _stateless(value: Any) -> Any:
    if value is not None and value is not False:
        raise ValueError("responses are not stored here; leave it out and send the whole conversation")
    return value


def _word_or(value: Any, check: Callable[[Any], Any]) -> Any:
    """Take one of the plain choices, or an object that names tools."""
    if isinstance(value, str) and value not in CHOICES:
        raise ValueError(f"should be one of {', '.join(CHOICES)}, or an object")
    return value if isinstance(value, str) else check(value)


class AllowedTool(BaseModel):
    model_config = ConfigDict(extra="allow")
    type: Literal["function", "custom"]
    name: StrictStr
    namespace: StrictStr | None = None


class Choice(BaseModel):
    """One tool that must be used, or several of which some may or must be."""

    model_config = ConfigDict(extra="allow")
    type: Literal["function", "custom", "allowed_tools"]
    name: StrictStr | None = None
    namespace: StrictStr | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[AllowedTool], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Choice:
        for name in ("mode", "tools") if self.type == "allowed_tools" else ("name",):
            if getattr(self, name) is None:
                raise ValueError(f"type '{self.type}' needs '{name}'")
        return self

    def to_chat(self, box: Toolbox) -> dict[str, Any]:
        if self.type != "allowed_tools":
            return _function(box.name_of(self.name or "", self.namespace))
        tools = [_function(box.name_of(tool.name, tool.namespace)) for tool in self.tools or ()]
        return {"type": ALLOWED_TOOLS, ALLOWED_TOOLS: {"mode": self.mode, "tools": tools}}


def _function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


class Format(BaseModel):
    model_config = ConfigDict(extra="allow", populate_by_name=True)
    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[StrictStr, Field(min_length=1, max_length=64)] | None = None
    description: StrictStr | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: StrictBool | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> Format:
        if self.type == "json_schema" and (self.name is None or self.schema_ is None):
            raise ValueError("type 'json_schema' needs 'name' and 'schema'")
        return self

    def to_chat(self) -> dict[str, Any]:
        if self.type != "json_schema":
            return {"type": self.type}
        optional = {"description": self.description, "strict": self.strict}
        schema = {"name": self.name, "schema": self.schema_, **_given(optional)}
        return {"type": "json_schema", "json_schema": schema}


class TextConfig(BaseModel):
    model_config = ConfigDict(extra="allow")
    format: Format | None = None
    verbosity: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class ResponsesRequest(BaseModel):
    """OpenAI's response request with OpenRouter's routing fields."""

    model_config = ConfigDict(extra="allow")

    input: StrictStr | Annotated[list[Item], Field(min_length=1)]
    instructions: StrictStr | None = None
    max_output_tokens: PositiveInt | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20), WHOLE] | None = None
    tools: list[Tool] | None = None
    tool_choice: Annotated[Choice, WrapValidator(_word_or)] | None = None
    parallel_tool_calls: StrictBool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: list[INCLUDED] | None = None
    metadata: dict[str, Any] | None = None
    stream: StrictBool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_tool_calls: Annotated[StrictInt, Field(ge=1, le=MAX_TOOL_CALLS), WHOLE] | None = None
    safety_identifier: StrictStr | None = None
    service_tier: StrictStr | None = None
    store: Annotated[StrictBool | None, AfterValidator(_stateless)] = None
    background: Annotated[StrictBool | None, AfterValidator(_stateless)] = None
    previous_response_id: Annotated[Any, AfterValidator(_stateless)] = None
    conversation: Annotated[Any, AfterValidator(_stateless)] = None
    prompt: Annotated[Any, AfterValidator(_stateless)] = None
    n: Literal[1] | None = None  # one answer is all this shape can hold

    @model_validator(mode="after")
    def _has_what_it_chooses(self) -> ResponsesRequest:
        choice: Any = self.tool_choice
        if choice not in (None, "none", "auto") and not self.tools:
            raise ValueError("tool_choice: asks for a call, but there are no tools")
        return self

    def to_chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Write the chat request; `body` is the JSON this was made of, whose other fields are kept."""
        kept = {name: value for name, value in body.items() if name not in _TRANSLATED}
        return {**kept, "messages": self._conversation(), **_given(self._options())}

    @classmethod
    def paths(cls, body: Mapping[str, Any]) -> CallersPaths:
        """Where in `body` the things are that its chat request names."""
        convert: Convert = lambda marked: validated(cls, marked)._conversation()  # noqa: E731
        places: Callable[[], list[str]] = lambda: validated(cls, body).toolbox.places  # noqa: E731
        return CallersPaths(body, convert, ("instructions", "input"), _NAMES, tools=places)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields that were accepted and have no effect here."""
        return ("truncation",) if self.truncation == "auto" else ()

    @cached_property
    def toolbox(self) -> Toolbox:
        """The tools as chat has them, and what they are called here."""
        return toolbox(self.tools or ())

    @property
    def seals_thoughts(self) -> bool:
        """Whether a thought's `encrypted_content` must be all that the next turn needs of it."""
        return "reasoning.encrypted_content" in (self.include or ())

    def echo(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """What a response repeats of its request, which was made of `body`."""
        names = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "prompt_cache_key", "user")
        return {
            **{name: body.get(name) for name in names},
            "instructions": self.instructions,
            "metadata": self.metadata,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "safety_identifier": self.safety_identifier,
            "top_logprobs": self.top_logprobs or 0,  # never null: strict clients take a number only
            "truncation": "disabled",
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": [_told(tool) for tool in body.get("tools") or ()],
            "text": {"format": {"type": "text"}, **_given(body.get("text") or {})},
            "reasoning": body.get("reasoning"),
            "background": False,
            "previous_response_id": None,
            "store": False,
        }

    def _conversation(self) -> list[dict[str, Any]]:
        chat = Conversation()
        if self.instructions is not None:
            chat.say("system", [text_part(self.instructions)])
        if isinstance(self.input, str):
            chat.say("user", [text_part(self.input)])
        else:
            for item in self.input:
                item.add_to(chat, self.toolbox)
        return chat.messages()

    def _options(self) -> dict[str, Any]:
        config = self.text or TextConfig()
        return {
            "max_tokens": self.max_output_tokens,
            "response_format": config.format.to_chat() if config.format else None,
            "verbosity": config.verbosity,
            "user": (self.model_extra or {}).get("user") or self.safety_identifier,
            "service_tier": None if self.service_tier == "auto" else self.service_tier,
            **self._tool_options(),
            **self._logprobs(),
        }

    def _tool_options(self) -> dict[str, Any]:
        if not self.tools:
            return {}
        choice: Any = self.tool_choice
        return {
            "tools": self.toolbox.functions,
            "tool_choice": choice.to_chat(self.toolbox) if isinstance(choice, Choice) else choice,
            "parallel_tool_calls": self.parallel_tool_calls,
        }

    def _logprobs(self) -> dict[str, Any]:
        asked = self.top_logprobs is not None or "message.output_text.logprobs" in (self.include or ())
        return {"logprobs": True, "top_logprobs": self.top_logprobs} if asked else {}


def _told(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as a response repeats it: strict clients want every field of a function."""
    return {"strict": None, "parameters": None, **tool} if tool.get("type") == "function" else tool


_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
}  # chat's fields that OpenAI's responses call otherwise
_TRANSLATED = frozenset(
    {
        "input", "instructions", "max_output_tokens", "tools", "tool_choice", "parallel_tool_calls", "text",
        "include", "truncation", "safety_identifier", "service_tier", "store", "background", "conversation",
        "previous_response_id", "prompt", "n", "user", "stream_options", "max_tokens",
        "max_completion_tokens", "messages", "top_logprobs", "response_format",
    }
)  # fmt: skip


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
