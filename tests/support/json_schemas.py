"""Random JSON Schemas from a seed: the same seed gives the same schemas, on every machine.

Nested to four levels, with bounds, enums, constants, unions, recursion, patterns, optional and extra
properties, and keys in many scripts; two thirds have four or more properties.
"""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]

_KEYS = (
    *("name", "age", "id", "tags", "kind", "count", "price", "title", "city", "email", "status", "color"),
    *("size", "active", "größe", "名前", "город", "prix_unitaire", "naïve", "ключ", "标题", "emoji🙂"),
    *("a b", "x-y", "_private"),
)
_WORDS = ("red", "green", "blue", "north", "south", "été", "東京", "да", "low", "high", "open", "closed")
_PATTERNS = (
    "^[a-z]{2,6}$",
    "^[A-Z]{3}-[0-9]{2}$",
    "^(yes|no)$",
    "^#[0-9a-f]{6}$",
    "^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
)
MAX_DEPTH = 4


def schemas(seed: int, count: int) -> list[Schema]:
    """Make `count` schemas of objects."""
    rng = random.Random(seed)
    return [_root(rng) for _ in range(count)]


def _root(rng: random.Random) -> Schema:
    num_properties = rng.choice((1, 2, 3, 4, 4, 5, 5, 6, 7))
    root = _object(rng, 1, num_properties)
    if rng.random() < 0.08:  # few: a small model seldom finds an end to a list that needs none
        root["$defs"] = {"node": _node(rng)}
        root["properties"]["tree"] = {"$ref": "#/$defs/node"}
        root["required"] = [*root["required"], "tree"]
    return root


def _node(rng: random.Random) -> Schema:
    """A list that refers to itself and can end at every step."""
    return {
        "type": "object",
        "properties": {
            "value": _leaf(rng),
            "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
        },
        "required": ["value", "next"],
        "additionalProperties": False,
    }


def _object(rng: random.Random, depth: int, num_properties: int) -> Schema:
    keys = rng.sample(_KEYS, num_properties)
    properties = {key: _value(rng, depth) for key in keys}
    required = [key for key in keys if rng.random() < 0.7] or keys[:1]
    schema: Schema = {"type": "object", "properties": properties, "required": required}
    extra = rng.random()
    if extra < 0.6:
        schema["additionalProperties"] = False
    elif extra < 0.7:
        schema["required"] = keys  # maxProperties can be followed only where no property is optional
        schema["additionalProperties"] = {"type": "integer", "minimum": 0, "maximum": 9}
        schema["maxProperties"] = num_properties + 1
    return schema


def _value(rng: random.Random, depth: int) -> Schema:
    if depth >= MAX_DEPTH or rng.random() < 0.6:
        return _leaf(rng)
    make = rng.choice((_array, _union, _nested))
    return make(rng, depth + 1)


def _nested(rng: random.Random, depth: int) -> Schema:
    return _object(rng, depth, rng.randint(1, 3))


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 2)
    return {
        "type": "array",
        "items": _value(rng, depth),
        "minItems": least,
        "maxItems": least + rng.randint(1, 3),
    }


def _union(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_value(rng, depth), {"type": "null"}]}


def _leaf(rng: random.Random) -> Schema:
    return rng.choice(_LEAVES)(rng)


def _integer(rng: random.Random) -> Schema:
    least = rng.randint(-100, 100)
    return {"type": "integer", "minimum": least, "maximum": least + rng.randint(0, 500)}


def _number(rng: random.Random) -> Schema:
    least = rng.choice((0, 0.5, -2))
    return {"type": "number", "minimum": least, "exclusiveMaximum": least + rng.choice((1, 10, 99.5))}


def _text(rng: random.Random) -> Schema:
    return {"type": "string", "minLength": rng.randint(0, 2), "maxLength": rng.randint(5, 40)}


_LEAVES = (
    _integer,
    _number,
    _text,
    lambda rng: {"type": "string"},
    lambda rng: {"type": "boolean"},
    lambda rng: {"type": "string", "pattern": rng.choice(_PATTERNS)},
    lambda rng: {"enum": rng.sample(_WORDS, rng.randint(2, 4))},
    lambda rng: {"enum": [1, "two", None, True]},
    lambda rng: {"const": rng.choice((7, "fixed", "été", None))},
    lambda rng: {"type": ["string", "null"], "maxLength": 20},
)
