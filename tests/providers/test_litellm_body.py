"""What the worker is asked to call, from an attempt. No sockets are used."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.providers.litellm_body import build_call
from tests.support.hosted import hosted
from tests.support.upstream import Upstream

OURS = {"type": "reasoning.text", "text": "so", "format": "unknown", "index": 0}


@pytest.mark.parametrize("kept", [{"reasoning": "so"}, {"reasoning_details": [OURS]}])
@pytest.mark.parametrize(
    ("name", "options", "goes_back"),
    [
        ("deepseek", {}, True),
        ("moonshot", {}, True),
        ("zai", {}, True),
        ("groq", {}, False),  # refuses the field
        ("groq", {"reasoning_field": "reasoning_content"}, True),
        ("deepseek", {"reasoning_field": "reasoning"}, False),
    ],
)
def test_thoughts_go_back_to_providers_that_want_them(
    name: str, options: dict[str, Any], goes_back: bool, kept: dict[str, Any]
) -> None:
    answer = {"role": "assistant", "content": "x", **kept}
    question = {"role": "user", "content": "?", "reasoning": "no answer's"}
    with Upstream() as up:
        request = hosted(up, name, {"messages": [answer, question]}, endpoint={"options": options})
    sent, asked = build_call(request, None)["arguments"]["messages"]
    assert sent == answer | ({"reasoning_content": "so"} if goes_back else {})
    assert asked == question


SIGNED = {"type": "reasoning.text", "text": "so", "signature": "S", "format": "anthropic-claude-v1"}
CALLS = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in "ab"]


@pytest.mark.parametrize(
    ("order", "pieces"),
    [
        (["call", "thought", "text", "call"], [("a",), ("S", "x", "b")]),
        (["call", "text", "text", "thought"], [("a",), ("x",), ("S", "b")]),  # what is not named comes last
        (["odd", {}, 3, "text", "thought"], [("x",), ("S", "a", "b")]),
        ("no list", [("S", "x", "a", "b")]),
    ],
)
def test_a_mixed_turn_is_cut_for_claude_and_for_nobody_else(order: Any, pieces: Any) -> None:
    said = {"role": "assistant", "content": "x", "reasoning_details": [SIGNED], "tool_calls": CALLS}
    for name in ("anthropic", "gemini"):
        with Upstream() as up:
            request = hosted(up, name, {"messages": [said | {"turn_order": order}]})
        sent = build_call(request, None)["arguments"]["messages"]
        assert not any("turn_order" in message for message in sent)
        assert [*map(marks, sent)] == (pieces if name == "anthropic" else [("S", "x", "a", "b")])


def marks(message: dict[str, Any]) -> tuple[str, ...]:
    texts = message["content"] or ()
    return (
        *(block["signature"] for block in message.get("thinking_blocks", ())),
        *([texts] if isinstance(texts, str) else [part["text"] for part in texts]),
        *(call["id"] for call in message.get("tool_calls", ())),
    )
