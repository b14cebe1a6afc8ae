"""Leaves out of a JSON schema what says nothing, and writes what the compiler does not know as what it does.

Every value that one of the two schemas allows the other allows, too, but for numbers farther out than the
compiler counts, and a few beside a bound that no double holds. Compiles nothing and refuses nothing: what is
malformed, or not known here, stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

# Keyword -> how its value holds subschemas. What is not here holds none.
UNIONS = ("anyOf", "oneOf")
LISTS = (*UNIONS, "allOf", "prefixItems")
MAPS = ("properties", "patternProperties", "$defs", "definitions")
SINGLES = ("items", "additionalProperties")

# Formats that JSON Schema defines. Others ("password", "path") are words for people: they allow every text.
_FORMATS = {
    *("date-time", "time", "date", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4"),
    *("ipv6", "uri", "uri-reference", "iri", "iri-reference", "uuid", "uri-template", "json-pointer"),
    *("relative-json-pointer", "regex", "unknown"),
}
_OTHERS_SPEAK = (
    "allOf",
    *UNIONS,
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "if",
    "dependentSchemas",
    "contains",
)
# The compiler counts in 64 bits, as doubles. A number that is at least 10^18 it wants bounded above, too.
_TOO_WIDE, _WIDE, _FAR = (1 << 63) - 512, (1 << 63) - 1024, 10**18
_EXACT_IN_DOUBLES = 1 << 53
_BOUNDS = (("minimum", "exclusiveMinimum", -1), ("maximum", "exclusiveMaximum", 1))
_DEPENDENT = ("dependentRequired", "dependentSchemas", "dependencies")


def plain(schema: Any) -> Any:
    """Copy a schema without what says nothing; raises RecursionError for one that is nested too deep."""
    if isinstance(schema, list | tuple):
        return [plain(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    out = {key: _inner(key, value) for key, value in schema.items()}
    for mend in (_annotations, _conditions, _numbers, _rest_of_array, _arrays, _objects):
        mend(out)
    return out


def without_idle_bounds(schema: dict[str, Any]) -> None:
    """Take bounds of the number of properties away where the properties keep to them anyway."""
    required, named = schema.get("required", ()), schema.get("properties", {})
    if not isinstance(required, list | tuple) or not isinstance(named, Mapping):
        return
    least, most = schema.get("minProperties"), schema.get("maxProperties")
    if isinstance(least, int) and least <= len(set(map(str, required))):
        del schema["minProperties"]
    is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    if is_closed and isinstance(most, int) and most >= len(named):
        del schema["maxProperties"]


def _inner(key: str, value: Any) -> Any:
    if key in LISTS or key in SINGLES:
        return plain(value)
    if key in MAPS and isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return value


def _annotations(out: dict[str, Any]) -> None:
    if isinstance(out.get("format"), str) and out["format"] not in _FORMATS:
        del out["format"]
    for key in ("$dynamicAnchor", "$recursiveAnchor"):  # names for references that are refused
        out.pop(key, None)


def _conditions(out: dict[str, Any]) -> None:
    if out.get("not") is False:
        del out["not"]
    if "if" not in out or all(_allows_all(out.get(key, True)) for key in ("then", "else")):
        for key in ("if", "then", "else"):
            out.pop(key, None)


def _numbers(out: dict[str, Any]) -> None:
    """Draw in what generators write for int64 and double: what is left is still valid."""
    for key, exclusive, sign in _BOUNDS:
        for name in (key, exclusive):
            if not isinstance(bound := out.get(name), int | float):
                continue
            if sign * bound >= _TOO_WIDE:
                is_followed = sign > 0 and out.get("type") == "integer"
                out[name] = bound if is_followed else sign * _WIDE
            elif isinstance(bound, int) and _EXACT_IN_DOUBLES < abs(bound) <= _WIDE:
                del out[name]  # there are whole numbers alone so far out
                inner = _rounded(bound - sign if name == exclusive else bound, -sign)
                out[key] = min(out.get(key, inner), inner, key=lambda value: sign * value)
    for (key, exclusive, sign), (other, other_exclusive, _) in zip(_BOUNDS, _BOUNDS[::-1], strict=True):
        bounds = [-sign * out[name] for name in (key, exclusive) if isinstance(out.get(name), int | float)]
        is_open = other not in out and other_exclusive not in out
        if bounds and is_open and _FAR <= max(bounds) <= _WIDE:
            out[other] = -sign * _WIDE


def _rounded(value: int, way: int) -> int:
    """Return the nearest whole number that a double holds, never on the other side than `way` (1: up)."""
    near = float(value)
    if (int(near) - value) * way < 0:
        near = math.nextafter(near, way * math.inf)
    return int(near)


def _arrays(out: dict[str, Any]) -> None:
    unique, most = out.get("uniqueItems"), out.get("maxItems")
    if unique is False or (unique is True and isinstance(most, int) and most <= 1):
        del out["uniqueItems"]
    least = out.get("minContains")
    if "contains" in out and least == 0 and "maxContains" not in out:
        del out["contains"]
    if "contains" not in out:
        out.pop("minContains", None)
        out.pop("maxContains", None)


def _rest_of_array(out: dict[str, Any]) -> None:
    """Before `contains` goes: what it finds counts as evaluated."""
    if "unevaluatedItems" not in out or isinstance(out.get("items"), list | tuple):
        return
    if "items" in out or _allows_all(out["unevaluatedItems"]):
        del out["unevaluatedItems"]
    elif not any(key in out for key in _OTHERS_SPEAK):
        out["items"] = plain(out.pop("unevaluatedItems"))


def _objects(out: dict[str, Any]) -> None:
    names = out.get("propertyNames")
    if _allows_all(names) or names == {"type": "string"}:
        del out["propertyNames"]
    for key in _DEPENDENT:
        if isinstance(out.get(key), Mapping) and all(v == [] or _allows_all(v) for v in out[key].values()):
            del out[key]
    if "unevaluatedProperties" in out:
        rest, is_alone = out["unevaluatedProperties"], not any(key in out for key in _OTHERS_SPEAK)
        if "additionalProperties" in out or is_alone or _allows_all(rest):
            del out["unevaluatedProperties"]
            out.setdefault("additionalProperties", plain(rest))
    without_idle_bounds(out)


def _allows_all(schema: Any) -> bool:
    return schema is True or (isinstance(schema, Mapping) and not schema)
