"""Which fields ask for a form of the answer, what they mean, and where a fault in them is found."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.providers.ion_grammar import grammar_of

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"response_format": None},
        {"response_format": {"type": "text"}},
        {"structured_outputs": True},
        {"structured_outputs": False},
        {"structured_outputs": {}},
        {"guided_json": None},
    ],
)
def test_nothing_asked_is_no_grammar(body: dict[str, Any]) -> None:
    assert grammar_of(body) is None


def test_the_same_schema_under_any_name_is_the_same_grammar() -> None:
    named = {"name": "x", "schema": SCHEMA}
    given = [
        {"response_format": {"type": "json_schema", "json_schema": named}},
        {"response_format": {"type": "json_schema", "json_schema": named | {"strict": True}}},
        {"structured_outputs": {"json": SCHEMA}},
        {"guided_json": SCHEMA},
        {"guided_json": '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'},
    ]
    assert len({grammar_of(body) for body in given}) == 1


def test_json_object_and_a_format_without_schema_are_any_object() -> None:
    given = [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        {"structured_outputs": {"json_object": True}},
    ]
    assert len({grammar_of(body) for body in given}) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"guided_regex": "[0-9]+"},
        {"guided_choice": ["yes", "no"]},
        {"guided_grammar": 'root ::= "a" root | "b"'},
        {"structured_outputs": {"regex": "[0-9]+"}},
        {"structured_outputs": {"choice": ["yes", 'a "quoted" one']}},
        {"structured_outputs": {"grammar": 'start: "a"+'}},
        {"response_format": {"type": "grammar", "grammar": 'root ::= "a"'}},
    ],
    ids=str,
)
def test_other_forms_are_grammars_too(body: dict[str, Any]) -> None:
    assert grammar_of(body) is not None


def in_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


AT = "response_format.json_schema.schema"
FAULTS: list[tuple[dict[str, Any], str, str]] = [
    (in_format({"type": "array", "uniqueItems": True}), f"{AT}.uniqueItems", "uniqueItems"),
    (
        in_format({"type": "object", "properties": {"x": {"type": "array", "items": {"not": {}}}}}),
        f"{AT}.properties.x.items.not",
        "not",
    ),
    (in_format({"anyOf": [{"type": "null"}, {"type": "strng"}]}), f"{AT}.anyOf[1].type", "strng"),
    (
        in_format({"$ref": "#/$defs/n", "$defs": {"n": {"type": "string", "format": "idn-hostname"}}}),
        f"{AT}.$defs.n.format",
        "idn-hostname",
    ),
    (in_format({"type": "string", "pattern": "(?=a)b"}), f"{AT}.pattern", "look-around"),
    (in_format({"$ref": "#/$defs/gone"}), f"{AT}.$ref", "gone"),
    ({"guided_json": "{"}, "guided_json", "not JSON"),
    ({"guided_json": "[" * 100_000}, "guided_json", "nested too deeply"),
    ({"guided_json": '{"items":' * 600 + "{}" + "}" * 600}, "guided_json", "nested too deeply"),
    ({"guided_json": 5}, "guided_json", "object"),
    ({"guided_regex": "(a"}, "guided_regex", "unclosed"),
    ({"guided_regex": ""}, "guided_regex", "empty"),
    ({"guided_choice": []}, "guided_choice", "at least one"),
    ({"guided_choice": "yes"}, "guided_choice", "list"),
    ({"guided_grammar": "root := 1"}, "guided_grammar", "::="),
    ({"structured_outputs": {"xml": {}}}, "structured_outputs.xml", "known are json"),
    ({"structured_outputs": 5}, "structured_outputs", "object"),
    ({"response_format": {"type": "python"}}, "response_format.type", "python"),
    ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "only one"),
]


@pytest.mark.parametrize(("body", "path", "words"), FAULTS, ids=[path for _, path, _ in FAULTS])
def test_what_cannot_be_followed_is_a_400_with_its_path(body: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(UpstreamError) as raised:
        grammar_of(body)
    error = raised.value
    assert (error.failure, error.status, error.param) == (FailureClass.ENDPOINT_REQUEST, 400, path)
    assert path in error.message
    assert words in error.message
