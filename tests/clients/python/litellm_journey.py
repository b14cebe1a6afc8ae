"""The stock litellm package as a client of its OpenRouter provider, with only api_base changed."""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it looks for a price list on the network

import litellm
from steps import (
    BASE_URL,
    HI,
    KEY,
    PLACE_FORMAT,
    TIMEOUT_S,
    WEATHER,
    joined_calls,
    play,
    refusals,
    whole_call,
)

litellm.suppress_debug_info = True


def ask(model: str, *, key: str = KEY, **more: Any) -> Any:
    if "provider" in more:
        more["extra_body"] = {"provider": more.pop("provider")}
    return litellm.completion(
        model=f"openrouter/{model}",
        messages=HI,
        api_base=BASE_URL,
        api_key=key,
        num_retries=0,
        max_retries=0,
        timeout=TIMEOUT_S,
        **more,
    )


def whole() -> dict[str, Any]:
    answer = ask("acme/hello")
    choice = answer.choices[0]
    return {
        "text": choice.message.content,
        "finish": choice.finish_reason,
        "reasoning": choice.message.reasoning_content,
        "tokens": answer.usage.total_tokens,
        "cost": answer.usage.cost,
    }


def streamed() -> dict[str, Any]:
    chunks = list(ask("acme/hello", stream=True, stream_options={"include_usage": True}))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return {
        "text": "".join(choice.delta.content or "" for choice in choices),
        "finish": next(choice.finish_reason for choice in choices if choice.finish_reason),
        "reasoning": "".join(getattr(choice.delta, "reasoning_content", None) or "" for choice in choices),
        "tokens": chunks[-1].usage.total_tokens,
    }


def tool() -> dict[str, Any]:
    answer = ask("acme/tools", tools=[WEATHER])
    return {**whole_call(answer.choices[0].message.tool_calls), "finish": answer.choices[0].finish_reason}


def tool_streamed() -> dict[str, Any]:
    chunks = ask("acme/tools", tools=[WEATHER], stream=True)
    return joined_calls(call for c in chunks for ch in c.choices for call in ch.delta.tool_calls or ())


def structured() -> dict[str, Any]:
    answer = ask("acme/json", response_format=PLACE_FORMAT)
    return {"value": json.loads(answer.choices[0].message.content)}


def breaks() -> dict[str, Any]:
    return {"answered": len(list(ask("acme/breaks", stream=True)))}


play(
    [
        *((f.__name__, f) for f in (whole, streamed, tool, tool_streamed, structured, breaks)),
        *refusals(ask),
    ]
)
