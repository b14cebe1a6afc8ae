"""No text has more tokens than its bound says; what holds texts, media and tools is all counted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ionrouter.balancing.prompt_bound import (
    IMAGE_TOKENS,
    MEDIA_TOKENS,
    MESSAGE_TOKENS,
    PROMPT_TOKENS,
    TOOLS_TOKENS,
    most_prompt_tokens,
    text_tokens,
)
from ionrouter.engine.tokenizer import from_gguf
from ionrouter.schema.request import Kind
from tests.support.routes import request
from tests.support.tiny_tokenizer import metadata

USER = len("user") + MESSAGE_TOKENS


def bound(body: dict[str, Any], kind: Kind = "chat") -> int:
    return most_prompt_tokens(request(body=body, kind=kind))


def said(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content, **more}]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hi", 2),
        ("", 0),
        ("é", 2),
        ("人工智能", 12),
        ("\U0002070e", 4),
        ("👩‍👩‍👧", 18),
        ("\ufdfa", 33),  # one character of 3 bytes that normal forms write out as 18 characters
        ("\ud83d", 3),  # half a surrogate pair
    ],
)
def test_a_text_has_at_most_as_many_tokens_as_bytes(text: str, expected: int) -> None:
    assert text_tokens(text) == expected


TOKENIZER = from_gguf(metadata())


@given(st.text())
def test_no_text_has_more_tokens_than_its_bound(text: str) -> None:
    assert len(TOKENIZER.encode(text)) <= text_tokens(text)


@pytest.mark.parametrize("text", ["\U0002070e\U00020d7f", "~`^", "\U00012000"])
def test_some_texts_have_a_token_a_byte(text: str) -> None:
    assert len(TOKENIZER.encode(text)) == text_tokens(text)


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        (said("hi"), "chat", PROMPT_TOKENS + USER + 2),
        (said([{"type": "text", "text": "hi"}]), "chat", PROMPT_TOKENS + USER + 2 + len("typetexttext")),
        (said([IMAGE]), "chat", PROMPT_TOKENS + USER + IMAGE_TOKENS),
        (said([{"type": "file", "file": {"file_data": "x"}}]), "chat", PROMPT_TOKENS + USER + MEDIA_TOKENS),
        (said(None, reasoning="ab"), "chat", PROMPT_TOKENS + USER + 2),
        ({"prompt": "hi"}, "completions", PROMPT_TOKENS + 2),
        ({"prompt": "hi", "suffix": "you"}, "completions", PROMPT_TOKENS + 5),
        ({"prompt": ["hi", "you"]}, "completions", 2 * PROMPT_TOKENS + 5),
        ({"prompt": [50_000, 7, 9]}, "completions", PROMPT_TOKENS + 3),
        ({"prompt": [[50_000, 7], [9]]}, "completions", 2 * PROMPT_TOKENS + 3),
        ({"input": ["hi", "you"]}, "embeddings", 2 * PROMPT_TOKENS + 5),
        ({"query": "who", "documents": ["a", {"text": "b"}]}, "chat", 2 * PROMPT_TOKENS + 8 + 4),
    ],
)
def test_every_part_of_a_prompt_counts(body: dict[str, Any], kind: Kind, expected: int) -> None:
    assert bound(body, kind) == expected


def test_tools_and_calls_count_as_json_with_what_templates_say_about_them() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "日", "parameters": {}}}
    plain = bound(said("hi"))
    assert bound(said("hi") | {"tools": [tool]}) > plain + TOOLS_TOKENS + len(str(tool))
    assert bound(said("hi", tool_calls=[CALL])) > plain + MESSAGE_TOKENS + len(str(CALL)) - 10
