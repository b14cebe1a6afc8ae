"""What an answer may look like: JSON schemas, regular expressions, choices and EBNF, compiled and checked.

Knows llguidance and JSON Schema; knows no model, no vocabulary and no request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ionrouter.engine.closed_schema import closed
from ionrouter.engine.deep_stack import on_deep_stack
from ionrouter.engine.panics import Panicked, without_panic
from ionrouter.engine.plain_schema import LISTS, MAPS, SINGLES, plain
from ionrouter.errors import IonrouterError

Result = TypeVar("Result")

# One line, one space after "," and ":": a model that may choose white space can go on choosing it for ever.
JSON_OPTIONS: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

# What llguidance takes to compile grows with these: its stack by up to 1 KB a character of a grammar's rules
# that name one another and 350 bytes of a schema's (deep_stack.STACK_BYTES holds either), its memory with the
# square of a regular expression (70 MB for 8,192 characters), its time with the cube of the patterns.
MAX_SCHEMA_CHARACTERS = 1 << 19
MAX_EBNF_CHARACTERS = 1 << 17
MAX_GRAMMAR_CHARACTERS = 1 << 20  # all tools' schemas together
MAX_CHOICE_CHARACTERS = 1 << 18
MAX_REGEX_CHARACTERS = 1 << 13
MAX_PATTERN_PROPERTIES = 128
MAX_OPTIONAL_PROPERTIES = 2000  # of one object: half a second to start, 10 ms a mask
MAX_OPTIONAL_BESIDE_MINIMUM = 64  # where `minProperties` asks for some of them: it grows with the square
# At -2^63 llguidance negates a number into itself, without end until the stack is gone, and the process with
# it. It reads numbers as doubles: this is the largest that it takes for -2^63.
_MAX_TOO_LOW = -(1 << 63) + 512
_MAX_PANIC_CHARACTERS = 300  # it may repeat the grammar
_INLINE_CHARACTERS = 4096  # no deeper than anybody's stack
_MAX_SEARCHED = 1 << 20  # characters of subschemas that are compiled to find the one at fault

_REGEX_IN_EBNF = re.compile(r"\\.|/(?:[^/\\\n]|\\.)*")  # or what is escaped elsewhere

_EXACT = {"const", "enum", "maximum", "exclusiveMaximum"}  # keywords that can make a number all there is
_NEGATIVE = re.compile(r"-[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")

_ASCII_CLASSES = {r"\d": "[0-9]", r"\D": "[^0-9]", r"\w": "[0-9A-Za-z_]", r"\W": "[^0-9A-Za-z_]"}

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

    Objects that do not say `additionalProperties` are closed (closed_schema.py): what comes out is valid all
    the same, and a small model does not invent properties without end. Raises GrammarRefused with the path of
    the keyword.
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        raise GrammarRefused("expected an object: a JSON Schema")
    try:
        _require_bounded(schema)
        _require_countable(schema)
        source = _schema_source(schema)
        _require_size(source, MAX_SCHEMA_CHARACTERS)
        fault = _fault_of(source)
        if fault is not None:
            raise GrammarRefused(*_located(schema, fault))
    except RecursionError as error:
        raise GrammarRefused("nested too deeply") from error
    except (ValueError, TypeError) as error:  # of a part of it, too, where the fault is searched for
        raise GrammarRefused(str(error)) from error
    return Grammar(source)


def from_regex(pattern: str) -> Grammar:
    """Compile a regular expression for the whole text; Rust's syntax: no look-around, no back references.

    Digits and letters of words are ASCII's, as in patterns of schemas: a model would write others.
    """
    from llguidance import LLMatcher

    _require_size(pattern, MAX_REGEX_CHARACTERS)
    ascii_only = re.sub(
        r"\\.", lambda found: _ASCII_CLASSES.get(found[0], found[0]), pattern, flags=re.DOTALL
    )
    try:
        return _checked(LLMatcher.grammar_from_regex(ascii_only))
    except GrammarRefused:
        _checked(LLMatcher.grammar_from_regex(pattern))  # its fault, in the words it was asked in
        raise


def from_choice(choices: Sequence[str]) -> Grammar:
    """Allow exactly these texts."""
    if not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise GrammarRefused("expected texts, at least one, none empty")
    _require_size(choices, MAX_CHOICE_CHARACTERS)
    return from_lark("start: " + " | ".join(lark_text(choice) for choice in choices))


def from_ebnf(text: str) -> Grammar:
    """Compile a grammar in GBNF (llama.cpp's EBNF, `root ::= ...`) or in Lark's form (`start: ...`)."""
    from llguidance import grammar_from

    _require_size(text, MAX_EBNF_CHARACTERS)
    if any(len(found[0]) > MAX_REGEX_CHARACTERS for found in _REGEX_IN_EBNF.finditer(text)):
        raise GrammarRefused(f"a regular expression has more than {MAX_REGEX_CHARACTERS} characters")
    if "%json" in text:
        for found in _NEGATIVE.finditer(text):
            _require_not_low(float(found[0]), "")
    try:
        return _checked(grammar_from("grammar", text))
    except ValueError as error:
        raise GrammarRefused(str(error)) from error


def from_lark(text: str) -> Grammar:
    """Compile a grammar in llguidance's dialect of Lark."""
    from llguidance import LLMatcher

    _require_size(text, MAX_GRAMMAR_CHARACTERS)
    return _checked(LLMatcher.grammar_from_lark(text))


def lark_text(text: str) -> str:
    """Quote a text for a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)


def compilable(schema: Mapping[str, Any]) -> Any:
    """Write a schema as the compiler is given it, alone or within a grammar."""
    return closed(plain(schema))


def _schema_source(schema: Mapping[str, Any]) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(json.dumps(compilable(schema)), overrides=JSON_OPTIONS)


def _checked(source: str) -> Grammar:
    fault = _fault_of(source)
    if fault is not None:
        raise GrammarRefused(fault)
    return Grammar(source)


def _fault_of(source: str) -> str | None:
    """What is wrong with it, warnings included: each names something that would be ignored."""
    from llguidance import LLMatcher

    try:
        _, messages = with_room_for(source, lambda: LLMatcher.validate_grammar_with_warnings(source))
    except GrammarRefused as error:
        return error.message
    return " ".join(message.strip() for message in messages) or None


def with_room_for(source: str, work: Callable[[], Result]) -> Result:
    """Call `work`, which compiles `source`, where the stack holds however deep that leads.

    Raises GrammarRefused where the compiler itself breaks.
    """
    try:
        if len(source) <= _INLINE_CHARACTERS:
            return without_panic(work)
        return without_panic(lambda: on_deep_stack(work, "ion-grammar-deep"))
    except Panicked as error:
        raise GrammarRefused(f"its compiler failed: {str(error)[:_MAX_PANIC_CHARACTERS]}") from error


def _require_size(given: Sequence[Any], most: int) -> None:
    size = len(given) if isinstance(given, str) else sum(map(len, given))
    if size > most:
        raise GrammarRefused(f"{size} characters are more than {most}")


def _require_bounded(schema: Mapping[str, Any]) -> None:
    """Bound what regular expressions and objects cost, wherever in a schema they stand."""
    num_patterns, waiting = 0, [("", schema)]
    while waiting:
        path, inner = waiting.pop()
        _require_few_optional(inner, path)
        patterns = [*_mapping(inner.get("patternProperties")), inner.get("pattern")]
        num_patterns += len(patterns) - 1
        for pattern in patterns:
            if isinstance(pattern, str) and len(pattern) > MAX_REGEX_CHARACTERS:
                where = f"{path}.pattern" if pattern is patterns[-1] else f"{path}.patternProperties"
                raise GrammarRefused(
                    f"a pattern has {len(pattern)} characters, more than {MAX_REGEX_CHARACTERS}", where
                )
        if num_patterns > MAX_PATTERN_PROPERTIES:
            message = f"more than {MAX_PATTERN_PROPERTIES} patterns in the whole schema"
            raise GrammarRefused(message, f"{path}.patternProperties")
        held = (*_children(inner, {}, path), *_definitions(inner, path))
        waiting += [(step, child) for step, child in held if isinstance(child, Mapping)]


def _require_few_optional(schema: Mapping[str, Any], path: str) -> None:
    required, least = _names(schema.get("required")), schema.get("minProperties")
    num_optional = len(_mapping(schema.get("properties")).keys() - required)
    most, where = MAX_OPTIONAL_PROPERTIES, "properties"
    if isinstance(least, int) and least > len(required):
        most, where = MAX_OPTIONAL_BESIDE_MINIMUM, "minProperties"
    if num_optional > most:
        message = f"{num_optional} properties that are not required, more than {most}"
        beside = " beside a minimum that those required do not reach" if where == "minProperties" else ""
        raise GrammarRefused(message + beside, f"{path}.{where}")


def _require_countable(schema: Mapping[str, Any]) -> None:
    """Refuse numbers that would end the process. `$ref` may lead anywhere, so every place is looked at."""
    waiting: list[tuple[str, Any, bool]] = [("", schema, False)]
    while waiting:
        path, value, is_exact = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(f"{path}.{key}", inner, is_exact or key in _EXACT) for key, inner in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [(f"{path}[{index}]", inner, is_exact) for index, inner in enumerate(value)]
        elif is_exact and isinstance(value, int | float):
            _require_not_low(value, path)


def _require_not_low(value: float, path: str) -> None:
    if value <= _MAX_TOO_LOW:
        raise GrammarRefused("a number of -2^63 or below cannot be followed", path)


def _definitions(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for place in _ROOT:
        yield from ((f"{path}.{place}.{name}", item) for name, item in _mapping(schema.get(place)).items())


def _names(value: Any) -> set[str]:
    return {name for name in value if isinstance(name, str)} if isinstance(value, list | tuple) else set()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _located(schema: Mapping[str, Any], fault: str) -> tuple[str, str]:
    """Find the innermost subschema that is at fault on its own: its message, and the path to it.

    The compiler says what it does not know, but not where. What is too large to be searched is named as far
    as the search led.
    """
    root = {key: schema[key] for key in _ROOT if key in schema}
    left = _MAX_SEARCHED

    def fault_in(subschema: Mapping[str, Any]) -> str | None:
        nonlocal left
        source = _schema_source(subschema)
        left -= len(source)
        return _fault_of(source)

    path, inner, seen = "", schema, set()
    while path not in seen:
        seen.add(path)
        for step, child in _children(inner, schema, path):
            found = fault_in({**root, **child}) if left > 0 and isinstance(child, Mapping) else None
            if found is not None:
                path, inner, fault = step, child, found
                break
    for keyword in sorted(inner, key=lambda keyword: f'"{keyword}"' not in fault):  # what it names first
        if left > 0 and fault_in({**root, **{k: v for k, v in inner.items() if k != keyword}}) is None:
            return fault, f"{path}.{keyword}"
    return fault, path


def _children(schema: Mapping[str, Any], root: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Subschemas with their paths; behind a `$ref` the definition it names."""
    for key, value in schema.items():
        if key in SINGLES:
            yield f"{path}.{key}", value
        elif key in LISTS and isinstance(value, Sequence):
            yield from ((f"{path}.{key}[{index}]", item) for index, item in enumerate(value))
        elif key in MAPS and isinstance(value, Mapping) and key not in _ROOT:
            yield from ((f"{path}.{key}.{name}", item) for name, item in value.items())
        elif key == "$ref" and isinstance(value, str) and value.startswith("#/"):
            _, place, name = (*value.split("/"), "", "")[:3]
            if place in _ROOT and name in _mapping(root.get(place)):
                yield f".{place}.{name}", root[place][name]
