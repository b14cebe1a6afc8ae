"""A context that is too short, in words that clients look for. Knows no envelope.

Agents on Anthropic's API find its two sentences: at the first they shorten the conversation, at the second
they ask again for a shorter answer. Other words end their work.
"""

from __future__ import annotations

import re

PROMPT_TOO_LONG = "prompt is too long"
ANSWER_TOO_LONG = "input length and `max_tokens` exceed context limit"
# Our own words, those of OpenAI and its likes, and vLLM's, with the three counts.
_PROMPT, _ANSWER, _ROOM = (rf"(?P<{name}>\d+)" for name in ("prompt", "answer", "room"))
_COUNTED = (
    re.compile(
        rf"about {_PROMPT} prompt tokens( \+ {_ANSWER} max_tokens)? are over the context length {_ROOM}"
    ),
    re.compile(
        rf"maximum context length is {_ROOM} tokens.{{0,80}}"
        rf"\({_PROMPT} in the messages, {_ANSWER} in the completion\)"
    ),
    re.compile(
        rf"max_completion_tokens' is too large: {_ANSWER}.{{0,40}}"
        rf"maximum context length is {_ROOM} tokens.{{0,40}} {_PROMPT} input tokens"
    ),
)


def too_many(prompt: int, max_tokens: int | None, room: int) -> str:
    """Say how many tokens were asked for, and how many there is room for."""
    asked = f"about {prompt} prompt tokens" + (f" + {max_tokens} max_tokens" if max_tokens else "")
    return f"{asked} are over the context length {room}"


def in_anthropics_words(message: str) -> str:
    """Say it as Anthropic does, and then as it was said; what is in its words already stays."""
    if PROMPT_TOO_LONG in message.lower() or ANSWER_TOO_LONG in message:
        return message
    found = next(filter(None, (pattern.search(message) for pattern in _COUNTED)), None)
    if found is None:  # a limit of the answer alone is nothing that a shorter prompt helps against
        return message if "max_" in message else f"{PROMPT_TOO_LONG}: {message}"
    prompt, answer, room = (int(found[name] or 0) for name in ("prompt", "answer", "room"))
    if prompt >= room:
        return f"{PROMPT_TOO_LONG}: {prompt} tokens > {room} maximum ({message})"
    advice = "decrease input length or `max_tokens` and try again"
    return f"{ANSWER_TOO_LONG}: {prompt} + {answer} > {room}, {advice} ({message})"
