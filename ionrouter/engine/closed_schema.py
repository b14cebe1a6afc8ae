"""Closes a JSON schema's objects to properties that nobody named, where that shuts nothing out.

Knows which keywords speak of the same value; compiles nothing and refuses nothing: what is malformed stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from ionrouter.engine.plain_schema import LISTS, MAPS, SINGLES, UNIONS, without_idle_bounds

_SAME_VALUE = (*UNIONS, "allOf")  # their members speak of the value that the schema itself speaks of
_SPEAKS = ("additionalProperties", "unevaluatedProperties")  # of properties that it does not name
_MAX_PARTS = 100_000  # looked at in one schema; more, where parts have parts and so on, leave it open
_NAMES = ("properties", "required", "patternProperties", *_SPEAKS)


def closed(schema: Any) -> Any:
    """Copy a schema with every object closed that names properties and does not speak of additional ones.

    Where several schemas speak of one object (`allOf`, `$ref` beside other keywords, a union beside
    `properties`), they are left open, and it is closed to what all of them name together.
    """
    return _Closing(schema).copy(schema, is_alone=True)


class _Closing:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._shared: set[int] = set()  # identities of schemas that another one's `$ref` makes a part of it
        self._is_unclear = False  # some such part was not found: whatever it is must stay open
        self._left = _MAX_PARTS
        self._find_shared(root)

    def copy(self, schema: Any, *, is_alone: bool) -> Any:
        """Copy; `is_alone` says that no other schema speaks of the same value."""
        if isinstance(schema, list | tuple):
            return [self.copy(item, is_alone=is_alone) for item in schema]
        if not isinstance(schema, Mapping):
            return schema
        is_alone = is_alone and not self._is_unclear and id(schema) not in self._shared
        are_alone = is_alone and not _has_several(schema)
        out = {key: self._value(key, value, are_alone=are_alone) for key, value in schema.items()}
        if is_alone and (names := self._names_to_close(schema)) is not None:
            out["properties"] = dict.fromkeys(names, True) | out.get("properties", {})
            out["additionalProperties"] = False
            without_idle_bounds(out)
        return out

    def _value(self, key: str, value: Any, *, are_alone: bool) -> Any:
        if key in _SAME_VALUE:
            return self.copy(value, is_alone=are_alone)
        if key in LISTS or key in SINGLES:
            return self.copy(value, is_alone=True)
        if key in MAPS and isinstance(value, Mapping):
            return {name: self.copy(item, is_alone=True) for name, item in value.items()}
        return value

    def _names_to_close(self, schema: Mapping[str, Any]) -> list[str] | None:
        """All names of properties, where the object can be closed to them."""
        if not _has_several(schema) and "properties" not in schema:
            return None  # nothing to close, or its one part closes itself
        parts = list(self._parts(schema))
        given = [part["properties"] for part in parts if "properties" in part]
        if self._is_unclear or not given or not all(isinstance(each, Mapping) for each in given):
            return None
        if any(key in part for part in parts for key in _SPEAKS):
            return None
        named = {name: None for each in given for name in each}
        wanted = (name for part in parts for name in _items(part.get("required")))
        required = {name: None for name in wanted if isinstance(name, str)}
        has_patterns = any("patternProperties" in part for part in parts)
        if has_patterns and (len(parts) > 1 or required.keys() - named.keys()):
            return None  # a name that it requires may be one of those
        return [*(named | required)]

    def _parts(self, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """The schema and all that speak of the same value; each once, in order."""
        waiting: list[Any] = [schema]
        seen: set[int] = set()
        while waiting:
            part = waiting.pop()
            if not isinstance(part, Mapping) or id(part) in seen:
                continue
            seen.add(id(part))
            self._left -= 1
            if self._left < 0:
                self._is_unclear = True
                return
            yield part
            inner = [member for key in part if key in _SAME_VALUE for member in _items(part[key])]
            inner += [self._target(part["$ref"])] if "$ref" in part else []
            waiting += reversed(inner)

    def _find_shared(self, root: Any) -> None:
        waiting = [root]
        while waiting:
            schema = waiting.pop()
            if isinstance(schema, list | tuple):
                waiting += schema
            if not isinstance(schema, Mapping):
                continue
            if _has_several(schema):
                self._share(schema)
            waiting += [schema[key] for key in (*LISTS, *SINGLES) if key in schema]
            waiting += [item for key in MAPS for item in _mapping(schema.get(key)).values()]

    def _share(self, schema: Mapping[str, Any]) -> None:
        for part in self._parts(schema):
            if "$ref" in part:
                target = self._target(part["$ref"])
                self._shared.add(id(target))
                self._is_unclear = self._is_unclear or target is None

    def _target(self, ref: Any) -> Any:
        """What a pointer into this schema leads to; None where it is none, or leads nowhere."""
        if not isinstance(ref, str) or not ref.startswith("#") or ref[1:2] not in ("", "/"):
            return None
        found = self._root
        for step in ref.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list | tuple) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                found = _mapping(found).get(name)
        return found


def _has_several(schema: Mapping[str, Any]) -> bool:
    """Whether more than one schema speaks of an object's properties here."""
    own = any(key in schema for key in _NAMES)
    unions = sum(key in schema for key in (*UNIONS, "$ref"))
    return own + unions + len(_items(schema.get("allOf"))) > 1


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
