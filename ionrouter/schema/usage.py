"""Tokens of one answer and what they cost. A prompt includes its cached tokens, a completion reasoning."""

from __future__ import annotations

from msgspec import Struct


class Usage(Struct, frozen=True):
    """Token counts in the upstream's own tokenizer."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Cost(Struct, frozen=True):
    """USD, from the prices in routes.yaml."""

    prompt: float = 0.0
    completion: float = 0.0

    @property
    def total(self) -> float:
        return self.prompt + self.completion
