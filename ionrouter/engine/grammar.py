"""What an answer may look like: JSON schemas, regular expressions, choices and EBNF, compiled and checked.

Knows llguidance and JSON Schema; knows no model, no vocabulary and no request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ionrouter.errors import IonrouterError

# One line, one space after "," and ":": a model that may choose white space can go on choosing it for ever.
JSON_OPTIONS: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

# Keyword -> how its value holds subschemas. What is not here holds none.
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SINGLES = ("items", "additionalProperties")
_ROOT = ("$defs", "definitions")  # what `$ref` points into: goes along with every subschema


@dataclass(frozen=True, slots=True)
class Grammar:
    """A checked grammar in llguidance's own form."""

    source: str


class GrammarRefused(IonrouterError):
    """A grammar that cannot be followed; `path` leads to the fault from where the grammar was given."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.message = message
        self.path = path


def from_json_schema(schema: Mapping[str, Any] | bool) -> Grammar:
    """Compile a JSON Schema (draft 2020-12, as far as llguidance goes).

    Objects that do not say `additionalProperties` are closed: what comes out is valid all the same, and a
    small model does not invent properties without end. Raises GrammarRefused with the path of the keyword.
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        raise GrammarRefused("expected an object: a JSON Schema")
    try:
        source = _schema_source(schema)
    except (ValueError, TypeError, RecursionError) as error:
        raise GrammarRefused(str(error)) from error
    fault = _fault_of(source)
    if fault is not None:
        raise GrammarRefused(*_located(schema, fault))
    return Grammar(source)


def from_regex(pattern: str) -> Grammar:
    """Compile a regular expression (Rust's syntax: no look-around, no back references) for the whole text."""
    from llguidance import LLMatcher

    return _checked(LLMatcher.grammar_from_regex(pattern))


def from_choice(choices: Sequence[str]) -> Grammar:
    """Allow exactly these texts."""
    if not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise GrammarRefused("expected texts, at least one, none empty")
    return from_lark("start: " + " | ".join(lark_text(choice) for choice in choices))


def from_ebnf(text: str) -> Grammar:
    """Compile a grammar in GBNF (llama.cpp's EBNF, `root ::= ...`) or in Lark's form (`start: ...`)."""
    from llguidance import grammar_from

    try:
        return _checked(grammar_from("grammar", text))
    except ValueError as error:
        raise GrammarRefused(str(error)) from error


def from_lark(text: str) -> Grammar:
    """Compile a grammar in llguidance's dialect of Lark."""
    from llguidance import LLMatcher

    return _checked(LLMatcher.grammar_from_lark(text))


def lark_text(text: str) -> str:
    """Quote a text for a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)


def closed(schema: Any) -> Any:
    """Copy a schema with every object that does not speak of additional properties closed."""
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return [closed(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    out = {key: _closed_value(key, value) for key, value in schema.items()}
    if "properties" in out and not {"additionalProperties", "unevaluatedProperties"} & out.keys():
        out["additionalProperties"] = False
    return out


def _closed_value(key: str, value: Any) -> Any:
    if key == "allOf":  # each member speaks of a part of the same object: closing one would shut out the rest
        return value
    if key in _LISTS or key in _SINGLES:
        return closed(value)
    if key in _MAPS and isinstance(value, Mapping):
        return {name: closed(item) for name, item in value.items()}
    return value


def _schema_source(schema: Mapping[str, Any]) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(json.dumps(closed(schema)), overrides=JSON_OPTIONS)


def _checked(source: str) -> Grammar:
    fault = _fault_of(source)
    if fault is not None:
        raise GrammarRefused(fault)
    return Grammar(source)


def _fault_of(source: str) -> str | None:
    """What is wrong with it, warnings included: each names something that would be ignored."""
    from llguidance import LLMatcher

    _, messages = LLMatcher.validate_grammar_with_warnings(source)
    return " ".join(message.strip() for message in messages) or None


def _located(schema: Mapping[str, Any], fault: str) -> tuple[str, str]:
    """Find the innermost subschema that is at fault on its own: its message, and the path to it.

    The compiler says what it does not know, but not where.
    """
    root = {key: schema[key] for key in _ROOT if key in schema}
    path, inner, seen = "", schema, set()
    while path not in seen:
        seen.add(path)
        for step, child in _children(inner, schema, path):
            found = _fault_of(_schema_source({**root, **child})) if isinstance(child, Mapping) else None
            if found is not None:
                path, inner, fault = step, child, found
                break
    for keyword in inner:
        if _fault_of(_schema_source({**root, **{k: v for k, v in inner.items() if k != keyword}})) is None:
            return fault, f"{path}.{keyword}"
    return fault, path


def _children(schema: Mapping[str, Any], root: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Subschemas with their paths; behind a `$ref` the definition it names."""
    for key, value in schema.items():
        if key in _SINGLES:
            yield f"{path}.{key}", value
        elif key in _LISTS and isinstance(value, Sequence):
            yield from ((f"{path}.{key}[{index}]", item) for index, item in enumerate(value))
        elif key in _MAPS and isinstance(value, Mapping) and key not in _ROOT:
            yield from ((f"{path}.{key}.{name}", item) for name, item in value.items())
        elif key == "$ref" and isinstance(value, str) and value.startswith("#/"):
            _, place, name = (*value.split("/"), "", "")[:3]
            if place in _ROOT and name in root.get(place, {}):
                yield f".{place}.{name}", root[place][name]
