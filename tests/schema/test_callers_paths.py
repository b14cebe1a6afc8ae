"""Errors name places in what the caller sent, not in the chat request that was made of it."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.schema.messages_request import MessagesRequest
from ionrouter.schema.responses_request import ResponsesRequest
from ionrouter.schema.validation import validated

PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
PAPER = {"type": "document", "source": {"type": "url", "url": "https://a.example/b.pdf"}, "title": "b"}
MESSAGES: dict[str, Any] = {
    "model": "m",
    "system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "S"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t", "name": "f", "input": {}},
            {"type": "tool_use", "id": "u", "name": "g", "input": {"a": "b"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t", "content": "21"},
            {"type": "tool_result", "tool_use_id": "u", "content": [{"type": "text", "text": "x"}, PICTURE]},
            {"type": "text", "text": "see"}, PAPER,
        ]},
        {"role": "user", "content": "hi"},
    ],
}  # fmt: skip
RESPONSES: dict[str, Any] = {
    "model": "m",
    "instructions": "short",
    "input": [
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [
            {"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "https://a.example/b"},
        ]},
        {"role": "user", "content": [
            {"type": "input_text", "text": "see"},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        ]},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("messages[0].content", "system[0]"),
        ("messages[0].content[1]", "system[1]"),
        ("messages[1]", "messages[0].content"),
        ("messages[2].reasoning_details[0].text", "messages[1].content[0]"),
        ("messages[2].content", "messages[1].content[1]"),
        ("messages[2].tool_calls[1].function.arguments", "messages[1].content[3]"),
        ("messages[2]", "messages[1].content"),
        ("messages[3].content", "messages[2].content[0].content"),
        ("messages[4].content", "messages[2].content[1].content[0]"),
        ("messages[5].content[0].image_url.url", "messages[2].content[1].content[1]"),
        ("messages[5].content[1]", "messages[2].content[2]"),
        ("messages[5].content[2].file.file_data", "messages[2].content[3]"),
        ("messages[6].content", "messages[3].content"),
        ("messages[7].content", "messages[7].content"),
        ("stop", "stop_sequences"),
        ("tools[2].function.name", "tools[2].name"),
        ("tools[2].function.parameters.properties.a", "tools[2].input_schema.properties.a"),
        ("response_format", "output_config.format"),
        ("response_format.json_schema.schema.type", "output_config.format.schema.type"),
        ("max_tokens", "max_tokens"),
    ],
)
def test_a_place_in_anthropics_blocks(path: str, own: str) -> None:
    validated(MessagesRequest, MESSAGES)
    paths = MessagesRequest.paths(MESSAGES)
    assert paths.of(path) == own
    assert paths.in_text(f"{path}: is odd") == f"{own}: is odd"


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("messages[0].content", "instructions"),
        ("messages[1].content", "input[0].content"),
        ("messages[2].content", "input[2].content[0]"),
        ("messages[2].tool_calls[0]", "input[3]"),
        ("messages[2].reasoning_details[0]", "input[1].summary[0]"),
        ("messages[3].content", "input[4].output[0]"),
        ("messages[4].content[0].image_url.url", "input[4].output[1]"),
        ("messages[4].content[1]", "input[5].content[0]"),
        ("messages[4].content[2].input_audio.data", "input[5].content[1]"),
        ("messages", "input"),
        ("max_tokens", "max_output_tokens"),
        ("response_format.json_schema.schema.type", "text.format.schema.type"),
        ("tool_choice", "tool_choice"),
        ("tools[0].function.parameters", "tools[0].parameters"),
    ],
)
def test_a_place_in_openais_items(path: str, own: str) -> None:
    validated(ResponsesRequest, RESPONSES)
    paths = ResponsesRequest.paths(RESPONSES)
    assert paths.of(path) == own
    assert paths.in_text(f"{path}: is odd") == f"{own}: is odd"


def test_a_text_is_the_whole_input() -> None:
    assert ResponsesRequest.paths({"model": "m", "input": "hi"}).of("messages[0].content") == "input"


def test_a_place_in_the_middle_of_a_sentence() -> None:
    words = "No endpoint takes it: messages[5].content[2] is a file, messages[1].content is none."
    told = MessagesRequest.paths(MESSAGES).in_text(words)
    assert told == "No endpoint takes it: messages[2].content[3] is a file, messages[0].content is none."


@pytest.mark.parametrize("path", ["messages[1].content", "messages.1.content", "messages.[1].content"])
def test_upstreams_write_places_in_several_ways(path: str) -> None:
    assert ResponsesRequest.paths(RESPONSES).of(path) == "input[0].content"


def test_fields_have_the_callers_names() -> None:
    space = {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": name} for name in "ab"]}
    paths = ResponsesRequest.paths({**RESPONSES, "tools": [{"type": "function", "name": "a"}, space]})
    assert paths.of("max_completion_tokens") == "max_output_tokens"
    assert paths.of("reasoning_effort") == "reasoning.effort"
    assert paths.of("tools[0].function.name") == "tools[0].name"
    assert paths.of("tools.2.function.parameters.type") == "tools[1].tools[1].parameters.type"
    assert paths.of("tools[3].function.name") == "tools[3].name"
