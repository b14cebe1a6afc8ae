"""What a body demands of the answer's form, as the local engine's grammar. Knows fields and their places.

OpenAI's `response_format`, vLLM's `structured_outputs` object and its older `guided_*` names; one at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ionrouter.engine import grammar as grammars
from ionrouter.engine.grammar import Grammar, GrammarRefused
from ionrouter.errors import FailureClass, UpstreamError

_OBJECT = {"type": "object"}


def grammar_of(body: Mapping[str, Any]) -> Grammar | None:
    """Compile what the body asks for; raises UpstreamError (400) with the path of what cannot be followed."""
    wanted = [*_of_format(body), *_of_object(body), *_of_guided(body)]
    if len(wanted) > 1:
        names = " and ".join(path for path, _, _ in wanted)
        raise _refused(f"{names}: only one of them can hold", wanted[1][0])
    for path, compiled, value in wanted:
        try:
            return compiled(value)
        except GrammarRefused as error:
            raise _refused(f"{path}{error.path}: {error.message}", path + error.path) from error
    return None


def schema_of(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Find the JSON Schema that a body asks for; None for none, and for forms that are no schemas."""
    for _, compiled, value in (*_of_format(body), *_of_object(body), *_of_guided(body)):
        if compiled is _from_flag:
            return _OBJECT
        if compiled in (_from_schema, grammars.from_json_schema):
            found = json.loads(value) if isinstance(value, str) else value
            return found if isinstance(found, Mapping) else None
    return None


def unfollowed(body: Mapping[str, Any], message: str) -> UpstreamError:
    """Make the error of a form that compiles and cannot be kept to, by the field that asks for it."""
    path = next((path for path, _, _ in (*_of_format(body), *_of_object(body), *_of_guided(body))), "tools")
    return _refused(f"{path}: {message}", path)


_Wanted = tuple[str, Callable[[Any], Grammar], Any]  # path, how it compiles, what


def _of_format(body: Mapping[str, Any]) -> list[_Wanted]:
    given = body.get("response_format")
    if given is None:
        return []
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind == "text":
        return []
    if kind == "json_object":
        return [("response_format", grammars.from_json_schema, _OBJECT)]
    if kind == "json_schema":
        named = given.get("json_schema")
        schema = named.get("schema") if isinstance(named, Mapping) else None
        where = "response_format.json_schema.schema"
        return [(where, _from_schema, _OBJECT if schema is None else schema)]
    if kind == "grammar":
        return [("response_format.grammar", _from_text(grammars.from_ebnf), given.get("grammar"))]
    raise _refused(
        f"response_format.type: the local engine does not support {kind!r}", "response_format.type"
    )


def _of_object(body: Mapping[str, Any]) -> list[_Wanted]:
    """`structured_outputs`: an object with one of json, regex, choice, grammar; true asks for nothing."""
    given = body.get("structured_outputs")
    if given is None or isinstance(given, bool):
        return []
    if not isinstance(given, Mapping):
        raise _refused("structured_outputs: expected true, false or an object", "structured_outputs")
    unknown = [key for key in given if key not in _FORMS]
    if unknown:
        path = f"structured_outputs.{unknown[0]}"
        raise _refused(f"{path}: the local engine does not support it; known are {', '.join(_FORMS)}", path)
    return [
        (f"structured_outputs.{key}", _FORMS[key], value) for key, value in given.items() if value is not None
    ]


def _of_guided(body: Mapping[str, Any]) -> list[_Wanted]:
    names = [(f"guided_{key}", compiled) for key, compiled in _FORMS.items() if key != "json_object"]
    return [(name, compiled, body[name]) for name, compiled in names if body.get(name) is not None]


def _from_schema(value: Any) -> Grammar:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise GrammarRefused(f"not JSON: {error}") from error
        except RecursionError as error:
            raise GrammarRefused("nested too deeply") from error
    return grammars.from_json_schema(value)


def _from_text(compiled: Callable[[str], Grammar]) -> Callable[[Any], Grammar]:
    def check(value: Any) -> Grammar:
        if not isinstance(value, str) or not value:
            raise GrammarRefused("expected a text that is not empty")
        return compiled(value)

    return check


def _from_choice(value: Any) -> Grammar:
    if not isinstance(value, list | tuple):
        raise GrammarRefused("expected a list of texts")
    return grammars.from_choice(value)


def _from_flag(value: Any) -> Grammar:
    if value is not True:
        raise GrammarRefused("expected true")
    return grammars.from_json_schema(_OBJECT)


_FORMS: Mapping[str, Callable[[Any], Grammar]] = {
    "json": _from_schema,
    "json_object": _from_flag,
    "regex": _from_text(grammars.from_regex),
    "choice": _from_choice,
    "grammar": _from_text(grammars.from_ebnf),
}


# Every field that `grammar_of` reads.
FORM_FIELDS = ("response_format", "structured_outputs", *(f"guided_{key}" for key in _FORMS))


def _refused(message: str, param: str) -> UpstreamError:
    """Another endpoint may follow what we cannot."""
    return UpstreamError(
        FailureClass.ENDPOINT_REQUEST, message, status=400, error_type="invalid_request", param=param
    )
