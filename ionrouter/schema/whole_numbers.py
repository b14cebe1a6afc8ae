"""Whole numbers as JSON Schema has them: 100, 100.0 and 1e2 are one value. Many clients know doubles only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, StrictInt

MOST = 2.0**53  # beyond it a double says no more which number was meant
# Fields of a request's body that hold one, and stay in the body as they came.
_FIELDS = frozenset(
    {
        "max_tokens", "max_completion_tokens", "top_k", "seed", "n", "prompt_logprobs", "top_logprobs",
        "logprobs", "best_of", "dimensions", "top_n",
    }
)  # fmt: skip


def whole(value: Any) -> Any:
    """Turn a double without a fraction into an int; anything else stays what it is."""
    if value.__class__ is float and value.is_integer() and -MOST <= value <= MOST:
        return int(value)
    return value


WHOLE = BeforeValidator(whole)  # last among an annotation's parts: then the bounds are told by the schema
Integer = Annotated[StrictInt, WHOLE]


def with_whole(name: str, value: Any) -> Any:
    """Give a body's field as who reads the body expects it."""
    if value.__class__ is float and name in _FIELDS:
        return whole(value)
    if name == "reasoning" and isinstance(value, Mapping) and value.get("max_tokens").__class__ is float:
        return {**value, "max_tokens": whole(value["max_tokens"])}
    return value
