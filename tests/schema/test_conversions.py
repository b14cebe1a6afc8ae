"""Whatever arrives as a message, response or embeddings request either becomes one of ours or is a 400."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ionrouter.errors import RequestError
from ionrouter.schema.chat import ChatRequest
from ionrouter.schema.embeddings import EmbeddingsRequest
from ionrouter.schema.messages_request import MessagesRequest
from ionrouter.schema.responses_request import ResponsesRequest
from ionrouter.schema.validation import validated

WORDS = [
    "text",
    "image",
    "tool_use",
    "tool_result",
    "thinking",
    "document",
    "message",
    "function_call",
    "function",
    "function_call_output",
    "reasoning",
    "input_text",
    "input_image",
    "auto",
    "any",
    "tool",
    "enabled",
    "user",
    "assistant",
    "system",
    "json_schema",
    "base64",
    "url",
]
KEYS = [
    "type",
    "role",
    "content",
    "text",
    "source",
    "input",
    "output",
    "name",
    "id",
    "call_id",
    "tool_use_id",
    "thinking",
    "data",
    "media_type",
    "url",
    "image_url",
    "arguments",
    "summary",
    "format",
    "schema",
    "messages",
    "model",
    "system",
    "tools",
    "tool_choice",
    "max_tokens",
    "stop_sequences",
    "output_config",
    "metadata",
    "instructions",
    "include",
    "reasoning",
    "context_management",
    "edits",
    "fallbacks",
    "dimensions",
    "stream",
    "input_schema",
    "user",
    "effort",
    "citations",
    "title",
]
_leaves = st.none() | st.booleans() | st.integers(-2, 9) | st.text(max_size=3) | st.sampled_from(WORDS)
_json = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, min_size=1, max_size=5)
    ),
    max_leaves=20,
)
_bodies = st.dictionaries(st.sampled_from(KEYS), _json, max_size=8)
_calm = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)


def _ask(parsed: ChatRequest | EmbeddingsRequest, body: dict[str, Any], kind: Any) -> None:
    longest = parsed.longest()
    request = parsed.to_request(
        body, kind=kind, request_id="gen-1-x", characters=parsed.num_characters(), longest=longest,
        modalities=parsed.input_modalities(), session_id=None, key_id=None, arrived_at=0.0,
    )  # fmt: skip
    assert request.prompt_tokens >= (request.context_tokens or 0)


@_calm
@given(_bodies, _json, _json)
def test_messages(body: dict[str, Any], content: Any, block: Any) -> None:
    turn = {"role": "user", "content": content}
    for messages in ([turn], [{"role": "assistant", "content": [block]}], content):
        whole = {"model": "m", **body, "messages": messages}
        try:
            made = validated(MessagesRequest, whole).to_chat(whole)
            _ask(validated(ChatRequest, made), made, "chat")
        except RequestError as refused:
            assert refused.status == 400


@_calm
@given(_bodies, _json)
def test_responses(body: dict[str, Any], given_input: Any) -> None:
    for items in (given_input, [given_input], [{"role": "user", "content": [given_input]}]):
        whole = {"model": "m", **body, "input": items}
        try:
            parsed = validated(ResponsesRequest, whole)
            made = parsed.to_chat(whole)
            _ask(validated(ChatRequest, made), made, "chat")
            parsed.echo(whole)
        except RequestError as refused:
            assert refused.status == 400


@_calm
@given(_bodies, _json)
def test_embeddings(body: dict[str, Any], given_input: Any) -> None:
    whole = {"model": "m", **body, "input": given_input}
    try:
        _ask(validated(EmbeddingsRequest, whole), whole, "embeddings")
    except RequestError as refused:
        assert refused.status == 400


@pytest.mark.parametrize("model", [ChatRequest, MessagesRequest, ResponsesRequest])
def test_a_tools_name_may_be_as_long_as_claude_takes_it(model: Any) -> None:
    """Agents name a tool of an MCP server by server and tool: 64 characters are soon over."""
    for name, is_fine in (("mcp__" + "n" * 123, True), ("mcp__" + "n" * 124, False)):
        tool = {
            ChatRequest: {"type": "function", "function": {"name": name}},
            MessagesRequest: {"name": name, "input_schema": {"type": "object"}},
            ResponsesRequest: {"type": "function", "name": name},
        }[model]
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "input": "hi", "tools": [tool]}
        try:
            parsed = validated(model, body)
        except RequestError as error:
            assert not is_fine
            assert "should have at most 128 characters" in str(error)
        else:
            assert is_fine
            if model is not ChatRequest:
                validated(ChatRequest, parsed.to_chat(body))
