"""A `tool_choice` of type "allowed_tools": of a request's tools those alone that it names. Plain JSON, pure.

Few upstreams know that choice. To offer the named tools alone, with a plain choice, means the same to all.
"""

from __future__ import annotations

from typing import Any

from ionrouter.errors import RequestError

ALLOWED_TOOLS = "allowed_tools"
MODES = ("auto", "required")


def with_allowed_tools(body: Any) -> Any:
    """Narrow `tools` to those that the choice names; a body with any other choice stays as it is.

    Tools [F, G] and {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [G]}} become [G] and
    "auto". Mode and tools may stand in the choice itself, as Responses have them. Raises RequestError 400
    where it names no tool, or one that there is not.
    """
    choice = body.get("tool_choice") if isinstance(body, dict) else None
    if not isinstance(choice, dict) or choice.get("type") != ALLOWED_TOOLS:
        return body
    told = choice.get(ALLOWED_TOOLS, choice)
    mode, named = (told.get("mode"), told.get("tools")) if isinstance(told, dict) else (None, None)
    if mode not in MODES:
        raise _refused(f"the mode should be one of {', '.join(MODES)}")
    if not isinstance(named, list) or not named:
        raise _refused("'tools' should name at least one tool")
    tools = body.get("tools")
    offered = [(_identity(tool), tool) for tool in tools] if isinstance(tools, list) else []
    wanted = [_identity(tool) for tool in named]
    for identity, tool in zip(wanted, named, strict=True):
        if identity is None or all(identity != known for known, _ in offered):
            raise _refused(f"no tool is {str(tool)[:100]}")
    narrowed = [tool for identity, tool in offered if identity in wanted]
    return {**body, "tools": narrowed, "tool_choice": mode}


def _identity(tool: Any) -> tuple[Any, Any] | None:
    """Type and name: of {"type": T, T: {"name": N}}, and of {"type": T, "name": N}."""
    if not isinstance(tool, dict):
        return None
    kind = tool.get("type")
    inner = tool.get(kind) if isinstance(kind, str) else None
    return kind, (inner if isinstance(inner, dict) else tool).get("name")


def _refused(why: str) -> RequestError:
    return RequestError(f"tool_choice: {ALLOWED_TOOLS}: {why}", param="tool_choice")
