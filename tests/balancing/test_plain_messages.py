"""What a strict server of OpenAI's shapes gets of a conversation."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ionrouter.balancing.fields import fit
from ionrouter.routing.table import Endpoint, Provider
from tests.support.routes import endpoint, request

MARK = {"cache_control": {"type": "ephemeral"}}
BREAKPOINT = {"prompt_cache_breakpoint": {"mode": "explicit"}}
TEXT = {"type": "text", "text": "long"}
CALL = {"id": "k", "type": "function", "function": {"name": "f", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
OURS = {"type": "reasoning.text", "text": "so", "format": "unknown", "index": 0}
SIGNED = {"type": "reasoning.text", "text": "so", "signature": "S", "format": "unknown", "index": 0}
NATIVE = {"type": "reasoning.text", "text": "so", "format": "MiniMax-response-v1", "index": 0}


def strict(*declared: str, **provider: Any) -> Endpoint:
    return endpoint(
        "a",
        supported_parameters=frozenset(declared),
        provider=Provider(slug="a", name="A", type="openai", **provider),
    )


def sent(at: Endpoint, *messages: dict[str, Any], **body: Any) -> dict[str, Any]:
    whole = {"messages": list(messages), **body}
    before = copy.deepcopy(whole)
    fitted = fit(request(body=whole), at).body
    assert whole == before
    return dict(fitted)


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        ({"role": "user", "content": [TEXT | MARK]}, {"role": "user", "content": "long"}),
        ({"role": "user", "content": [TEXT]}, {"role": "user", "content": [TEXT]}),
        ({"role": "user", "content": [TEXT, IMAGE | MARK]}, {"role": "user", "content": [TEXT, IMAGE]}),
        ({"role": "user", "content": [TEXT | BREAKPOINT, TEXT]}, {"role": "user", "content": [TEXT, TEXT]}),
        ({"role": "user", "content": "x", **MARK}, {"role": "user", "content": "x"}),
        (
            {"role": "tool", "tool_call_id": "1", "content": [TEXT | MARK]},
            {"role": "tool", "tool_call_id": "1", "content": "long"},
        ),
        (
            {"role": "assistant", "content": "x", "reasoning": None, "refusal": None, "tool_calls": None},
            {"role": "assistant", "content": "x"},
        ),
        ({"role": "assistant", "content": None}, {"role": "assistant", "content": None}),
        (
            {"role": "assistant", "content": None, "tool_calls": [CALL | MARK, CALL]},
            {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
        ),
        (
            {"role": "assistant", "content": "x", "annotations": [{}], "images": [{}], "reasoning": "so"},
            {"role": "assistant", "content": "x", "reasoning": "so"},
        ),
        (
            {"role": "assistant", "content": "x", "reasoning_details": [OURS]},
            {"role": "assistant", "content": "x"},
        ),
        *(
            ({"role": "assistant", "content": "x", "reasoning_details": kept},) * 2
            for kept in ([OURS, SIGNED], [NATIVE], [{**OURS, "data": "x"}])
        ),
    ],
)
def test_marks_and_what_only_answers_carry_stay_here(message: dict[str, Any], plain: dict[str, Any]) -> None:
    assert sent(strict(), message)["messages"] == [plain]


def test_marks_of_tools_too() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    assert sent(strict(), tools=[tool | MARK, tool])["tools"] == [tool, tool]


@pytest.mark.parametrize(
    "at",
    [
        strict("cache_control", "tools"),
        strict(forward_provider=True),
        endpoint("a", provider=Provider(slug="a", name="A", type="litellm")),
    ],
)
def test_who_knows_the_marks_gets_them(at: Endpoint) -> None:
    message = {"role": "user", "content": [TEXT | MARK]}
    tool = {"type": "function", "function": {"name": "f"}, **MARK}
    assert sent(at, message, tools=[tool]) == {"messages": [message], "tools": [tool]}


@pytest.mark.parametrize(
    ("at", "is_known"),
    [
        (strict(), False),
        (strict("tools"), False),
        (strict(forward_unknown=True), False),
        (strict("cache_control"), True),
        (strict(forward_provider=True), True),
        (endpoint("a", provider=Provider(slug="a", name="A", type="ion")), False),
        (endpoint("a", provider=Provider(slug="anthropic", name="A", type="litellm")), True),
        (
            endpoint(
                "a", provider=Provider(slug="a", name="A", type="litellm", litellm_provider="anthropic")
            ),
            True,
        ),
        (
            endpoint(
                "a", provider=Provider(slug="anthropic", name="A", type="litellm", litellm_provider="gemini")
            ),
            False,
        ),
    ],
)
def test_a_mark_of_the_whole_request_goes_to_who_caches_by_it(at: Endpoint, is_known: bool) -> None:
    fitted = fit(request(body={"messages": []}, gateway_fields=MARK), at)
    assert fitted.body == {"messages": [], **(MARK if is_known else {})}
    assert fitted.dropped == ()


def test_a_plain_conversation_is_shared() -> None:
    message = {"role": "user", "content": [TEXT]}
    assert sent(strict(), message)["messages"][0] is message


@pytest.mark.parametrize(
    "at", [strict(), strict("reasoning_details", "tools"), strict(forward_provider=True)]
)
def test_what_only_claude_has_a_field_for_is_for_claude_alone(at: Endpoint) -> None:
    message = {"role": "assistant", "content": "x", "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "k", "content": "Error: x"}
    tool = {"type": "function", "function": {"name": "f"}}
    told = sent(
        at,
        message | {"turn_order": ["call", "text"]},
        result | {"tool_result": {"is_error": True}},
        tools=[tool | {"tool_extras": {"strict": True}}],
    )
    assert told == {"messages": [message, result], "tools": [tool]}


THOUGHT = {"role": "assistant", "content": "x"}
DEEPSEEK = {"base_url": "https://api.deepseek.com/v1"}


@pytest.mark.parametrize(
    "kept",
    [
        {"reasoning": "so"},
        {"reasoning_content": "so"},
        {"reasoning_details": [OURS]},
        {"reasoning": "so", "reasoning_details": [OURS], "reasoning_content": None},
    ],
)
@pytest.mark.parametrize(
    ("at", "fields"),
    [
        (strict(**DEEPSEEK), ["reasoning_content"]),
        (strict(base_url="http://10.0.0.1/v1", forward_unknown=True), ["reasoning", "reasoning_content"]),
        (strict(base_url="https://a.example", options={"reasoning_field": "reasoning"}), ["reasoning"]),
        (strict(**DEEPSEEK, options={"reasoning_field": "reasoning"}), ["reasoning"]),
    ],
)
def test_thoughts_go_back_in_the_field_that_is_read(
    at: Endpoint, fields: list[str], kept: dict[str, Any]
) -> None:
    """Without them DeepSeek and others refuse the turn after a tool's result."""
    assert sent(at, THOUGHT | kept)["messages"] == [THOUGHT | dict.fromkeys(fields, "so")]


@pytest.mark.parametrize("host", ["https://notdeepseek.com/v1", "https://api.deepseek.com.a.example", None])
def test_thoughts_stay_where_they_are_for_a_server_that_nobody_knows(host: str | None) -> None:
    for kept in ({"reasoning": "so"}, {"reasoning_content": "so"}):
        assert sent(strict(base_url=host), THOUGHT | kept)["messages"] == [THOUGHT | kept]


def test_an_answer_without_thoughts_and_a_question_get_none() -> None:
    for message in (THOUGHT, {"role": "user", "content": "x", "reasoning": "so"}):
        assert sent(strict(**DEEPSEEK), message)["messages"] == [message]
    native = THOUGHT | {"reasoning_details": [SIGNED | {"text": ""}]}
    assert sent(strict(**DEEPSEEK), native)["messages"] == [native]
