"""read_usage: token counts from any provider's `usage` object. Knows nothing of prices.

Ours: prompt tokens include cached ones, completion tokens include reasoning (schema/usage.py).
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import astuple

from ionrouter.schema.usage import (
    NO_COMPLETION_PARTS,
    NO_PROMPT_PARTS,
    CompletionParts,
    PromptParts,
    Usage,
)

_PROMPT = ("prompt_tokens", "input_tokens")
_COMPLETION = ("completion_tokens", "output_tokens")
_PROMPT_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_COMPLETION_DETAILS = ("completion_tokens_details", "output_tokens_details")
# OpenAI, Together and Moonshot; DeepSeek; Anthropic; Mistral.
_CACHED = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens", "num_cached_tokens")
_WRITTEN = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")

# What the details tell apart, in the order of the structs.
_PROMPT_PARTS = PromptParts.__struct_fields__
_COMPLETION_PARTS = CompletionParts.__struct_fields__

MAX_TOKENS = 500_000_000  # what is more is no count; sums of three must fit a database's 32 bits
_MAX_DIGITS = len(str(MAX_TOKENS))
_Count = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
Parts = TypeVar("Parts", PromptParts, CompletionParts)


class _PromptDetails(Struct):
    """None stands for fields that may be absent or null; whatever else they hold is no common shape."""

    cached_tokens: _Count | None = None
    cache_write_tokens: _Count | None = None
    image_tokens: _Count | None = None
    audio_tokens: _Count | None = None
    video_tokens: _Count | None = None
    file_tokens: _Count | None = None
    prompt_cache_hit_tokens: None = None
    cache_read_input_tokens: None = None
    num_cached_tokens: None = None
    cache_creation_tokens: None = None
    cache_creation_input_tokens: None = None
    cache_creation_token_details: None = None


class _CompletionDetails(Struct):
    reasoning_tokens: _Count | None = None
    audio_tokens: _Count | None = None
    image_tokens: _Count | None = None
    accepted_prediction_tokens: _Count | None = None
    rejected_prediction_tokens: _Count | None = None


class _CommonUsage(Struct):
    """OpenAI's shape, which nearly everybody sends; other fields than these change nothing."""

    prompt_tokens: _Count
    completion_tokens: _Count
    total_tokens: _Count | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    input_tokens_details: None = None
    output_tokens_details: None = None
    cached_tokens: None = None
    prompt_cache_hit_tokens: None = None
    cache_read_input_tokens: None = None
    num_cached_tokens: None = None
    cache_write_tokens: None = None
    cache_creation_tokens: None = None
    cache_creation_input_tokens: None = None
    cache_creation: None = None
    reasoning_tokens: None = None


def read_usage(usage: Any) -> Usage | None:
    """Return the counts, None when `usage` is absent, empty or holds no count at all."""
    if not isinstance(usage, dict):
        return None
    try:
        return _common(convert(usage, _CommonUsage))
    except (ValidationError, UnicodeEncodeError):  # half a surrogate pair
        return read_any_usage(usage)


def usage_of(payload: dict[str, Any]) -> Usage | None:
    """Return the counts of a whole answer or an event, wherever it has them.

    Groq's streams have them under `x_groq`, Moonshot's in the choice that ends.
    """
    if (usage := payload.get("usage")) and (read := read_usage(usage)) is not None:
        return read
    if isinstance(own := payload.get("x_groq"), dict) and (read := read_usage(own.get("usage"))) is not None:
        return read
    read, choices = None, payload.get("choices")
    for choice in choices if isinstance(choices, list) else (choices,):
        if isinstance(choice, dict) and (usage := choice.get("usage")):
            read = merge_usage(read, read_usage(usage))
    return read


def _common(usage: _CommonUsage) -> Usage:
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    cached = written = reasoning = 0
    prompt_parts, completion_parts = NO_PROMPT_PARTS, NO_COMPLETION_PARTS
    if (asked := usage.prompt_tokens_details) is not None:
        cached, written = asked.cached_tokens or 0, asked.cache_write_tokens or 0
        prompt_parts = _prompt_parts(
            asked.image_tokens, asked.audio_tokens, asked.video_tokens, asked.file_tokens
        )
    if (answered := usage.completion_tokens_details) is not None:
        reasoning = answered.reasoning_tokens or 0
        completion = _with_reasoning(prompt, completion, reasoning, usage.total_tokens)
        completion_parts = _completion_parts(
            answered.audio_tokens,
            answered.image_tokens,
            answered.accepted_prediction_tokens,
            answered.rejected_prediction_tokens,
        )
    return Usage(
        max(prompt, cached),
        completion,
        cached,
        written,
        min(reasoning, completion),
        prompt_parts,
        completion_parts,
    )


def read_any_usage(usage: dict[str, Any]) -> Usage | None:
    """The same for every shape that is known."""
    prompt, completion = _first(usage, _PROMPT), _first(usage, _COMPLETION)
    total = _count(usage.get("total_tokens"))
    if prompt is None and completion is None and total is None:
        return None
    prompt_details, completion_details = _nested(usage, _PROMPT_DETAILS), _nested(usage, _COMPLETION_DETAILS)
    cached = _first(prompt_details, _CACHED) or _first(usage, _CACHED) or 0
    written = _first(prompt_details, _WRITTEN) or _first(usage, _WRITTEN) or 0
    reasoning = (
        _count(completion_details.get("reasoning_tokens")) or _count(usage.get("reasoning_tokens")) or 0
    )
    if _counts_cache_apart(usage):
        prompt = (prompt or 0) + cached + written
    prompt, completion = _complete(prompt, completion, total)
    completion = _with_reasoning(prompt, completion, reasoning, total)
    return Usage(
        prompt_tokens=max(prompt, cached),  # a larger cached count: never a negative uncached part
        completion_tokens=completion,
        cached_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=min(reasoning, completion),
        prompt_parts=_prompt_parts(*(_count(prompt_details.get(name)) for name in _PROMPT_PARTS)),
        completion_parts=_completion_parts(
            *(_count(completion_details.get(name)) for name in _COMPLETION_PARTS)
        ),
        cache_write_1h_tokens=min(_written_1h(usage, prompt_details), written),
    )


def _written_1h(usage: dict[str, Any], prompt_details: dict[str, Any]) -> int:
    """Anthropic tells what is kept for an hour beside its sum; litellm among the prompt's details."""
    for told in (usage.get("cache_creation"), prompt_details.get("cache_creation_token_details")):
        if isinstance(told, dict) and (count := _count(told.get("ephemeral_1h_input_tokens"))):
            return count
    return 0


def merge_usage(old: Usage | None, new: Usage | None) -> Usage | None:
    """Join two reports of one answer: counts only grow, so the larger of each is the later."""
    if old is None or new is None:
        return new if old is None else old
    return Usage(
        prompt_tokens=max(old.prompt_tokens, new.prompt_tokens),
        completion_tokens=max(old.completion_tokens, new.completion_tokens),
        cached_tokens=max(old.cached_tokens, new.cached_tokens),
        cache_write_tokens=max(old.cache_write_tokens, new.cache_write_tokens),
        reasoning_tokens=max(old.reasoning_tokens, new.reasoning_tokens),
        prompt_parts=_later(old.prompt_parts, new.prompt_parts),
        completion_parts=_later(old.completion_parts, new.completion_parts),
        cache_write_1h_tokens=max(old.cache_write_1h_tokens, new.cache_write_1h_tokens),
    )


def _later(old: Parts, new: Parts) -> Parts:
    if old is new:  # nearly always: neither tells any
        return new
    pairs: Any = zip(astuple(old), astuple(new), strict=True)
    return type(new)(*(first if second is None else max(first or 0, second) for first, second in pairs))


def _prompt_parts(image: int | None, audio: int | None, video: int | None, file: int | None) -> PromptParts:
    if not (image or audio or video or file):
        return NO_PROMPT_PARTS
    return PromptParts(image or 0, audio or 0, video or 0, file or 0)


def _completion_parts(
    audio: int | None, image: int | None, accepted: int | None, rejected: int | None
) -> CompletionParts:
    if not (audio or image) and accepted is rejected is None:
        return NO_COMPLETION_PARTS
    return CompletionParts(audio or 0, image or 0, accepted, rejected)


def _counts_cache_apart(usage: dict[str, Any]) -> bool:
    """Anthropic's own shape: `input_tokens` leaves out what was read from or written to the cache."""
    return "prompt_tokens" not in usage and (
        "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage
    )


def _with_reasoning(prompt: int, completion: int, reasoning: int, total: int | None) -> int:
    """xAI and some others count reasoning beside the completion; the total tells."""
    return completion + reasoning if total == prompt + completion + reasoning else completion


def _complete(prompt: int | None, completion: int | None, total: int | None) -> tuple[int, int]:
    """Fill in a missing side from the total."""
    if prompt is None and completion is None:
        return total or 0, 0
    if completion is None:
        return prompt or 0, max((total or 0) - (prompt or 0), 0)
    if prompt is None:
        return max((total or 0) - completion, 0), completion
    return prompt, completion


def _nested(usage: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    for name in names:
        if isinstance(value := usage.get(name), dict):
            return value
    return {}


def _first(usage: dict[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        if name in usage and (count := _count(usage[name])) is not None:
            return count
    return None


def _count(value: Any) -> int | None:
    if value.__class__ is int:  # nearly always
        return max(value, 0) if value <= MAX_TOKENS else None
    if isinstance(value, str):
        digits = value.strip()
        return _count(int(digits)) if digits.isdecimal() and len(digits) <= _MAX_DIGITS else None
    if isinstance(value, float) and value <= MAX_TOKENS:  # NaN is not
        return max(int(value), 0) if value > 0 else 0
    return None
