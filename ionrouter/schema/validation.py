"""Turns pydantic's findings about a request into one RequestError that names the field. Knows no field."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ionrouter.errors import RequestError

Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], body: Any) -> Model:
    """Check a parsed JSON body; raises RequestError (400) that names the first fault: `messages[0].role`."""
    if not isinstance(body, dict):
        raise RequestError("the request body must be a JSON object")
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise request_error([dict(e) for e in error.errors(include_url=False)]) from None


def request_error(findings: Sequence[Mapping[str, Any]]) -> RequestError:
    """Make one error of pydantic's list: the first field at fault, as deep as the findings reach into it."""
    first = findings[0]
    if first["type"] == "extra_forbidden":
        return _unrecognized(first, findings)
    path, sentence = _deepest(first, findings)
    return RequestError(f"{path}: {sentence}" if path else sentence, param=path or _named_in(sentence))


def _named_in(sentence: str) -> str | None:
    """What looks at several fields at once has no path; by our convention it begins with the field's name."""
    name, colon, _ = sentence.partition(": ")
    return name if colon and name.replace(".", "").isidentifier() else None


def _deepest(first: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Of a union's members (each reports its own failure) the one that got furthest names the fault best."""
    base = _names(first["loc"])
    within = [(names, f) for f in findings if (names := _names(f["loc"]))[: len(base)] == base]
    # Too long a list is of the right kind: what its items are to other members is beside the point.
    within = [(names, f) for names, f in within if f["type"] == "too_long"] or within
    furthest = max(len(names) for names, _ in within)
    begun: dict[tuple[Any, ...], tuple[tuple[int | str, ...], Mapping[str, Any]]] = {}
    for names, f in within:
        if len(names) == furthest:
            begun.setdefault(_member(f["loc"]), (names, f))
    # Of lists that got equally deep the one that took more items: ["a", ""] is one of texts, and not of ids.
    chosen = max(
        (names for names, _ in begun.values()), key=lambda names: [p for p in names if isinstance(p, int)]
    )
    members = [f for names, f in begun.values() if names == chosen]
    sentences = dict.fromkeys(_sentence(f) for f in members)
    return field_path(chosen), " or ".join(sentences) + _shown(members[0])


def _unrecognized(first: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> RequestError:
    parent = first["loc"][:-1]
    keys = [str(f["loc"][-1]) for f in findings if f["type"] == "extra_forbidden" and f["loc"][:-1] == parent]
    named = ", ".join(f"'{key}'" for key in keys)
    prefix = f"{field_path(_names(parent))}: " if parent else ""
    return RequestError(
        f"{prefix}Unrecognized key(s) in object: {named}", param=field_path(_names(first["loc"]))
    )


MAX_PATH = 200  # characters
_MEMBERS = frozenset({"str", "int", "constrained-str", "constrained-int"})


def _names(loc: Sequence[int | str]) -> tuple[int | str, ...]:
    """Leave out what pydantic calls the members of a union: "str", "list[Part]", "literal[...]"."""
    return tuple(p for p in loc if isinstance(p, int) or not (p in _MEMBERS or p.endswith("]")))


def _member(loc: Sequence[int | str]) -> tuple[int | str, ...]:
    """What pydantic calls the members of a union on the way to a fault, and those alone."""
    return tuple(p for p in loc if not isinstance(p, int) and (p in _MEMBERS or p.endswith("]")))


def field_path(loc: Sequence[int | str]) -> str:
    """Write a location as people do: ("messages", 0, "role") -> "messages[0].role"."""
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path if len(path) <= MAX_PATH else path[:MAX_PATH] + "..."


# pydantic's words name Python's types; a client knows JSON's.
_WORDS = {
    "dict_type": "should be an object",
    "model_type": "should be an object",
    "list_type": "should be an array",
    "string_type": "should be a string",
    "int_type": "should be an integer",
    "int_from_float": "should be an integer",
    "float_type": "should be a number",
    "finite_number": "should be a finite number",
    "bool_type": "should be true or false",
    "missing": "is required",
}


# Lengths, with what pydantic says of the limit: a client sent no "item after validation".
_LENGTHS = {
    "too_short": ("at least", "min_length", "item"),
    "too_long": ("at most", "max_length", "item"),
    "string_too_short": ("at least", "min_length", "character"),
    "string_too_long": ("at most", "max_length", "character"),
}


def _sentence(finding: Mapping[str, Any]) -> str:
    if finding["type"] in _LENGTHS:
        bound, limit, what = _LENGTHS[finding["type"]]
        number = finding["ctx"][limit]
        return f"should have {bound} {number} {what}{'' if number == 1 else 's'}"
    sentence = _WORDS.get(finding["type"]) or str(finding["msg"]).removeprefix("Value error, ")
    return sentence.removeprefix("Input ").removeprefix("List ")


def _shown(finding: Mapping[str, Any]) -> str:
    """Echo a short value; a missing one's input is the object around it."""
    value = finding.get("input")
    short = isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 40)
    return f", got {json.dumps(value)}" if short and finding["type"] != "missing" else ""
