"""Where in a caller's own request the things are that its chat request names: `messages[2]` is `input[3]`.

A conversation of items or blocks has other numbers once it is chat. Nothing is noted while it is translated:
when an error names a place, the request is translated once more with every text replaced by its own path, and
the chat request is looked into. So both ways are the same code, and only errors pay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ionrouter.errors import RequestError
from ionrouter.schema.validation import field_path

# Names in our words and, of messages, what of them is meant; the rest of such a path is chat's own.
_PLACE = re.compile(
    r"\bmessages\[(?P<message>\d+)\](?:\.(?P<list>\w+)(?:\[(?P<item>\d+)\])?)?(?:\.\w+|\[\d+\])*"
)
_DOTTED = re.compile(r"\.\[?(\d+)\b\]?")
_FUNCTION, _SCHEMA = re.compile(r"(tools\[\d+\])\.function\b"), ".parameters"  # of a chat's tool
_MARK = "\x00"
_MARKED = re.compile(f"{_MARK}([^{_MARK}]+){_MARK}")
_KINDS = frozenset({"type", "role", "media_type", "status", "mode"})  # keys whose texts decide what is done
_PARTS_OF_A_BLOCK = (".source", ".file", ".input_audio")  # objects inside of what a caller calls a block

Convert = Callable[[Any], list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class CallersPaths:
    """One request's. `roots`: its fields that become messages, `names`: chat's fields that have others."""

    body: Mapping[str, Any]
    convert: Convert
    roots: tuple[str, ...]
    names: Mapping[str, str]
    schema: str = "parameters"  # what a tool's schema is called
    tools: Callable[[], list[str]] = list  # the places of chat's tools, where they are others

    def in_text(self, text: str) -> str:
        """Put the caller's paths into a sentence: those of messages, and a field that it begins with."""
        text = _PLACE.sub(lambda found: self._place(found) or found[0], text)
        field, colon, rest = text.partition(": ")
        return f"{self._named(field)}: {rest}" if colon else text

    def of(self, path: str) -> str:
        """Translate one path, which upstreams write as `messages[0]`, `messages.0` or `messages.[0]`."""
        path = _DOTTED.sub(r"[\1]", path)
        found = _PLACE.fullmatch(path)
        return self._named(path) if found is None else self._place(found) or path

    def _named(self, path: str) -> str:
        for name, own in self.names.items():
            if path == name or (path.startswith(name) and path[len(name)] in ".["):
                return own + path[len(name) :]
        found = _FUNCTION.match(path)
        if found is None:
            return path
        rest, place, places = path[found.end() :], found[1], self.tools()
        if (number := int(place[6:-1])) < len(places):
            place = places[number]
        is_schema = rest.startswith(_SCHEMA)
        return place + (f".{self.schema}{rest.removeprefix(_SCHEMA)}" if is_schema else rest)

    def _place(self, found: re.Match[str]) -> str | None:
        try:
            messages = self.convert(self._marked())
        except RequestError:
            return None
        value: Any = messages[int(found["message"])] if int(found["message"]) < len(messages) else None
        inner = value.get(found["list"]) if isinstance(value, dict) and found["list"] else None
        if isinstance(inner, list) and found["item"] and int(found["item"]) < len(inner):
            inner = inner[int(found["item"])]
        places = list(_marks(value if inner is None else inner)) or list(_marks(value))
        return _together(places) if places else None

    def _marked(self) -> dict[str, Any]:
        roots = {name: _with_paths(self.body[name], (name,)) for name in self.roots if name in self.body}
        return {**self.body, **roots}


def _with_paths(value: Any, path: tuple[int | str, ...]) -> Any:
    """Replace every text by the path of what it is a text of."""
    if isinstance(value, str):
        if path[-1] in _KINDS:
            return value
        is_of_block = isinstance(path[-1], str) and path[-1] not in ("content", "output") and len(path) > 1
        where = field_path(path[:-1] if is_of_block else path)
        for part in _PARTS_OF_A_BLOCK:
            where = where.removesuffix(part)
        return f"{_MARK}{where}{_MARK}"
    if isinstance(value, Mapping):
        return {key: _with_paths(item, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_paths(item, (*path, number)) for number, item in enumerate(value)]
    return value


def _marks(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from _MARKED.findall(value)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _marks(item)
    elif isinstance(value, list):
        for item in value:
            yield from _marks(item)


_STEP = re.compile(r"\.?\w+|\[\d+\]")


def _together(places: list[str]) -> str:
    """What several places have in common, else the first of them."""
    steps = [_STEP.findall(place) for place in places]
    common: list[str] = []
    for step in zip(*steps, strict=False):
        if len(set(step)) > 1:
            break
        common.append(step[0])
    return "".join(common) if len(common) > 1 else places[0]
