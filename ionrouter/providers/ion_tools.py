"""A body's tools and its wish to think, as the local engine reads them: a grammar, and messages to render.

Knows OpenAI's fields and the model's format; knows no tokens and no answers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ionrouter.engine.grammar import Grammar, GrammarRefused, from_json_schema
from ionrouter.engine.tool_format import (
    HERMES,
    MISTRAL,
    Thought,
    Tool,
    ToolFormat,
    answer_grammar,
    tools_grammar,
)
from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.providers.ion_grammar import schema_of
from ionrouter.schema.json import is_shallow

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class ToolWish:
    """The functions that may be called, and whether one must be."""

    tools: tuple[Tool, ...]
    given: tuple[Mapping[str, Any], ...]  # as the template reads them
    is_required: bool = False
    parallel: bool = True


def tools_of(body: Mapping[str, Any]) -> ToolWish | None:
    """Read `tools`, `tool_choice`, `parallel_tool_calls`; None where nothing may be called."""
    given = body.get("tools") or ()
    choice = body.get("tool_choice")
    if not given:
        if choice not in (None, "none", "auto"):
            raise _invalid("tool_choice", "asks for a call, but there are no tools")
        return None
    if choice == "none":
        return None
    tools = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(given))
    wish = ToolWish(tools, tuple(given), parallel=body.get("parallel_tool_calls") is not False)
    if choice in (None, "auto"):
        return wish
    if choice in ("required", "any"):
        return ToolWish(wish.tools, wish.given, is_required=True, parallel=wish.parallel)
    return _named(wish, choice)


def _named(wish: ToolWish, choice: Any) -> ToolWish:
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    chosen = tuple(tool for tool in wish.tools if tool.name == name)
    if not chosen:
        raise _invalid("tool_choice", f"no tool is named {name!r}")
    return ToolWish(chosen, wish.given, is_required=True, parallel=False)


def _tool(tool: Any, path: str) -> Tool:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _cannot(path, "the local engine calls functions only")
    schema = function.get("parameters") or _ANY_OBJECT
    try:
        from_json_schema(schema)
        if (narrowed := _of_object(schema)) is not schema:
            from_json_schema(narrowed)
            schema = narrowed
    except GrammarRefused as error:
        if function.get("strict") is True:
            where = f"{path}.function.parameters{error.path}"
            raise _cannot(where, error.message) from error
        schema = _ANY_OBJECT  # not strict: the schema is advice, and the model still reads all of it
    return Tool(function["name"], schema)


def _of_object(schema: Any) -> Any:
    """Arguments are an object, also where their schema leaves it open; GrammarRefused if it says no."""
    if not isinstance(schema, Mapping) or schema.get("type") == "object":
        return schema
    kind = schema.get("type")
    if kind is not None and (isinstance(kind, str) or "object" not in kind):
        raise GrammarRefused(f"arguments are an object, not {kind!r}", ".type")
    return {**schema, "type": "object"}


def messages_for(
    messages: Sequence[Mapping[str, Any]], form: ToolFormat, wish: ToolWish | None, *, knows_tools: bool
) -> list[Mapping[str, Any]]:
    """Rewrite calls and results as the template wants them; in words where it knows no tools."""
    if knows_tools:
        return [_for_template(message, form) for message in messages]
    told = [_in_words(message) for message in messages]
    if wish is None:
        return told
    return _with_instructions(told, wish)


def _for_template(message: Mapping[str, Any], form: ToolFormat) -> Mapping[str, Any]:
    """Templates print arguments as JSON themselves: they get objects. Mistral's ids have nine characters."""
    out = dict(message)
    if message.get("tool_calls"):
        out["tool_calls"] = [_call_for_template(call, form) for call in message["tool_calls"]]
    if message.get("tool_call_id") and form is MISTRAL:
        out["tool_call_id"] = _short_id(message["tool_call_id"])
    return out


def _call_for_template(call: Mapping[str, Any], form: ToolFormat) -> Mapping[str, Any]:
    function = dict(call.get("function") or {})
    function["arguments"] = _arguments(function.get("arguments"))
    out = {**call, "function": function}
    return out | {"id": _short_id(str(call.get("id")))} if form is MISTRAL else out


def _arguments(value: Any) -> Any:
    """What a call's arguments say; their text where it is no JSON, or nested beyond reason."""
    try:
        said = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value
    return said if is_shallow(said) else value


def _short_id(call_id: str) -> str:
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _in_words(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<tool_response>\n{_text(message)}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    calls = [HERMES.open + _call_text(call) + HERMES.close for call in message["tool_calls"]]
    said = [text for text in (_text(message), *calls) if text]
    return {"role": "assistant", "content": "\n".join(said)}


def _call_text(call: Mapping[str, Any]) -> str:
    function = call.get("function") or {}
    arguments = _arguments(function.get("arguments")) or {}
    return f"{function.get('name')}{HERMES.middle}{json.dumps(arguments, ensure_ascii=False)}"


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list | tuple):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content or ""


def _with_instructions(messages: list[Mapping[str, Any]], wish: ToolWish) -> list[Mapping[str, Any]]:
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in wish.given)
    words = (
        f"You can call these functions, described as JSON:\n{listed}\n"
        f"To call one, write:\n{HERMES.open}NAME{HERMES.middle}ARGUMENTS{HERMES.close}\n"
        "with the function's name and a JSON object of its arguments."
    )
    first = messages[0] if messages and messages[0].get("role") in ("system", "developer") else None
    if first is None:
        return [{"role": "system", "content": words}, *messages]
    return [{**first, "content": f"{_text(first)}\n\n{words}"}, *messages[1:]]


def grammar_with_tools(
    body: Mapping[str, Any], wish: ToolWish | None, form: ToolFormat, own: Grammar | None, thought: Thought
) -> Grammar | None:
    """Join what a body asks of the answer's form (`own`) with its tools (`wish`) and the model's thoughts.

    Raises UpstreamError (400) naming the field where they do not go together.
    """
    schema = schema_of(body) if own is not None else None
    if wish is None and (own is None or thought == "none"):
        return own
    if own is not None and schema is None:
        raise _cannot("structured_outputs", "only JSON schemas go together with tools or thoughts here")
    try:
        if wish is None:
            return answer_grammar(schema or _ANY_OBJECT, thought)
        return tools_grammar(
            form,
            wish.tools,
            choice="required" if wish.is_required else "auto",
            parallel=wish.parallel,
            answer=schema,
            thought=thought,
        )
    except GrammarRefused as error:
        raise _cannot("tools", error.message) from error


def may_think(body: Mapping[str, Any]) -> bool | None:
    """Whether the caller wants thoughts; None where nothing is said."""
    wish = body.get("reasoning")
    wish = wish if isinstance(wish, Mapping) else {}
    effort = wish.get("effort") or body.get("reasoning_effort")
    if wish.get("enabled") is False or effort == "none" or wish.get("max_tokens") == 0:
        return False
    return True if wish.get("enabled") or effort or wish.get("max_tokens") else None


def _invalid(param: str, message: str) -> UpstreamError:
    return UpstreamError(
        FailureClass.REQUEST, f"{param}: {message}", status=400, error_type="invalid_request", param=param
    )


def _cannot(param: str, message: str) -> UpstreamError:
    return UpstreamError(
        FailureClass.ENDPOINT_REQUEST,
        f"{param}: {message}",
        status=400,
        error_type="invalid_request",
        param=param,
    )
