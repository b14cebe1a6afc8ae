"""What is too long is told to Anthropic's clients in the words they look for."""

from __future__ import annotations

import re

import pytest

from ionrouter.schema.context_length import in_anthropics_words, too_many
from ionrouter.schema.errors import ErrorBody

LONG = {"error_type": "context_length_exceeded"}
# As agents read it, to ask again for a shorter answer.
ASKS_AGAIN = re.compile(r"input length and `max_tokens` exceed context limit: (\d+) \+ (\d+) > (\d+)")
OPENAI = (
    "This model's maximum context length is 65536 tokens. However, you requested 66434 tokens "
    "({} in the messages, 8192 in the completion). Please reduce the length of the messages or completion."
)
VLLM = (
    "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is "
    "32768 tokens and your request has 20000 input tokens (32000 > 32768 - 20000)."
)


def told(message: str) -> str:
    return str(ErrorBody(400, message, metadata=LONG).messages_envelope("gen-1")["error"]["message"])


@pytest.mark.parametrize(
    ("message", "counts"),
    [
        (f"This request does not fit m: {too_many(900, 32000, 32768)}", ("900", "32000", "32768")),
        (OPENAI.format(58242), ("58242", "8192", "65536")),
        (VLLM, ("20000", "32000", "32768")),
    ],
)
def test_an_answer_that_has_no_room_is_told_with_its_counts(message: str, counts: tuple[str, ...]) -> None:
    found = ASKS_AGAIN.search(told(message))
    assert found is not None
    assert found.groups() == counts
    assert message in told(message)


@pytest.mark.parametrize(
    "message",
    [
        too_many(9000, None, 8192),
        too_many(9000, 10, 8192),
        OPENAI.format(70000),
        "messages: the prompt has 9000 tokens, but the context length is 8192 tokens",
        "the request exceeds the available context size, try increasing it",
    ],
)
def test_a_prompt_that_has_no_room_is_told_as_too_long(message: str) -> None:
    assert told(message).startswith("prompt is too long: ")
    assert message in told(message)
    assert not ASKS_AGAIN.search(told(message))


@pytest.mark.parametrize(
    "message",
    [
        "prompt is too long: 210000 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 1 + 2 > 2, decrease input length",
        "This request does not fit m: max_tokens 9000 is over this endpoint's limit 4096",
    ],
)
def test_other_words_stay(message: str) -> None:
    assert in_anthropics_words(message) == message


def test_other_errors_and_surfaces_are_told_as_they_are() -> None:
    message = too_many(900, 32000, 32768)
    assert ErrorBody(400, message).messages_envelope(None)["error"]["message"] == message
    assert ErrorBody(400, message, metadata=LONG).envelope()["error"]["message"] == message
