"""A provider whose shape is not OpenAI's: Anthropic's messages, translated by litellm, normalised by us."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ionrouter.errors import FailureClass
from ionrouter.providers.litellm import LiteLLMProvider
from ionrouter.providers.litellm_recipe import BARE
from ionrouter.schema.usage import Usage
from tests.support.endpoints import HELLO, Answer, collect, make_endpoint, make_request
from tests.support.hosted import KEY
from tests.support.litellm_matrix import BODIES, asking, plain_answer
from tests.support.litellm_ways import both, learnt, way
from tests.support.upstream import Cut, Script, Upstream, chunked, error, json_response

pytestmark = pytest.mark.asyncio(loop_scope="session")
USED = {
    "input_tokens": 10,
    "output_tokens": 1,
    "cache_read_input_tokens": 90,
    "cache_creation_input_tokens": 0,
}
OVERLOADED = {"type": "overloaded_error", "message": "Overloaded"}


def said(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[bytes]:
    opened = said("content_block_start", index=index, content_block=start)
    return [
        opened,
        *(said("content_block_delta", index=index, delta=delta) for delta in deltas),
        said("content_block_stop", index=index),
    ]


START = said(
    "message_start",
    message={
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "up",
        "content": [],
        "usage": USED,
    },
)
BODY = [
    START,
    *block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": "SIG"},
    ),
    *block(
        1,
        {"type": "text", "text": ""},
        {"type": "text_delta", "text": "hel"},
        {"type": "text_delta", "text": "lo"},
    ),
    *block(
        2,
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
        {"type": "input_json_delta", "partial_json": '{"a":1}'},
    ),
]
END = [
    said("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 7}),
    said("message_stop"),
]


async def ask(litellm: LiteLLMProvider, script: Script, *, stream: bool = True) -> Answer:
    with Upstream(script) as up:
        endpoint = make_endpoint(
            up.url, type="litellm", litellm_provider="anthropic", key_variable="UP_KEY",
            upstream_model="claude-sonnet-4-5",
        )  # fmt: skip
        answer = await collect(litellm, make_request(endpoint, stream=stream))
        assert up.requests[0].path == "/v1/messages"
        assert up.requests[0].headers["x-api-key"] == KEY
    return answer


async def test_signed_thoughts_and_cache_marks_reach_claude_again(litellm: LiteLLMProvider) -> None:
    """Without its signature Claude refuses the turn after a tool call."""
    mark = {"cache_control": {"type": "ephemeral"}}
    details = [
        {
            "type": "reasoning.text",
            "text": "hm",
            "signature": "SIG",
            "format": "anthropic-claude-v1",
            "index": 0,
        },
        {"type": "reasoning.encrypted", "data": "SEALED", "format": "anthropic-claude-v1", "index": 1},
        {"type": "reasoning.text", "text": "not Claude's", "signature": "x", "format": "unknown", "index": 2},
    ]
    call = {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "rules", **mark}]},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_details": details},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "4"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    thinking = {"max_tokens": 2000}
    body = {"messages": messages, "tools": tools, "reasoning": thinking, "max_tokens": 4000}
    with Upstream(chunked([*BODY, *END])) as up:
        endpoint = make_endpoint(
            up.url, type="litellm", litellm_provider="anthropic", key_variable="UP_KEY",
            upstream_model="claude-sonnet-4-5",
        )  # fmt: skip
        await collect(litellm, make_request(endpoint, body, stream=True))
        sent = up.requests[0].json()
    assert sent["messages"][1]["content"][:2] == [
        {"type": "thinking", "thinking": "hm", "signature": "SIG"},
        {"type": "redacted_thinking", "data": "SEALED"},
    ]
    assert sent["messages"][1]["content"][2]["type"] == "tool_use"
    assert "not Claude's" not in json.dumps(sent)
    assert sent["system"][0]["cache_control"] == {"type": "ephemeral"}
    assert sent["thinking"] == {"type": "enabled", "budget_tokens": 2000}


@pytest.mark.parametrize("stream", [True, False])
async def test_marks_of_a_call_and_of_the_whole_request_reach_claude(
    litellm: LiteLLMProvider, carrying: LiteLLMProvider, stream: bool
) -> None:
    """By both ways: through acompletion, and bare."""
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    call = {"id": "k7", "type": "function", "function": {"name": "f", "arguments": "{}"}, **mark}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "k7", "content": "21"}
    body = {**BODIES["turns"], "messages": [*HELLO["messages"], said, result], **mark}
    with Upstream(plain_answer) as up:
        request = asking(up, "anthropic", body, stream=stream)
        await learnt(carrying, request)
        assert way(carrying, request) == BARE
        await both(litellm, carrying, request)
        for sent in up.requests:
            assert sent.json()["cache_control"] == mark["cache_control"]
            assert sent.json()["messages"][1]["content"][0]["cache_control"] == mark["cache_control"]


HAIKU, LEGACY, NEWER, UNASKED = (
    "claude-3-5-haiku-20241022", "claude-sonnet-4-5", "claude-opus-4-7", "claude-opus-5",
)  # fmt: skip
ADAPTIVE = {"type": "adaptive"}
SHOWN = {"type": "adaptive", "display": "summarized"}
HIDDEN = {"type": "adaptive", "display": "omitted"}


def _budget(tokens: int, **more: str) -> dict[str, Any]:
    return {"type": "enabled", "budget_tokens": tokens, **more}


@pytest.mark.parametrize(
    ("model", "reasoning", "max_tokens", "thinking", "effort"),
    [
        # No thoughts: said to who thinks unasked, and to nobody else.
        *((model, no, 9000, None, None) for model in (HAIKU, LEGACY, NEWER)
          for no in ({"enabled": False}, {"effort": "none"}, {"max_tokens": 0})),
        *((UNASKED, no, 9000, {"type": "disabled"}, None)
          for no in ({"enabled": False}, {"effort": "none"}, {"max_tokens": 0})),
        # A budget, and what becomes of it where there are none.
        (LEGACY, {"max_tokens": 2000}, 9000, _budget(2000), None),
        (NEWER, {"max_tokens": 2000}, 9000, SHOWN, "low"),
        # An effort, and what becomes of it where there are none.
        (NEWER, {"effort": "xhigh"}, 9000, SHOWN, "xhigh"),
        (LEGACY, {"effort": "max"}, 9000, _budget(8550), None),
        (LEGACY, {"effort": "low"}, 9000, _budget(1800), None),
        (LEGACY, {"effort": "minimal"}, 9000, _budget(1024), None),
        (LEGACY, {"enabled": True}, 9000, _budget(4500), None),
        (LEGACY, {"effort": "high"}, 1000, None, None),  # less than the least that Claude takes
        # In Claude's own words.
        (NEWER, {"enabled": True, "thinking": ADAPTIVE}, 9000, ADAPTIVE, None),
        (NEWER, {"enabled": True, "thinking": HIDDEN}, 9000, HIDDEN, None),
        (NEWER, {"effort": "low", "thinking": HIDDEN}, 9000, HIDDEN, "low"),
        (LEGACY, {"effort": "low", "thinking": HIDDEN}, 9000, _budget(1800, display="omitted"), None),
        (LEGACY, {"enabled": True, "thinking": ADAPTIVE}, 9000, _budget(4500), None),
        (LEGACY, {"max_tokens": 2000, "thinking": _budget(2000, display="omitted")}, 9000,
         _budget(2000, display="omitted"), None),
    ],
)  # fmt: skip
async def test_a_wish_for_thoughts_as_each_model_takes_it(
    litellm: LiteLLMProvider, model: str, reasoning: Any, max_tokens: int, thinking: Any, effort: str | None
) -> None:
    with Upstream(plain_answer) as up:
        body = {**HELLO, "reasoning": reasoning, "max_tokens": max_tokens}
        options = {"endpoint": {"upstream_model": model}, "stream": False}
        assert (await collect(litellm, asking(up, "anthropic", body, **options))).error is None
        sent = up.requests[0].json()
    assert sent.get("thinking") == thinking
    assert sent.get("output_config") == (effort and {"effort": effort})


async def test_a_stream_arrives_in_our_words(litellm: LiteLLMProvider) -> None:
    answer = await ask(litellm, chunked([*BODY, *END]))
    assert answer.error is None
    assert (answer.text(key="reasoning"), answer.text()) == ("hm", "hello")
    assert answer.tool_calls() == [("toolu_1", "f", '{"a":1}')]
    assert answer.finishes()[0][0] == "tool_calls"
    (used,) = answer.usages()
    assert (used.prompt_tokens, used.completion_tokens, used.cached_tokens) == (100, 7, 90)


async def test_a_signature_comes_back_unchanged(litellm: LiteLLMProvider) -> None:
    answer = await ask(litellm, chunked([*BODY, *END]))
    details = [d for c in answer.chunks for x in c.choices for d in x.delta.get("reasoning_details", ())]
    assert "SIG" in [d.get("signature") for d in details]


async def test_a_whole_answer_arrives(litellm: LiteLLMProvider) -> None:
    body = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "up", "stop_reason": "max_tokens",
        "content": [{"type": "text", "text": "hello"}], "usage": {**USED, "output_tokens": 2},
    }  # fmt: skip
    answer = (await ask(litellm, json_response(body), stream=False)).complete
    assert answer.choices[0].message["content"] == "hello"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage == Usage(100, 2, 90)


@pytest.mark.parametrize("stream", [True, False])
async def test_the_stop_string_that_matched_is_known(
    litellm: LiteLLMProvider, carrying: LiteLLMProvider, stream: bool
) -> None:
    """By both ways: through acompletion, and bare."""
    stopped = {"stop_reason": "stop_sequence", "stop_sequence": "END"}
    text = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "hello"})
    end = said("message_delta", delta=stopped, usage={"output_tokens": 7})
    whole = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "up", **stopped,
        "content": [{"type": "text", "text": "hello"}], "usage": USED,
    }  # fmt: skip
    script = chunked([START, *text, end, said("message_stop")]) if stream else json_response(whole)
    with Upstream(script) as up:
        request = asking(up, "anthropic", {**HELLO, "stop": ["STOP", "END"]}, stream=stream)
        await learnt(carrying, request)
        assert way(carrying, request) == BARE
        for answer in await both(litellm, carrying, request):
            assert answer.error is None
            choices = [c for event in answer.events for c in event.choices if c.finish_reason]
            assert [(c.finish_reason, c.stop_sequence) for c in choices] == [("stop", "END")]


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (BODY, "hello"),
        ([*BODY, said("error", error=OVERLOADED)], "hello"),
        ([START, said("error", error=OVERLOADED)], ""),
        ([], ""),
    ],
)
async def test_a_stream_that_breaks_is_a_failure_and_not_a_stop(
    litellm: LiteLLMProvider, pieces: list[bytes], text: str
) -> None:
    answer = await ask(litellm, chunked(pieces))
    assert answer.text() == text
    assert answer.finishes() == {}
    assert answer.error is not None
    assert answer.error.failure is FailureClass.TRANSIENT


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("status", "kind", "message", "failure"),
    [
        (400, "invalid_request_error", "words", FailureClass.REQUEST),
        (401, "authentication_error", "words", FailureClass.DOMAIN),
        (404, "not_found_error", "model: claude-x", FailureClass.DOMAIN),
        (429, "rate_limit_error", "words", FailureClass.CAPACITY),
        (529, "overloaded_error", "Overloaded", FailureClass.TRANSIENT),
        (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum",
         FailureClass.ENDPOINT_REQUEST),
    ],
)  # fmt: skip
async def test_a_refusal_has_its_class_and_words(
    litellm: LiteLLMProvider, status: int, kind: str, message: str, failure: FailureClass, stream: bool
) -> None:
    body = {"type": "error", "error": {"type": kind, "message": message}}
    answer = await ask(litellm, error(status, body, {"retry-after": "9"}), stream=stream)
    assert answer.error is not None
    assert (answer.error.failure, answer.error.message) == (failure, message)


async def test_usage_that_was_told_before_a_cut_is_known(litellm: LiteLLMProvider) -> None:
    """Claude bills a stream's input from its first event on."""
    with Upstream(chunked(BODY, end=False).then(Cut())) as up:
        endpoint = make_endpoint(
            up.url, type="litellm", litellm_provider="anthropic", key_variable="UP_KEY",
            upstream_model="claude-sonnet-4-5",
        )  # fmt: skip
        request = make_request(endpoint, stream=True)
        answer = await collect(litellm, request)
    assert answer.error is not None and answer.usages() == []
    assert request.told.usage is not None
    assert (request.told.usage.prompt_tokens, request.told.usage.cached_tokens) == (100, 90)
