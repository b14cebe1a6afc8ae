"""A choice among some of a request's tools: what an upstream is asked, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.errors import RequestError
from ionrouter.schema.allowed_tools import with_allowed_tools


def tool(name: str, kind: str = "function", **more: Any) -> dict[str, Any]:
    return {"type": kind, kind: {"name": name, **more}}


F, G, H = tool("f", description="does f"), tool("g"), tool("f", "custom")


def choice(mode: Any, *names: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(names)}}


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize(
    ("named", "left"),
    [
        ([tool("f")], [F]),
        ([tool("g"), tool("f")], [F, G]),
        ([{"type": "function", "name": "g"}], [G]),
        ([{"type": "custom", "name": "f"}], [H]),
        ([tool("f"), tool("f")], [F]),
    ],
)
def test_only_the_named_tools_are_offered(mode: str, named: list[Any], left: list[Any]) -> None:
    body = {"model": "m", "tools": [F, G, H], "tool_choice": choice(mode, *named)}
    expected = {"model": "m", "tools": left, "tool_choice": mode}
    assert with_allowed_tools(body) == expected
    assert with_allowed_tools(
        {**body, "tool_choice": {"type": "allowed_tools", "mode": mode, "tools": named}}
    ) == (expected)
    assert body["tools"] == [F, G, H]


@pytest.mark.parametrize("given", [None, "auto", "required", {"type": "function", "function": {"name": "f"}}])
def test_any_other_choice_stays(given: Any) -> None:
    body = {"tools": [F, G], "tool_choice": given}
    assert with_allowed_tools(body) is body
    assert with_allowed_tools([1]) == [1]


@pytest.mark.parametrize(
    "given",
    [
        choice("none", tool("f")),
        choice(None, tool("f")),
        choice([], tool("f")),
        choice("auto"),
        choice("auto", tool("h")),
        choice("auto", tool("f"), tool("h")),
        choice("auto", tool("g", "custom")),
        choice("auto", "f"),
        choice("auto", {"type": ["x"], "name": {"a": 1}}),
        {"type": "allowed_tools"},
        {"type": "allowed_tools", "allowed_tools": None},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": "f"}},
    ],
)
@pytest.mark.parametrize("tools", [[F, G], None, "f", ["f", 5]])
def test_what_names_no_tool_of_the_request_is_refused(given: Any, tools: Any) -> None:
    with pytest.raises(RequestError, match="tool_choice: ") as refused:
        with_allowed_tools({"tools": tools, "tool_choice": given})
    assert (refused.value.status, refused.value.param) == (400, "tool_choice")
