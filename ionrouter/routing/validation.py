"""From plain data to the pydantic models, with pydantic's findings put into our words. Never shows a value.

What pydantic refuses is left out of the result, so that the checks that follow still see the rest.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ionrouter.errors import Problem
from ionrouter.routing.spec import CatalogSpec
from ionrouter.routing.yaml_source import Loc, Source

SHARED_PREFIX = "x-"  # top-level keys for anchors that other sections use


@dataclass(frozen=True, slots=True)
class Validated:
    """The valid part of a file, and what is wrong with the rest."""

    spec: CatalogSpec
    problems: tuple[Problem, ...]


def validate(source: Source) -> Validated:
    """Check types, ranges and field names of a whole file."""
    data = source.data
    if not isinstance(data, dict):
        message = "empty: no models and no patterns, nothing to serve"
        if data is not None:
            message = f"must be a mapping with sections ({', '.join(CatalogSpec.model_fields)})"
        return Validated(CatalogSpec(), (Problem("", message, 1),))
    data = {key: value for key, value in data.items() if not str(key).startswith(SHARED_PREFIX)}
    data = _without_empty_sections(data)
    problems: list[Problem] = []
    try:
        return Validated(CatalogSpec.model_validate(data), ())
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        problems = [_problem(detail, source) for detail in details]
    return Validated(_salvage(data, [_clean(detail["loc"]) for detail in details]), tuple(problems))


def problems_in(model: type[BaseModel], data: Any, at: Loc, source: Source, what: str) -> Iterator[Problem]:
    """Check what stands at `at` by a model of its own, whose fields are called `what`."""
    try:
        model.model_validate(data)
    except ValidationError as error:
        seen = set()
        for detail in error.errors(include_url=False, include_input=False):
            inner = _clean(detail["loc"])
            loc = _as_written((*at, *inner), source.data)
            is_unknown = detail["type"] == "extra_forbidden"
            message = _unknown_field(inner, model, what) if is_unknown else _message(detail, loc)
            if loc not in seen:  # of a union each member says what it misses
                seen.add(loc)
                yield source.problem(loc, message)


def _without_empty_sections(data: dict[Any, Any]) -> dict[Any, Any]:
    # `aliases:` with every line below commented out reads as null and means "none".
    return {
        key: value for key, value in data.items() if value is not None or key not in CatalogSpec.model_fields
    }


# Stands for an endpoint that cannot be read, so that those after it keep their places; no rule looks at it.
UNREADABLE = {"provider": "0-unreadable"}


def _salvage(data: dict[Any, Any], locs: list[Loc]) -> CatalogSpec:
    """Leave out the wrong fields; where that is not enough, their endpoint, entry or section."""
    cuts = set(locs)
    while True:
        trimmed = copy.deepcopy(data)
        for loc in sorted(cuts, key=len, reverse=True):
            _remove(trimmed, loc)
        try:
            return CatalogSpec.model_validate(trimmed)
        except ValidationError as error:
            wider = {_wider(_clean(detail["loc"]), cuts) for detail in error.errors(include_input=False)}
        if wider <= cuts:
            return CatalogSpec()
        cuts |= wider


def _wider(loc: Loc, cuts: Set[Loc]) -> Loc:
    """The smallest part around `loc` that was not cut out yet."""
    parts = (loc, loc[:4], loc[:2], loc[:1])
    return next((part for part in parts if part not in cuts), loc)


def _remove(data: Any, loc: Loc) -> None:
    """Remove a field; of a list the whole, but an endpoint is replaced."""
    *parents, last = loc
    for depth, part in enumerate(parents):
        try:
            data, parent = data[part], data
        except (KeyError, IndexError, TypeError):
            return
        if isinstance(data, list) and depth == len(parents) - 1:
            if part == "endpoints" and isinstance(last, int):
                data[last] = dict(UNREADABLE)
            else:
                parent.pop(part, None)
            return
    if isinstance(data, dict):
        data.pop(last, None)


def _clean(loc: Loc) -> Loc:
    """Drop pydantic's mark for "the key itself is wrong"."""
    return loc[:-1] if loc and loc[-1] == "[key]" else loc


def _problem(detail: ErrorDetails, source: Source) -> Problem:
    loc = _as_written(_clean(detail["loc"]), source.data)
    return source.problem(loc, _message(detail, loc))


def _as_written(loc: Loc, data: Any) -> Loc:
    """Turn keys that YAML read as numbers (`7: m`) back into text; numbers in lists stay."""
    parts: list[str | int] = []
    for part in loc:
        parts.append(str(part) if isinstance(data, dict) else part)
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            data = None
    return tuple(parts)


def _message(detail: ErrorDetails, loc: Loc) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_field(loc)
    if kind == "string_pattern_mismatch":
        return _PATTERN_WORDS.get(str(context.get("pattern")), "has characters that are not allowed here")
    if kind == "value_error":
        return str(context.get("error", detail["msg"]))
    if kind in _WORDS:
        return _WORDS[kind].format(**{name: _shown(value) for name, value in context.items()})
    return detail["msg"]


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


_PATTERN_WORDS = {
    r"^[^\s*]+$": "a model's name must have no spaces and no *",
    r"^[a-z0-9][a-z0-9._-]*$": "a provider's short name must be lower-case letters, digits, '.', '_' or '-'",
    "^[0-9a-f]{64}$": "a SHA-256 must be 64 hexadecimal digits in lower case",
}

_WORDS = {
    "missing": "missing",
    "string_type": "must be text; put it in quotes if it is",
    "string_unicode": "must be text; half a surrogate is none",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must not be empty",
}


def _unknown_field(loc: Loc, model: type[BaseModel] = CatalogSpec, what: str = "field") -> str:
    known = _fields_at(model, loc[:-1])
    near = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.5)
    if near:
        return f"unknown {what}; did you mean '{near[0]}'?"
    return f"unknown {what}; known here: {', '.join(known) or 'none'}"


def _fields_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """Field names of the model that stands at `loc`."""
    current: Any = model
    for part in loc:
        if isinstance(current, type) and issubclass(current, BaseModel):
            current = _plain(current.model_fields[str(part)].annotation)
        else:  # a dict or a list: its last argument is what it holds
            current = _plain(get_args(current)[-1])
    return list(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else []


def _plain(annotation: Any) -> Any:
    """Strip `Annotated` and `| None`."""
    while True:
        if hasattr(annotation, "__metadata__"):
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) is Union or type(annotation).__name__ == "UnionType":
            annotation = next(arg for arg in get_args(annotation) if arg is not type(None))
        else:
            return annotation
