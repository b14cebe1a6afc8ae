"""Keywords that say nothing are no reason to refuse a schema, and those that cannot be kept to are named."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any

import jsonschema
import pytest
from llguidance import LLTokenizer

from ionrouter.engine.closed_schema import closed
from ionrouter.engine.grammar import MAX_OPTIONAL_PROPERTIES, GrammarRefused, from_json_schema
from ionrouter.engine.grammar_keeper import GrammarVocabulary
from ionrouter.engine.plain_schema import plain

TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
ARRAY = {"type": "array", "items": TEXT}
OBJECT = {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["a"]}
VALUES: tuple[Any, ...] = (
    "x",
    3,
    [],
    ["x"],
    ["x", "x"],
    [1],
    {"a": "x"},
    {"a": "x", "b": "y"},
    {"b": "y"},
    {},
)

# Each beside what it stands in: neither allows a value less, nor one more.
IDLE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(
        (ARRAY, extra)
        for extra in ({"uniqueItems": False}, {"uniqueItems": True, "maxItems": 1}, {"minItems": 0})
    ),
    *(
        (ARRAY, extra)
        for extra in ({"contains": WHOLE, "minContains": 0}, {"minContains": 3}, {"maxContains": 0})
    ),
    *(
        (ARRAY, extra)
        for extra in ({"unevaluatedItems": True}, {"unevaluatedItems": False}, {"additionalItems": True})
    ),
    ({"type": "array", "prefixItems": [TEXT]}, {"unevaluatedItems": False}),
    *((TEXT, {"format": word}) for word in ("password", "binary", "file-path", "x-ours")),
    (TEXT, {"minLength": 0, "default": "d", "examples": ["e"], "$comment": "c", "deprecated": True}),
    (TEXT, {"readOnly": True, "writeOnly": False, "title": "t", "description": "d"}),
    *(
        (TEXT, extra)
        for extra in ({"not": False}, {"if": {"minLength": 2}}, {"then": False}, {"else": False})
    ),
    (TEXT, {"if": {"minLength": 2}, "then": True, "else": {}}),
    *((OBJECT, {"propertyNames": names}) for names in (True, {}, {"type": "string"})),
    *((OBJECT, {key: {}}) for key in ("dependentRequired", "dependentSchemas", "dependencies")),
    (OBJECT, {"dependentRequired": {"a": []}, "dependentSchemas": {"b": True}}),
    *((OBJECT, extra) for extra in ({"minProperties": 0}, {"minProperties": 1}, {"maxProperties": 2})),
    (OBJECT, {"$dynamicAnchor": "here"}),
    (WHOLE, {"minimum": -(1 << 63), "maximum": (1 << 63) - 1}),  # int64
    (WHOLE, {"exclusiveMinimum": -1e30, "exclusiveMaximum": 1 << 64}),
    ({"type": ["integer", "null"]}, {"minimum": -(1 << 63), "maximum": (1 << 63) - 1}),
    ({"type": "number"}, {"minimum": -sys.float_info.max, "maximum": sys.float_info.max}),
    (OBJECT, {"additionalProperties": False, "unevaluatedProperties": {"not": {}}, "maxProperties": 7}),
    (OBJECT, {"unevaluatedProperties": False}),
    (OBJECT, {"unevaluatedProperties": TEXT}),
    ({"anyOf": [OBJECT]}, {"unevaluatedProperties": True}),
]


def _started(schema: Any) -> Any:
    """A matcher with the engine's own limits; its vocabulary is the bytes."""
    vocabulary = GrammarVocabulary.__new__(GrammarVocabulary)
    vocabulary._tokens = LLTokenizer("byte")
    return vocabulary.start(from_json_schema(schema)).matcher


def _follows(schema: Any, value: Any) -> bool:
    """Whether the grammar takes a value, written as the engine writes it."""
    matcher = _started(schema)
    ids = list(json.dumps(value).encode())
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


@pytest.mark.parametrize(("base", "extra"), IDLE)
def test_what_says_nothing_or_can_be_said_otherwise_is_followed(base: Any, extra: Any) -> None:
    checker = jsonschema.Draft202012Validator({**base, **extra})
    equal = jsonschema.Draft202012Validator(plain({**base, **extra}))
    shut = jsonschema.Draft202012Validator(closed(plain({**base, **extra})))
    for value in VALUES:
        assert equal.is_valid(value) == checker.is_valid(value), value
        assert _follows({**base, **extra}, value) == shut.is_valid(value), value


@pytest.mark.parametrize("kind", ["number", "integer"])
@pytest.mark.parametrize(
    "bounds",
    [
        *({least: bound} for least in ("minimum", "exclusiveMinimum") for bound in (10**18, 2 * 10**18)),
        *({most: -bound} for most in ("maximum", "exclusiveMaximum") for bound in (10**18, 2 * 10**18)),
        {"minimum": 2 * 10**18, "maximum": 10**19},
        {"minimum": -(10**19), "maximum": -2 * 10**18},
        {"minimum": 10**18 - 1},  # no double is this number
        {"minimum": (1 << 53) + 1, "maximum": (1 << 54) + 1},
        {"maximum": 10**18 - 1},
        {"exclusiveMaximum": -(10**18) + 1},
        {"minimum": -(10**18) + 1, "exclusiveMaximum": 0},
    ],
    ids=str,
)
def test_bounds_beyond_what_a_double_counts_are_kept(kind: str, bounds: Any) -> None:
    numbers = [
        0,
        1 << 53,
        (1 << 53) + 2,
        1 << 54,
        (1 << 54) + 4,
        10**18,
        10**18 - 128,
        3 * 10**18,
        9 * 10**18,
    ]
    checker = jsonschema.Draft202012Validator({"type": kind, **bounds})
    for value in (sign * number for number in numbers for sign in (1, -1)):
        assert _follows({"type": kind, **bounds}, value) == checker.is_valid(value), value


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({**ARRAY, "uniqueItems": True}, ".uniqueItems"),
        ({**ARRAY, "contains": TEXT}, ".contains"),
        ({**ARRAY, "items": {**TEXT, "format": "regex"}}, ".items.format"),
        ({**OBJECT, "propertyNames": {"pattern": "^a"}}, ".propertyNames"),
        ({**OBJECT, "dependentRequired": {"a": ["b"]}}, ".dependentRequired"),
        ({"allOf": [OBJECT], "unevaluatedProperties": False}, ".unevaluatedProperties"),
        ({**ARRAY, "contains": WHOLE, "minContains": 0, "items": True, "not": {}}, ".not"),
        ({"prefixItems": [TEXT], "contains": WHOLE, "unevaluatedItems": False}, ".contains"),
        ({"properties": {"a": {"if": WHOLE, "then": {"minimum": 1}}}}, ".properties.a.if"),
    ],
)
def test_what_cannot_be_kept_to_is_refused_by_its_place(schema: Any, where: str) -> None:
    with pytest.raises(GrammarRefused) as refused:
        from_json_schema(schema)
    assert refused.value.path == where


KEYWORDS = (
    *("$defs", "definitions", "$ref", "type", "enum", "properties", "patternProperties", "required", "items"),
    *("prefixItems", "additionalProperties", "anyOf", "allOf", "oneOf", "not", "minLength", "maxItems"),
    *(
        "minimum",
        "maximum",
        "multipleOf",
        "pattern",
        "format",
        "minProperties",
        "propertyNames",
        "if",
        "contains",
    ),
)
ODD_VALUES = (
    *(None, True, False, -1, 0.5, 10**400, "", "t", "é" * 300, "#/t", [], ["t"], [[]], [{}], {}, {"t": 5}),
    *({"t": None}, {"t": {"$ref": "#"}}),
)


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_whatever_a_keyword_is_given_is_followed_or_refused(keyword: str) -> None:
    for base in ({}, {"$ref": "#/$defs/t"}, {"type": "object", "properties": {"t": {"not": {}}}}):
        for odd in ODD_VALUES:
            with suppress(GrammarRefused):
                from_json_schema({**base, keyword: odd})


def test_a_number_beyond_all_is_refused_wherever_a_fault_is_searched_for() -> None:
    part = {"patternProperties": {"^x": TEXT, "y$": {"": 1}}, "unevaluatedProperties": 10**400}
    with pytest.raises(GrammarRefused, match="number out of range"):
        from_json_schema(part)


def test_words_that_are_values_or_names_are_left_alone() -> None:
    schema = {
        "properties": {
            "uniqueItems": {"const": {"uniqueItems": False}},
            "format": {"enum": [{"format": "x"}]},
        },
        "$defs": {"not": {"default": {"not": False}}},
    }
    assert plain(schema) == schema


def _optional(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": TEXT for i in range(count)}}


def test_an_object_may_have_two_thousand_properties_that_are_not_required() -> None:
    matcher = _started(_optional(MAX_OPTIONAL_PROPERTIES))
    for byte in json.dumps({"p0": "x", "p999": "y", "p1999": "z"}).encode():
        matcher.compute_bitmask()
        assert matcher.consume_token(byte), matcher.get_error()
    assert matcher.is_accepting()


def test_more_are_refused_by_name() -> None:
    with pytest.raises(
        GrammarRefused, match="2001 properties that are not required, more than 2000"
    ) as refused:
        from_json_schema({"items": _optional(MAX_OPTIONAL_PROPERTIES + 1)})
    assert refused.value.path == ".items.properties"


def test_few_may_be_left_out_where_a_minimum_asks_for_some() -> None:
    """It costs their square: 200 ended in a panic of the library's, 1,500 in half a minute of compiling."""
    assert _follows(_optional(64) | {"minProperties": 1}, {"p7": "x"})
    with pytest.raises(GrammarRefused, match="65 properties that are not required, more than 64") as refused:
        from_json_schema(_optional(65) | {"minProperties": 1})
    assert refused.value.path == ".minProperties"
    from_json_schema(_optional(65) | {"minProperties": 1, "required": ["p0"]})
