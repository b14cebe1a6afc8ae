"""Anthropic's requests: what they become in chat, and what is refused with its field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ionrouter.errors import RequestError
from ionrouter.schema.chat import ChatRequest
from ionrouter.schema.messages_request import MessagesRequest
from ionrouter.schema.validation import validated

HI: list[Any] = [{"role": "user", "content": "hi"}]
PNG = {"type": "base64", "media_type": "image/png", "data": "aGk="}
EPHEMERAL = {"type": "ephemeral", "ttl": "1h"}
FAILED = {"tool_result": {"is_error": True}}  # told beside the message, for Claude
JSON = {"type": "json_schema", "schema": {"type": "object"}}


def chat(**body: Any) -> dict[str, Any]:
    """The chat body of a request; it must pass as one."""
    whole = {"model": "m", "messages": HI, **body}
    made = validated(MessagesRequest, whole).to_chat(whole)
    validated(ChatRequest, made)
    return made


def said(*content: Any, role: str = "user") -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = chat(messages=[{"role": role, "content": list(content)}])["messages"]
    return messages


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def test_plain_words_stay_strings() -> None:
    made = chat(system="Be brief.", messages=[*HI, {"role": "assistant", "content": "He"}])
    assert made["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "He"},
    ]


def test_sampling_and_routing_fields() -> None:
    made = chat(
        max_tokens=9, stop_sequences=["END"], temperature=0.5, top_p=0.9, top_k=5, stream=True,
        metadata={"user_id": "u1"}, provider={"only": ["x"]}, session_id="s", cache_control=EPHEMERAL,
    )  # fmt: skip
    assert made["stop"] == ["END"]
    assert (made["max_tokens"], made["temperature"], made["top_p"], made["top_k"]) == (9, 0.5, 0.9, 5)
    assert (made["stream"], made["user"], made["session_id"]) == (True, "u1", "s")
    assert (made["provider"], made["cache_control"]) == ({"only": ["x"]}, EPHEMERAL)
    assert "stop_sequences" not in made


def test_cache_marks_stay_on_their_parts() -> None:
    system = [text("rules", cache_control=EPHEMERAL), text("more")]
    made = chat(system=system, messages=[{"role": "user", "content": [text("a", cache_control=EPHEMERAL)]}])
    assert made["messages"][0]["content"] == system
    assert made["messages"][1]["content"] == [text("a", cache_control=EPHEMERAL)]


def test_images_and_documents() -> None:
    url = {"type": "url", "url": "https://x.example/a.png"}
    (message,) = said(text("see"), {"type": "image", "source": PNG}, {"type": "image", "source": url})
    assert [part.get("image_url") for part in message["content"]] == [
        None,
        {"url": "data:image/png;base64,aGk="},
        {"url": "https://x.example/a.png"},
    ]
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "aGk="}
    notes = {"type": "text", "media_type": "text/plain", "data": "notes"}
    (message,) = said(
        {"type": "document", "source": pdf, "title": "a.pdf"},
        {"type": "document", "source": notes, "title": "Title", "context": "Context"},
        {"type": "document", "source": {"type": "content", "content": [text("in")]}},
        {"type": "search_result", "source": "https://x", "title": "T", "content": [text("found")]},
    )
    file, *texts = message["content"]
    assert file["file"] == {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="}
    assert [part["text"] for part in texts] == ["Title", "Context", "notes", "in", "T\nhttps://x", "found"]


def test_a_tool_loop() -> None:
    turns = [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig"},
                {"type": "redacted_thinking", "data": "sealed"},
                text("Let me look."),
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
                {"type": "tool_use", "id": "t2", "name": "time", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                text("and hurry"),
                {"type": "tool_result", "tool_use_id": "t1", "content": "4 degrees"},
                {"type": "tool_result", "tool_use_id": "t2", "is_error": True, "content": [text("no clock")]},
            ],
        },
    ]
    _, assistant, first, second, last = chat(messages=turns)["messages"]
    assert assistant["content"] == "Let me look."
    assert [(c["id"], c["function"]["name"]) for c in assistant["tool_calls"]] == [
        ("t1", "weather"),
        ("t2", "time"),
    ]
    assert json.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"city": "Oslo"}
    assert assistant["reasoning"] == "hm"
    assert [(d["type"], d.get("signature"), d.get("data")) for d in assistant["reasoning_details"]] == [
        ("reasoning.text", "sig", None),
        ("reasoning.encrypted", None, "sealed"),
    ]
    assert first == {"role": "tool", "tool_call_id": "t1", "content": "4 degrees"}
    assert second == {"role": "tool", "tool_call_id": "t2", "content": "Error: no clock", **FAILED}
    assert last == {"role": "user", "content": "and hurry"}


def test_pictures_in_a_tools_result_move_to_the_next_user_message() -> None:
    """A tool message holds text for most servers; what a tool shows must not be lost."""
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": PNG}]}
    tool, user = said(result, text("what is it?"))
    assert (tool["role"], isinstance(tool["content"], str)) == ("tool", True)
    assert [part["type"] for part in user["content"]] == ["image_url", "text"]
    (tool, user) = said(result)
    assert [part["type"] for part in user["content"]] == ["image_url"]


@pytest.mark.parametrize("empty", ["", [], [text("")], None])
@pytest.mark.parametrize("is_error", [True, False])
def test_a_cache_mark_never_stands_on_an_empty_text(empty: Any, is_error: bool) -> None:
    """A tool that said nothing, marked as clients mark the end: Claude refuses such a mark on a text."""
    result = {"type": "tool_result", "tool_use_id": "t", "is_error": is_error, "cache_control": EPHEMERAL}
    made = chat(messages=[{"role": "user", "content": [{**result, "content": empty}]}])
    said = {"content": [text("Error", cache_control=EPHEMERAL)], **FAILED}
    quiet = {"content": "", "cache_control": EPHEMERAL}
    assert made["messages"] == [{"role": "tool", "tool_call_id": "t", **(said if is_error else quiet)}]


def test_a_cache_mark_of_a_result_stands_at_its_end() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
    result = {"type": "tool_result", "tool_use_id": "t", "cache_control": EPHEMERAL}
    for content, where in (([text("a"), text("")], 0), ([text("a"), image], 1)):
        made = chat(messages=[{"role": "user", "content": [{**result, "content": content}]}])["messages"]
        assert made[where]["content"][-1]["cache_control"] == EPHEMERAL
        assert str(made).count("cache_control") == 1


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "f"},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        ),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
    ],
)
def test_tools_and_choices(choice: Any, expected: Any) -> None:
    schema = {"type": "object", "properties": {}}
    tools = [{"name": "f", "description": "d", "input_schema": schema, "cache_control": EPHEMERAL}]
    made = chat(tools=tools, tool_choice=choice)
    function = {"name": "f", "description": "d", "parameters": schema}
    assert made["tools"] == [{"type": "function", "function": function, "cache_control": EPHEMERAL}]
    assert {k: made[k] for k in ("tool_choice", "parallel_tool_calls") if k in made} == expected


def test_a_call_keeps_its_cache_mark() -> None:
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}, "cache_control": EPHEMERAL}
    (_, answer) = chat(messages=[*HI, {"role": "assistant", "content": [call]}])["messages"]
    function = {"name": "f", "arguments": '{"a":1}'}
    assert answer["tool_calls"] == [
        {"id": "t", "type": "function", "function": function, "cache_control": EPHEMERAL}
    ]


@pytest.mark.parametrize(
    ("body", "reasoning"),
    [
        (
            {"thinking": {"type": "enabled", "budget_tokens": 2000}},
            {"max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 2000}},
        ),
        ({"thinking": {"type": "adaptive"}}, {"enabled": True, "thinking": {"type": "adaptive"}}),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
            {"effort": "low", "thinking": {"type": "adaptive"}},
        ),
        (
            {"thinking": {"type": "adaptive", "display": "omitted"}},
            {"enabled": True, "thinking": {"type": "adaptive", "display": "omitted"}},
        ),
        ({"thinking": {"type": "disabled"}}, {"enabled": False}),
        ({"output_config": {"effort": "high"}}, {"effort": "high"}),
        ({}, None),
    ],
)
def test_thinking_is_reasoning(body: Any, reasoning: Any) -> None:
    assert chat(**body).get("reasoning") == reasoning


@pytest.mark.parametrize("older", [False, True])
def test_a_schema_for_the_answer(older: bool) -> None:
    schema = {"type": "object"}
    wanted = {"type": "json_schema", "schema": schema}
    made = chat(**({"output_format": wanted} if older else {"output_config": {"format": wanted}}))
    assert "output_format" not in made
    assert made["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }


def test_fallbacks_are_models_and_tiers_are_translated() -> None:
    assert chat(fallbacks=[{"model": "b"}, {"model": "c"}])["models"] == ["b", "c"]
    assert "service_tier" not in chat(service_tier="auto")
    assert chat(speed="fast")["service_tier"] == "priority"
    assert chat(service_tier="flex")["service_tier"] == "flex"


def test_what_has_no_effect_is_listed() -> None:
    body = {
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
        "thinking": {"type": "enabled", "budget_tokens": 5},
        "output_config": {"effort": "low", "task_budget": {"type": "tokens", "total": 20000}},
    }
    parsed = validated(MessagesRequest, {"model": "m", "messages": HI, **body})
    assert set(parsed.ignored) == {"context_management", "output_config.effort", "output_config.task_budget"}


CALL = {"type": "tool_use", "id": "a", "name": "b", "input": {}}
TOOL = {"name": "f", "input_schema": {}}


@pytest.mark.parametrize("depth", [1, 20, 300])
def test_blocks_hold_blocks_one_level_deep(depth: int) -> None:
    block: dict[str, Any] = text("x")
    for _ in range(depth):
        block = {"type": "document", "source": {"type": "content", "content": [block]}}
    if depth == 1:
        assert said(block)[0]["content"] == "x"
        return
    with pytest.raises(RequestError, match=r"cannot hold one of type|Recursion error") as refused:
        said(block)
    assert len(refused.value.message) < 400


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [*HI, {"role": "user", "content": []}]}, "messages[1]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]},
            "messages[0].content[0].source",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "image", "source": PNG}]}]},
            "messages[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [CALL]}]},
            "messages[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [
                {"type": "document", "source": PNG, "citations": {"enabled": True}}]}]},
            "messages[0].content[0]",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [{"name": "f"}]}, "tools[0]"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": 10}, "max_tokens": 10}, "thinking.budget_tokens"),
        ({"fallbacks": [{"model": "b"}], "models": ["c"]}, "fallbacks"),
        ({"output_format": JSON, "output_config": {"format": JSON}}, "output_format"),
        ({"output_format": {"type": "xml"}}, "output_format.type"),
        ({"fallbacks": [{"model": "b", "max_tokens": 1}]}, "fallbacks[0].max_tokens"),
        ({"fallbacks": [{"model": "b"}] * 4}, "fallbacks"),
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management.edits[0]"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"container": "c1"}, "container"),
        ({"n": 2}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"system": [{"type": "image", "source": PNG}]}, "system"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_with_its_field(body: Any, param: str | None) -> None:
    with pytest.raises(RequestError) as refused:
        chat(**body)
    assert refused.value.status == 400
    assert refused.value.param == param
