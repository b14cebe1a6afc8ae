"""The requests of the wire matrix: one body a parameter, or a few that are translated together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ionrouter.providers.base import UpstreamRequest
from tests.support.endpoints import HELLO
from tests.support.hosted import hosted
from tests.support.translated_wire import streamed, whole
from tests.support.upstream import Received, Script, Upstream, chat_stream, json_response, usage

CARRIED = ["together_ai", "fireworks_ai", "groq", "deepseek", "mistral"]  # OpenAI's shape
TRANSLATED = ["anthropic", "gemini"]
_MODELS = {"anthropic": "claude-sonnet-4-5", "gemini": "gemini-2.5-flash"}  # names decide what is translated

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
FULL = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "where"},
        "unit": {"type": ["string", "null"], "enum": ["C", "F", None]},
        "days": {"type": "array", "items": {"$ref": "#/$defs/day"}},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"day": {"type": "integer", "minimum": 1, "maximum": 7}},
}
RICH_TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "tells", "parameters": FULL}},
    {"type": "function", "function": {"name": "now"}},
]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
STRICT = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": FULL}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
PDF = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
MARK = {"cache_control": {"type": "ephemeral"}}
CALL = {"id": "k7", "type": "function", "function": {"name": "f", "arguments": "{}"}}
OTHER_CALL = {"id": "k8", "type": "function", "function": {"name": "g", "arguments": '{"a": [1, 2.5]}'}}
ASKED = {"role": "user", "content": "warm?"}
RULES = {"role": "system", "content": "short"}
TURNS = [
    RULES,
    ASKED,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "k7", "content": "21"},
]
RESULTS = [
    ASKED,
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL, OTHER_CALL]},
    {"role": "tool", "tool_call_id": "k7", "content": "21"},
    {"role": "tool", "tool_call_id": "k8", "content": [{"type": "text", "text": "22"}]},
    {"role": "user", "content": "and now?"},
]
TALK = [RULES, ASKED, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "sure?"}]
CACHED = [
    {"role": "system", "content": [{"type": "text", "text": "rules", **MARK}]},
    {
        "role": "user",
        "content": [{"type": "text", "text": "long", **MARK}, {"type": "text", "text": "short"}],
    },
]
THOUGHTS = [
    {"type": "reasoning.text", "text": "hm", "signature": "SIG", "format": "anthropic-claude-v1", "index": 0},
    {"type": "reasoning.encrypted", "data": "SEALED", "format": "anthropic-claude-v1", "index": 1},
]
SIGNED = [ASKED, {**TURNS[2], "reasoning_details": THOUGHTS}, TURNS[3]]


def is_ours(request: Received) -> bool:
    """Ask whether a client of our own sent it: those of litellm say that they keep the connection."""
    return "connection" not in request.headers


def _user(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, *parts]}]}


BODIES: dict[str, dict[str, Any]] = {
    "plain": HELLO,
    "turns": {"messages": TURNS, "tools": TOOLS},
    "image": _user(IMAGE),
    "sampling": {**HELLO, "temperature": 0.5, "top_p": 0.9, "stop": ["x"], "max_tokens": 5, "seed": 7,
                 "n": 2, "logprobs": True, "top_logprobs": 2, "user": "u"},
    "greedy": {**HELLO, "temperature": 0, "max_completion_tokens": 9, "top_k": 5, "min_p": 0.1},
    "tools": {**HELLO, "tools": TOOLS, "tool_choice": "auto"},
    "required": {**HELLO, "tools": TOOLS, "tool_choice": "required"},
    "json": {**HELLO, "response_format": {"type": "json_object"}},
    "schema": {**HELLO, "response_format": SCHEMA},
    "unknown": {**HELLO, "no_such_field": 1},
    # Talk
    "talk": {"messages": TALK},
    "developer": {"messages": [{"role": "developer", "content": "short"}, ASKED]},
    "system alone": {"messages": [RULES]},
    "prefill": {"messages": [ASKED, {"role": "assistant", "content": "It is "}]},
    "two in a row": {"messages": [ASKED, {"role": "user", "content": "say"}]},
    "padded": {"messages": [{"role": "user", "content": " hi\n"}, {"role": "assistant", "content": ""}]},
    "cached": {"messages": CACHED, "tools": [{**TOOLS[0], **MARK}]},
    # Tools
    "rich tools": {**HELLO, "tools": RICH_TOOLS},
    "results": {"messages": RESULTS, "tools": TOOLS},
    "one tool": {**HELLO, "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
    "no tool": {**HELLO, "tools": TOOLS, "tool_choice": "none"},
    "in a row": {**HELLO, "tools": TOOLS, "parallel_tool_calls": False},
    "beside": {**HELLO, "tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": True},
    # Thoughts
    "effort": {**HELLO, "reasoning": {"effort": "high"}, "max_tokens": 9000},
    "low effort": {**HELLO, "reasoning_effort": "low"},
    "no effort": {**HELLO, "reasoning": {"effort": "none"}},
    "budget": {**HELLO, "reasoning": {"max_tokens": 2000}, "max_tokens": 4000},
    "signed": {"messages": SIGNED, "tools": TOOLS, "reasoning": {"max_tokens": 2000}, "max_tokens": 4000},
    # Sampling
    "warm": {**HELLO, "temperature": 1.5, "top_k": 40, "stop": "x"},
    "nucleus": {**HELLO, "top_p": 0.9, "stop": ["x", "y"], "max_tokens": 5, "user": "u"},
    "choices": {**HELLO, "n": 2, "seed": 7},
    "penalties": {**HELLO, "frequency_penalty": 0.5, "presence_penalty": 0.25},
    "bias": {**HELLO, "logit_bias": {"50": 1}},
    "tier": {**HELLO, "service_tier": "auto", "prompt_cache_key": "p", "verbosity": "low"},
    # Formats
    "strict": {**HELLO, "response_format": STRICT},
    "strict tools": {**HELLO, "response_format": STRICT, "tools": RICH_TOOLS},
    "pdf": _user(PDF),
    "audio": _user(AUDIO),
}  # fmt: skip


def asking(up: Upstream, name: str, body: Any = HELLO, **options: Any) -> UpstreamRequest:
    """One attempt at a provider of the matrix, with a model it is known for."""
    model = {"upstream_model": _MODELS[name]} if name in _MODELS else {}
    place: Any = SimpleNamespace(base_url=up.url) if name == "anthropic" else up  # litellm adds /v1 itself
    return hosted(place, name, body, endpoint={**model, **options.pop("endpoint", {})}, **options)


def plain_answer(request: Received) -> Script:
    """An answer in the words of whoever was asked."""
    if "/messages" in request.path:
        write = streamed if request.json().get("stream") else whole
        return write("anthropic", [("text", "A", "B")], "stop")
    if "enerateContent" in request.path:
        write = streamed if "stream" in request.path else whole
        return write("gemini", [("text", "A", "B")], "stop")
    if request.json().get("stream"):
        return chat_stream(["A", "B"])
    choice = {"index": 0, "message": {"role": "assistant", "content": "AB"}, "finish_reason": "stop"}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return json_response({**body, "usage": usage(5, 2)})
