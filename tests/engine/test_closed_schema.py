"""Objects are closed to properties nobody named, and never to ones that some part of their schema names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from ionrouter.engine.closed_schema import closed
from ionrouter.engine.grammar import from_json_schema

INT: dict[str, Any] = {"type": "integer"}
BASE = {"type": "object", "properties": {"id": INT}, "required": ["id"]}
MORE = {"type": "object", "properties": {"n": INT}, "required": ["n"]}
DEFS = {"$defs": {"base": BASE}}
REF = {"$ref": "#/$defs/base"}
NODE = {
    "type": "object",
    "properties": {"id": INT, "child": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
    "required": ["id", "child"],
}


def allows(schema: dict[str, Any], value: Any) -> bool:
    tokens = LLTokenizer("byte")
    matcher = LLMatcher(tokens, from_json_schema(schema).source, log_level=0)
    text = tokens.tokenize_bytes(json.dumps(value).encode())
    return bool(matcher.validate_tokens(text) == len(text) and matcher.consume_tokens(text)) and bool(
        matcher.is_accepting()
    )


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (DEFS | {"allOf": [REF, MORE]}, {"id": 1, "n": 2}),
        (DEFS | REF | MORE, {"id": 1, "n": 2}),
        (MORE | {"allOf": [BASE]}, {"n": 2, "id": 1}),
        (BASE | {"required": ["id", "n"]}, {"id": 1, "n": 2}),
        (BASE | {"anyOf": [MORE, {"properties": {"m": INT}, "required": ["m"]}]}, {"id": 1, "n": 2}),
        (BASE | {"anyOf": [MORE, {"properties": {"m": INT}, "required": ["m"]}]}, {"id": 1, "m": 2}),
        (BASE | {"anyOf": [{"required": ["id"]}, {"properties": {"n": INT}}]}, {"id": 1}),
        (
            {"$defs": {"base": BASE, "mid": {"allOf": [REF, {"properties": {"m": INT}}]}}}
            | {"allOf": [{"$ref": "#/$defs/mid"}, MORE]},
            {"id": 1, "m": 2, "n": 3},
        ),
        (
            {"properties": {"a": BASE, "b": {"allOf": [{"$ref": "#/properties/a"}, MORE]}}},
            {"b": {"id": 1, "n": 2}},
        ),
        (
            {"$defs": {"node": NODE}, "allOf": [{"$ref": "#/$defs/node"}, MORE]},
            {"id": 1, "child": None, "n": 2},
        ),
        ({"$defs": {"base": BASE | {"$anchor": "b"}}, "allOf": [{"$ref": "#b"}, MORE]}, {"id": 1, "n": 2}),
    ],
)
def test_what_any_part_of_an_object_names_may_come(schema: dict[str, Any], value: Any) -> None:
    assert allows(schema, value)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (BASE, {"id": 1}),
        (DEFS | REF, {"id": 1}),
        (DEFS | {"allOf": [REF], "title": "Only one"}, {"id": 1}),
        (DEFS | {"anyOf": [REF, {"type": "null"}]}, {"id": 1}),
        (DEFS | {"properties": {"a": REF}}, {"a": {"id": 1}}),
        (DEFS | {"type": "array", "items": REF}, [{"id": 1}]),
        (DEFS | {"allOf": [REF, MORE]}, {"id": 1, "n": 2}),
        (DEFS | REF | MORE, {"id": 1, "n": 2}),
        (BASE | {"required": ["id", "n"]}, {"id": 1, "n": 2}),
        ({"$defs": {"node": NODE}, "$ref": "#/$defs/node"}, {"id": 1, "child": {"id": 2, "child": None}}),
    ],
)
def test_what_nobody_names_may_not_come(schema: dict[str, Any], value: Any) -> None:
    assert allows(schema, value)
    inner = value[0] if isinstance(value, list) else value.get("a", value)
    inner["invented"] = 1
    assert not allows(schema, value)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": INT}, "additionalProperties": INT},
        {"properties": {"a": INT}, "unevaluatedProperties": False},
        {
            "allOf": [
                {"properties": {"a": INT}, "additionalProperties": {"type": "null"}},
                {"required": ["b"]},
            ]
        },
        {"type": "object", "required": ["a"]},
        {"const": {"properties": {"a": 1}}},
        {"properties": {"a": INT}, "patternProperties": {"^b": INT}, "required": ["b"]},
        {"properties": ["a"], "anyOf": 3, "allOf": {"a": 1}, "$ref": 5, "required": [1, ["a"], {"b": 1}]},
    ],
)
def test_what_speaks_for_itself_or_makes_no_sense_is_left_alone(schema: dict[str, Any]) -> None:
    assert closed(schema) == schema


def test_parts_that_have_parts_that_have_parts_are_not_looked_at_for_ever() -> None:
    """Each of them is a part of all before it: 32 million pairs."""
    count = 8_000
    defs: dict[str, Any] = {
        f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"properties": {f"p{i}": INT}}]}
        for i in range(count)
    }
    schema = {"$defs": defs | {f"d{count}": BASE}, "$ref": "#/$defs/d0"}
    assert closed(schema) == schema
