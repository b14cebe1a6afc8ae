"""Tokens of one answer and what they cost. A prompt includes its cached tokens, a completion reasoning."""

from __future__ import annotations

from msgspec import Struct

CHARACTERS_PER_TOKEN = (
    4  # where nobody has counted: of prompts before they are sent, of answers without usage
)


class PromptParts(Struct, frozen=True):
    """How many of a prompt's tokens are no text, as far as the upstream tells them apart."""

    image_tokens: int = 0
    audio_tokens: int = 0
    video_tokens: int = 0
    file_tokens: int = 0


class CompletionParts(Struct, frozen=True):
    """The same of a completion. None: the upstream says nothing about the caller's `prediction`."""

    audio_tokens: int = 0
    image_tokens: int = 0
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


NO_PROMPT_PARTS, NO_COMPLETION_PARTS = PromptParts(), CompletionParts()


class Usage(Struct, frozen=True):
    """Token counts in the upstream's own tokenizer."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    prompt_parts: PromptParts = NO_PROMPT_PARTS
    completion_parts: CompletionParts = NO_COMPLETION_PARTS
    cache_write_1h_tokens: int = 0  # of those written, as far as the upstream tells: kept for an hour
    search_units: int | None = None  # of a ranking, where the upstream counts so: what it bills as requests

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
