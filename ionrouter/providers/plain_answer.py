"""A chat answer of the plainest shape, one choice that says a text, checked against its declaration at once.

Everything else that an upstream may say, and what is wrong with it, is normalise.py's business.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert

from ionrouter.providers.http_errors import ErrorReader
from ionrouter.providers.usage_body import read_usage, usage_of
from ionrouter.schema.events import Choice, Complete

_Empty = Annotated[list[Any], Meta(max_length=0)] | None


class _Message(Struct):
    """None stands for fields that may be absent or null; a field that is not here changes nothing."""

    content: str
    refusal: None = None
    reasoning: None = None
    reasoning_content: None = None
    thinking: None = None
    reasoning_details: None = None
    thinking_blocks: None = None
    audio: None = None
    function_call: None = None
    images: _Empty = None
    annotations: _Empty = None
    tool_calls: _Empty = None


class _Choice(Struct):
    message: _Message
    finish_reason: Literal["stop", "length"]  # theirs are ours
    index: Annotated[int, Meta(ge=0, lt=1_000_000)] = 0
    error: None = None
    logprobs: None = None
    prompt_logprobs: None = None
    stop_reason: int | None = None  # a token, which says nothing
    matched_stop: int | None = None


class _Answer(Struct):
    choices: tuple[_Choice]
    id: str | None = None
    model: str | None = None
    service_tier: str | None = None
    usage: Any = None
    object: Literal["chat.completion"] | None = None
    type: None = None
    error: None = None
    prompt_logprobs: None = None


def read_plain(payload: Any, errors: ErrorReader) -> Complete | None:
    """Read an answer's JSON; None: it has another shape."""
    try:
        answer = convert(payload, _Answer)
    except (ValidationError, UnicodeEncodeError):  # half a surrogate pair where a word is known
        return None
    choice = answer.choices[0]
    message, reason = {"role": "assistant", "content": choice.message.content}, choice.finish_reason
    return Complete(
        (Choice(choice.index, message, reason, reason),),
        read_usage(answer.usage) or usage_of(payload),
        errors.name(answer.id),
        errors.name(answer.service_tier),
        upstream_model=errors.name(answer.model),
    )
