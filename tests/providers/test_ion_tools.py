"""Tools as the local engine reads them: whatever their schemas say, a call's arguments are an object."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from ionrouter.engine.chat_template import ChatTemplate
from ionrouter.engine.tool_format import HERMES, Thought
from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.providers.ion_grammar import grammar_of
from ionrouter.providers.ion_tools import grammar_with_tools, messages_for, tools_of

INT: dict[str, Any] = {"type": "integer"}
OPEN: dict[str, Any] = {"properties": {"a": INT}, "required": ["a"]}
CALL_END = "}\n</tool_call>"


def body(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    function = {"name": "f", "parameters": schema, **more}
    return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}


def allows(asked: dict[str, Any], arguments: Any) -> bool:
    grammar = grammar_with_tools(asked, tools_of(asked), HERMES, None, "none")
    assert grammar is not None
    tokens = LLTokenizer("byte")
    matcher = LLMatcher(tokens, grammar.source, log_level=0)
    text = HERMES.open + "f" + HERMES.middle + json.dumps(arguments) + CALL_END
    ids = tokens.tokenize_str(text)
    return bool(matcher.validate_tokens(ids) == len(ids))


@pytest.mark.parametrize(
    "schema",
    [
        OPEN,
        OPEN | {"type": ["object", "null"]},
        {"$defs": {"x": OPEN}, "$ref": "#/$defs/x"},
        {"anyOf": [OPEN | {"type": "object"}, INT, {"type": "null"}]},
        {"description": "Anything"},
        {"type": "string"},
        {"type": ["string", "null"]},
        {"const": 5},
    ],
)
def test_arguments_are_an_object_also_where_the_schema_leaves_it_open(schema: dict[str, Any]) -> None:
    assert allows(body(schema), {"a": 1})
    for other in (5, "five", None, [1]):
        assert not allows(body(schema), other)


# What generators of schemas write, and what says nothing.
WORDY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "array", "items": {"type": "string", "format": "password"}, "uniqueItems": False}
    },
    "required": ["a"],
    "propertyNames": {"type": "string"},
}


@pytest.mark.parametrize("strict", [True, False])
def test_what_says_nothing_in_a_tools_schema_is_no_reason_to_refuse_it(strict: bool) -> None:
    assert allows(body(WORDY, strict=strict), {"a": ["x"]})
    assert not allows(body(WORDY, strict=strict), {"a": 1})


@pytest.mark.parametrize("thought", ["none", "may", "begun"])
def test_nor_in_the_schema_of_an_answer_beside_tools_or_behind_a_thought(thought: Thought) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": WORDY}}
    tools = {**body({"type": "object"}), "tool_choice": "auto"}
    for asked in ({"response_format": wanted}, {"response_format": wanted, **tools}):
        own, wish = grammar_of(asked), tools_of(asked)
        grammar = grammar_with_tools(asked, wish, HERMES, own, thought)
        assert grammar is not None
        matcher = LLMatcher(LLTokenizer("byte"), grammar.source, log_level=0)
        text = ("<think>" if thought == "may" else "") + ("</think>" if thought != "none" else "")
        ids = LLTokenizer("byte").tokenize_str(text + '{"a": ["x"]}')
        assert matcher.validate_tokens(ids) == len(ids)


@pytest.mark.parametrize("kind", ["string", ["string", "null"]])
def test_a_strict_tool_whose_arguments_are_no_object_is_refused_by_its_type(kind: Any) -> None:
    with pytest.raises(UpstreamError) as caught:
        tools_of(body({"type": kind}, strict=True))
    assert caught.value.failure is FailureClass.ENDPOINT_REQUEST
    assert caught.value.param == "tools[0].function.parameters.type"


@pytest.mark.parametrize("knows_tools", [True, False])
@pytest.mark.parametrize("arguments", ["[" * 100_000, "[" * 600 + "]" * 600, "1" * 5_000, "{", '{"a": 1}'])
def test_an_earlier_calls_arguments_reach_the_template_whatever_they_are(
    arguments: str, knows_tools: bool
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    asked = [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "user", "content": "?"}]
    told = messages_for(asked, HERMES, None, knows_tools=knows_tools)
    template = ChatTemplate("{% for m in messages %}{{ m | tojson }}{% endfor %}{{ tools }}")
    text = template.render(told, now=datetime(2026, 1, 1)).text
    assert arguments.replace('"', '\\"') in text or arguments in text
