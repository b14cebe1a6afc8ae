"""Claude's thoughts as each of its models takes the wish for them. Runs in the worker, which knows models.

Older ones are given a budget, newer ones an effort; some think unasked, and show nothing unless asked to; the
first cannot think. litellm knows which is which, but refuses, or sends what Claude refuses.
"""

from __future__ import annotations

from typing import Any

from ionrouter.schema.efforts import DEFAULT_EFFORT, budget_of

ANTHROPIC = "anthropic"
_WISHES = ("thinking", "reasoning_effort", "output_config")


def with_thinking(litellm: Any, call: dict[str, Any]) -> dict[str, Any]:
    """The call's arguments, with its wish in words that its model knows."""
    provider, _, model = call["model"].partition("/")
    arguments: dict[str, Any] = call["arguments"]
    if provider != ANTHROPIC or arguments.keys().isdisjoint(_WISHES):
        return arguments
    thinking, effort = arguments.get("thinking"), _effort(arguments)
    if effort == "none":
        return _without_thoughts(litellm, arguments, model)
    thinking = thinking if isinstance(thinking, dict) else {}
    if not litellm.AnthropicConfig._is_adaptive_thinking_model(model, provider):
        return _with_budget(arguments, effort, thinking)
    if thinking.get("type") == "enabled":  # litellm makes an effort of it
        return {**arguments, "thinking": {"display": "summarized", **thinking}}
    return arguments


def _without_thoughts(litellm: Any, arguments: dict[str, Any], model: str) -> dict[str, Any]:
    """Who cannot think need not be told not to."""
    known = litellm.get_supported_openai_params(model=model, custom_llm_provider=ANTHROPIC) or ()
    return arguments if "reasoning_effort" in known else _rest(arguments)


def _with_budget(arguments: dict[str, Any], effort: Any, thinking: dict[str, Any]) -> dict[str, Any]:
    """An effort as a share of the answer's length, which Claude wants to be longer than its thoughts."""
    effort = effort or (DEFAULT_EFFORT if thinking.get("type") == "adaptive" else None)
    if not isinstance(effort, str):
        return arguments
    most = arguments.get("max_completion_tokens") or arguments.get("max_tokens")
    budget = budget_of(effort, most) if isinstance(most, int) else None
    if budget is None:
        return {**_rest(arguments), "reasoning_effort": effort}
    shown = {"display": thinking["display"]} if "display" in thinking else {}
    asked = {"type": "enabled", "budget_tokens": budget, **shown}
    return {**_rest(arguments), **({"thinking": asked} if budget else {})}


def _rest(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in _WISHES}


def _effort(arguments: dict[str, Any]) -> Any:
    config = arguments.get("output_config")
    return arguments.get("reasoning_effort") or (config.get("effort") if isinstance(config, dict) else None)
