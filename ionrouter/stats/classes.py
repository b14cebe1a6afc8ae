"""Classes of requests by the length of their prompts: what a first token waits for above all. Pure."""

from __future__ import annotations

from typing import Literal, get_args

RequestClass = Literal["short", "medium", "long"]
CLASSES: tuple[RequestClass, ...] = get_args(RequestClass)
MEDIUM_TOKENS, LONG_TOKENS = 1024, 8192  # prompt tokens from which a request is of the class


def class_of(prompt_tokens: int) -> RequestClass:
    """Tell a request's class from its prompt's tokens, cached ones included."""
    if prompt_tokens < MEDIUM_TOKENS:
        return "short"
    return "medium" if prompt_tokens < LONG_TOKENS else "long"
