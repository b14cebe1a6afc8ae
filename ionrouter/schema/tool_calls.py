"""How many of an answer's tool calls a client cannot use. Knows no schemas of arguments, no wire."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ionrouter.schema import json


@dataclass(slots=True)
class CalledTool:
    """One call, in the pieces that came."""

    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def add(self, function: Mapping[str, Any]) -> None:
        """Take in one fragment."""
        self.name += function.get("name") or ""
        if piece := function.get("arguments"):
            self.arguments.append(piece)


def count_calls(calls: Iterable[CalledTool], tools: Any) -> tuple[int, int]:
    """Count calls, and those in error: of no tool among `tools` (the request's), or without usable arguments.

    Where the request has no list of functions every name is right. No arguments at all are an empty object.
    """
    names = {name for tool in tools if (name := function_name(tool))} if isinstance(tools, list) else set()
    num_calls = num_bad = 0
    for call in calls:
        num_calls += 1
        num_bad += bool(names and call.name not in names) or not _is_object("".join(call.arguments))
    return num_calls, num_bad


def function_name(tool: Any) -> str | None:
    """The name of a tool of a request, if it is a function."""
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _is_object(arguments: str) -> bool:
    if not arguments.strip():
        return True
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):  # nested beyond reason
        return False
