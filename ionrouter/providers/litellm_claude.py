"""What Claude has fields for that litellm's translation leaves out. Runs in the worker."""

from __future__ import annotations

from typing import Any


def mend_claudes(factory: Any, config: Any) -> None:
    """Have litellm's modules keep `is_error` and `strict` of what they get: tool messages, and tools."""
    result_of, mapped_tool = factory.convert_to_anthropic_tool_result, config._map_tool_helper

    def with_failure(message: Any, *arguments: Any, **options: Any) -> Any:
        block = result_of(message, *arguments, **options)
        return {**block, "is_error": True} if message.get("is_error") is True else block

    def with_strict(self: Any, tool: Any) -> Any:
        mapped, server = mapped_tool(self, tool)
        if mapped is not None and tool.get("strict") is True:
            mapped["strict"] = True
        return mapped, server

    factory.convert_to_anthropic_tool_result = with_failure
    config._map_tool_helper = with_strict
