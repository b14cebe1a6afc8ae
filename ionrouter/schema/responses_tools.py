"""The tools of a Responses request, the functions that chat has for them, and the way back of their names.

A custom tool, which takes free text, becomes a function with one text. A namespace becomes its tools, each
with the namespace in its name. What only OpenAI can run is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, StrictBool, StrictStr, model_validator

from ionrouter.schema import json
from ionrouter.schema.common import ToolName

SUPPORTED = ("function", "custom", "namespace")
INPUT = "input"  # the argument that holds a custom tool's text
MAX_MADE_NAME = 64  # of names that are made here; every upstream takes so many characters
_ODD = re.compile(r"[^A-Za-z0-9_-]")
_SYNTAXES = {"lark": "Lark grammar", "regex": "regular expression"}


class Format(BaseModel):
    """What a custom tool's text must look like."""

    model_config = ConfigDict(extra="allow")
    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: StrictStr | None = None

    @model_validator(mode="after")
    def _whole(self) -> Format:
        if self.type == "grammar" and (self.syntax is None or self.definition is None):
            raise ValueError("type 'grammar' needs 'syntax' and 'definition'")
        return self

    @property
    def words(self) -> str:
        """For a model whose server does not hold it to a grammar."""
        if self.type == "text":
            return ""
        return f"\n\nThe input must match this {_SYNTAXES[self.syntax or 'lark']}:\n{self.definition}"


class Tool(BaseModel):
    """A function, a custom tool, or a namespace of both."""

    model_config = ConfigDict(extra="allow")
    type: StrictStr
    name: ToolName | None = None
    description: StrictStr | None = None
    parameters: dict[str, Any] | None = None
    strict: StrictBool | None = None
    format: Format | None = None
    tools: list[Tool] | None = None

    @model_validator(mode="after")
    def _can_be_offered(self) -> Tool:
        if self.type not in SUPPORTED:
            raise ValueError(f"tool type '{self.type}' is not supported; known: {', '.join(SUPPORTED)}")
        if self.name is None:
            raise ValueError(f"a tool of type '{self.type}' needs 'name'")
        if self.type == "namespace":
            if not self.tools:
                raise ValueError("a tool of type 'namespace' needs 'tools'")
            if any(tool.type == "namespace" for tool in self.tools):
                raise ValueError("a tool of type 'namespace' cannot hold another one")
        return self

    def function(self, name: str, about: str = "") -> dict[str, Any]:
        """Write chat's tool of this name; `about` goes before its description."""
        text = f"{about}{self.description or ''}"
        if self.type == "custom":
            text += self.format.words if self.format else ""
            told = {"type": "string", "description": "The whole input, as it is."}
            schema = {"type": "object", "properties": {INPUT: told}, "required": [INPUT]}
            optional: dict[str, Any] = {
                "description": text,
                "parameters": {**schema, "additionalProperties": False},
            }
        else:
            optional = {"description": text or self.description, "parameters": self.parameters}
        optional["strict"] = self.strict if self.type == "function" else None
        given = {key: value for key, value in optional.items() if value is not None}
        return {"type": "function", "function": {"name": name, **given}}


@dataclass(frozen=True, slots=True)
class Called:
    """What a caller calls a tool."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of one request. `places`: where in it each of chat's tools is."""

    functions: list[dict[str, Any]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    _called: dict[str, Called] = field(default_factory=dict)  # by chat's names, of those that have two
    _names: dict[tuple[str | None, str], str] = field(default_factory=dict)

    def called(self, name: str) -> Called:
        """Say what the caller calls the tool that chat calls so."""
        return self._called.get(name) or Called(name)

    def name_of(self, name: str, namespace: str | None) -> str:
        """Say what chat calls a caller's tool, an earlier turn's too that is offered no more."""
        return self._names.get((namespace, name)) or _made(name, namespace)


def toolbox(tools: Sequence[Tool]) -> Toolbox:
    """Lay out the tools of a request."""
    box = Toolbox()
    taken = {tool.name for tool in tools if tool.type != "namespace"}
    for place, tool, space in _each(tools):
        own, namespace = tool.name or "", space.name if space else None
        name = own if space is None else _free(_made(own, namespace), taken)
        taken.add(name)
        is_first = space is not None and space.tools is not None and tool is space.tools[0]
        about = f"[{namespace}: {space.description}]\n" if space and is_first and space.description else ""
        box.functions.append(tool.function(name, about))
        box.places.append(place)
        box._names[namespace, own] = name
        if namespace is not None or tool.type == "custom":
            box._called[name] = Called(own, namespace, tool.type == "custom")
    return box


def _each(tools: Sequence[Tool]) -> Iterator[tuple[str, Tool, Tool | None]]:
    for number, tool in enumerate(tools):
        if tool.type != "namespace":
            yield f"tools[{number}]", tool, None
        for inner, one in enumerate(tool.tools or ()):
            if tool.type == "namespace":
                yield f"tools[{number}].tools[{inner}]", one, tool


def _made(name: str, namespace: str | None) -> str:
    if namespace is None:
        return name
    whole = _ODD.sub("_", f"{namespace.rstrip('_')}__{name}")
    if len(whole) <= MAX_MADE_NAME:
        return whole
    digest = hashlib.blake2b(f"{namespace}\n{name}".encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{whole[: MAX_MADE_NAME - 9]}_{digest}"


def _free(name: str, taken: Iterable[str | None]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name[: MAX_MADE_NAME - 4]}_{number}"
    return free


def as_arguments(text: str) -> str:
    """A custom tool's text as its function's arguments."""
    return json.dumps({INPUT: text}).decode()


def as_input(arguments: str) -> str:
    """The text in a function's arguments; what is no such object (cut by length, say) is shown as it came."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if isinstance(value, Mapping) and isinstance(value.get(INPUT), str):
        return str(value[INPUT])
    return value if isinstance(value, str) else arguments
