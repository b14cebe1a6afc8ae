"""Claude through the real litellm, in the whole server, asked on every surface; Anthropic is scripted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import (
    Anthropic,
    APIStatusError,
    BadRequestError,
    InternalServerError,
    RateLimitError,
)
from anthropic._exceptions import ContentTooLargeError, GatewayTimeoutError, ServiceUnavailableError
from openai import OpenAI

from tests.support.server import GUARD_S, Server, running_server
from tests.support.translated_wire import Part, anthropic_event, events, streamed, whole
from tests.support.upstream import Cut, Script, Upstream, chunked, error, json_response, raw

pytestmark = pytest.mark.xdist_group("hosted")  # one litellm worker: 300 MB and 10 s

ROUTES = """
providers:
  anthropic:
    {{ type: litellm, litellm_provider: anthropic, name: Anthropic, base_url: {up}, keys: [CLAUDE_KEY] }}
routing: {{ explore: 0 }}
models:
  anthropic/claude: {{ endpoints: [ {{ provider: anthropic, model: claude-sonnet-4-5, cooldown: 0 }} ],
                      input_modalities: [text, image, file] }}
patterns:
  "claude-*": {{ provider: anthropic }}
"""
MODEL = "anthropic/claude"
Asked = tuple[Server, Upstream]


@pytest.fixture(scope="module")
def claude(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    folder: Path = tmp_path_factory.mktemp("claude")
    with (
        Upstream(whole("anthropic", [("text", "warm")], "stop")) as up,
        running_server(folder, ROUTES.format(up=up.url), env={"CLAUDE_KEY": "claude-key-123456"}) as server,
    ):
        deadline = time.monotonic() + GUARD_S
        while server.chat(model=MODEL)[0] != 200:  # litellm's import takes a while
            assert time.monotonic() < deadline, server.log
            time.sleep(0.5)
        up.default = None
        yield server, up


def script(stream: bool, parts: list[Part], finish: str) -> Script:
    return (streamed if stream else whole)("anthropic", parts, finish)


@pytest.mark.parametrize("stream", [True, False])
def test_signed_thoughts_survive_a_client_of_responses_that_knows_openais_fields_alone(
    claude: Asked, stream: bool
) -> None:
    """As Codex keeps a thought: its summary, its text and what is encrypted. Claude refuses it unsigned."""
    server, up = claude
    tool: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
    asked: Any = {"model": MODEL, "store": False, "tools": [tool], "include": ["reasoning.encrypted_content"],
                  "reasoning": {"max_tokens": 2000}, "max_output_tokens": 4000}  # fmt: skip
    first: list[Part] = [("thinking", "hm", "SIG"), ("text", "I look."), ("tool", "toolu_1", "f", '{"a": 1}')]
    up.enqueue(script(stream, first, "tools"), script(stream, [("text", "done")], "stop"))
    with OpenAI(base_url=server.base_url, api_key="unused", max_retries=0) as client:
        history: Any = [{"role": "user", "content": "hi"}]
        for item in answered(client, stream, input=history, **asked).output:
            told = item.model_dump()
            names = (
                "type",
                "summary",
                "content",
                "encrypted_content",
                "role",
                "call_id",
                "name",
                "arguments",
            )
            history.append({name: told[name] for name in names if told.get(name) is not None})
        history.append({"type": "function_call_output", "call_id": "toolu_1", "output": "4"})
        assert answered(client, stream, input=history, **asked).output_text == "done"
    _, said, result = up.requests[-1].json()["messages"]
    assert said["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "SIG"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
    ]
    assert result["content"][0]["tool_use_id"] == "toolu_1"


def answered(client: OpenAI, stream: bool, **body: Any) -> Any:
    if not stream:
        return client.responses.create(**body)
    with client.responses.stream(**body) as events:
        for _ in events:
            pass
        return events.get_final_response()


@pytest.mark.parametrize("stream", [True, False])
def test_the_stop_string_is_told_in_anthropics_words(claude: Asked, stream: bool) -> None:
    server, up = claude
    up.enqueue(script(stream, [("text", "A")], "string"))
    body = {"model": MODEL, "max_tokens": 9, "stop_sequences": ["STOP", "END"], "stream": stream}
    status, answer = server.post("/v1/messages", {**body, "messages": [{"role": "user", "content": "hi"}]})
    assert status == 200
    if stream:
        events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: ")]
        answer = next(event["delta"] for event in events if event["type"] == "message_delta")
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "END")


HI: Any = {"role": "user", "content": "hi"}
MIXED: list[Part] = [
    ("thinking", "first", "SIG1"), ("text", "I look."), ("tool", "toolu_1", "f", '{"a": 1}'),
    ("thinking", "second", "SIG2"), ("text", "And "), ("text", "again."), ("tool", "toolu_2", "g", "{}"),
]  # fmt: skip
BLOCKS: list[Any] = [
    {"type": "thinking", "thinking": "first", "signature": "SIG1"},
    {"type": "text", "text": "I look."},
    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
    {"type": "thinking", "thinking": "second", "signature": "SIG2"},
    {"type": "text", "text": "And "},
    {"type": "text", "text": "again."},
    {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
]
RESULTS = [{"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": str(n)} for n in (1, 2)]
USED_TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("f", "g")]


@pytest.mark.parametrize("stream", [True, False])
def test_a_turn_of_mixed_blocks_goes_to_claude_in_its_own_order(claude: Asked, stream: bool) -> None:
    """Claude checks where its signed thoughts stand: one that was moved is refused."""
    server, up = claude
    hidden, other = ({"type": "redacted_thinking", "data": data} for data in ("SEALED", "SHUT"))
    turns = ([*BLOCKS], [*BLOCKS[:3], hidden, BLOCKS[1], other, BLOCKS[6]], [BLOCKS[2], BLOCKS[1], BLOCKS[6]])
    for turn in turns:
        up.enqueue(script(stream, [("text", "done")], "stop"))
        history = [
            HI,
            {"role": "assistant", "content": turn},
            {"role": "user", "content": RESULTS},
        ]
        body = {"model": MODEL, "max_tokens": 4000, "tools": USED_TOOLS, "stream": stream,
                "thinking": {"type": "enabled", "budget_tokens": 2000}, "messages": history}  # fmt: skip
        assert server.post("/v1/messages", body)[0] == 200
        assert up.requests[-1].json()["messages"][1] == {"role": "assistant", "content": turn}


@pytest.mark.parametrize("stream", [True, False])
def test_a_turn_of_mixed_blocks_comes_from_claude_in_its_own_order(claude: Asked, stream: bool) -> None:
    server, up = claude
    up.enqueue(script(stream, MIXED, "tools"))
    tools: Any = USED_TOOLS
    with Anthropic(base_url=f"{server.url}/api", api_key="unused", max_retries=0) as client:
        asked: Any = {"model": MODEL, "max_tokens": 4000, "tools": tools, "messages": [HI],
                      "thinking": {"type": "enabled", "budget_tokens": 2000}}  # fmt: skip
        if stream:
            with client.messages.stream(**asked) as events:
                said = events.get_final_message()
        else:
            said = client.messages.create(**asked)
    joined = {"type": "text", "text": "And again."}
    told = [block.model_dump() for block in said.content]
    wanted = [*BLOCKS[:4], joined, BLOCKS[6]]
    assert [{name: block[name] for name in want} for block, want in zip(told, wanted, strict=True)] == wanted


@pytest.mark.parametrize("stream", [True, False])
def test_items_of_a_mixed_turn_keep_their_order_both_ways(claude: Asked, stream: bool) -> None:
    server, up = claude
    up.enqueue(script(stream, MIXED, "tools"), script(stream, [("text", "done")], "stop"))
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("f", "g")]
    asked: Any = {"model": MODEL, "tools": tools, "include": ["reasoning.encrypted_content"],
                  "reasoning": {"max_tokens": 2000}, "max_output_tokens": 4000}  # fmt: skip
    with OpenAI(base_url=server.base_url, api_key="unused", max_retries=0) as client:
        items = [
            item.model_dump(exclude_none=True)
            for item in answered(client, stream, input="hi", **asked).output
        ]
        kinds = ["reasoning", "message", "function_call"]
        assert [item["type"] for item in items] == kinds * 2
        results = [{"type": "function_call_output", "call_id": f"toolu_{n}", "output": "x"} for n in (1, 2)]
        answered(client, stream, input=[HI, *items, *results], **asked)
    joined = {"type": "text", "text": "And again."}
    assert up.requests[-1].json()["messages"][1]["content"] == [*BLOCKS[:4], joined, BLOCKS[6]]


PICTURE: Any = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
}
PAPER: Any = {
    "type": "document",
    "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
}
MARK: Any = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


@pytest.mark.parametrize("stream", [True, False])
def test_a_result_holds_its_pictures_and_whether_it_failed(claude: Asked, stream: bool) -> None:
    server, up = claude
    seen: Any = {"type": "text", "text": "seen"}
    results = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [seen, PICTURE, PAPER | MARK]},
        {"type": "tool_result", "tool_use_id": "toolu_2", "content": "it broke", "is_error": True},
    ]
    for after in ([], [{"type": "text", "text": "go on"}, PICTURE]):
        history = [HI, {"role": "assistant", "content": [BLOCKS[2], BLOCKS[6]]},
                   {"role": "user", "content": [*results, *after]}]  # fmt: skip
        up.enqueue(script(stream, [("text", "done")], "stop"))
        body = {"model": MODEL, "max_tokens": 99, "tools": USED_TOOLS, "stream": stream, "messages": history}
        assert server.post("/v1/messages", body)[0] == 200
        assert up.requests[-1].json()["messages"][2]["content"] == [*results, *after]


def test_a_paper_named_by_address_is_claudes_to_fetch(claude: Asked) -> None:
    server, up = claude
    paper: Any = {
        "type": "document",
        "source": {"type": "url", "url": "https://papers.invalid/a.pdf"},
        **MARK,
    }
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [paper]}
    history: Any = [{"role": "user", "content": [paper]}, {"role": "assistant", "content": [BLOCKS[2]]},
                    {"role": "user", "content": [result]}]  # fmt: skip
    up.enqueue(script(False, [("text", "done")], "stop"))
    asked = {"model": MODEL, "max_tokens": 99, "tools": USED_TOOLS, "messages": history}
    assert server.post("/v1/messages", asked)[0] == 200
    assert up.requests[-1].json()["messages"] == history


def test_fields_of_a_tool_that_chat_does_not_have_reach_claude(claude: Asked) -> None:
    server, up = claude
    up.enqueue(script(False, [("text", "done")], "stop"))
    own = {"strict": True, "eager_input_streaming": True, "input_examples": [{"a": 1}], **MARK}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    tool = {"name": "f", "description": "d", "input_schema": schema, **own}
    asked = {"model": MODEL, "max_tokens": 99, "tools": [tool], "messages": [HI]}
    assert server.post("/v1/messages", asked)[0] == 200
    assert up.requests[-1].json()["tools"] == [tool | {"type": "custom"}]


def test_a_tool_that_litellm_cannot_translate_is_the_callers_and_no_fault_of_claudes(claude: Asked) -> None:
    server, _ = claude
    status, answer = server.chat(model=MODEL, tools=[{"type": "custom", "custom": {"name": "patch"}}])
    assert (status, answer["error"]["metadata"]["error_type"]) == (400, "invalid_request")
    assert "provider's words: 'function'" in answer["error"]["message"]


# Anthropic's error types; each with its status, and the type that a caller of /messages is told: what is
# about our own account is not about the caller's.
KINDS = {
    "invalid_request_error": (400, "invalid_request_error"),
    "authentication_error": (401, "api_error"),
    "billing_error": (402, "api_error"),
    "permission_error": (403, "api_error"),
    "not_found_error": (404, "api_error"),
    "request_too_large": (413, "request_too_large"),
    "rate_limit_error": (429, "rate_limit_error"),
    "api_error": (500, "api_error"),
    "timeout_error": (504, "timeout_error"),
    "overloaded_error": (529, "overloaded_error"),
}
CLASSES = {
    "invalid_request_error": BadRequestError,
    "request_too_large": ContentTooLargeError,
    "rate_limit_error": RateLimitError,
    "timeout_error": GatewayTimeoutError,
    "overloaded_error": ServiceUnavailableError,
    "api_error": InternalServerError,
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_claudes_has_its_type_before_an_answer_and_in_the_midst_of_it(
    claude: Asked, kind: str
) -> None:
    server, up = claude
    status, told = KINDS[kind]
    body: Any = {"type": "error", "error": {"type": kind, "message": "the words of it"}}
    said = [*events("anthropic", [("text", "hi")], None), anthropic_event("error", error=body["error"])]
    up.enqueue(error(status, body), error(status, body), chunked(said))
    asked: Any = {"max_tokens": 9, "messages": [HI]}
    with Anthropic(base_url=f"{server.url}/api", api_key="unused", max_retries=0) as client:
        for stream in (False, True):
            with pytest.raises(CLASSES[told]) as refused:
                client.messages.create(**asked, model=f"claude-{kind}-{stream}", stream=stream)
            assert refused.value.body["error"]["type"] == told
            assert "{" not in refused.value.body["error"]["message"]
        model = (
            f"claude-{kind}"  # another endpoint each time: one that refused our account is not asked again
        )
        with pytest.raises(APIStatusError) as broken, client.messages.stream(**asked, model=model) as answer:
            for _ in answer:
                pass
    assert broken.value.body["error"]["type"] == told
    assert broken.value.body["error"]["message"] == "the words of it"


def test_a_prompt_is_counted_by_anthropic_itself_and_estimated_where_it_does_not_say(claude: Asked) -> None:
    server, up = claude
    call, result = (
        BLOCKS[:3],
        {"role": "user", "content": [{**RESULTS[0], "cache_control": {"type": "ephemeral"}}]},
    )
    asked: Any = {"model": MODEL, "system": "be brief", "tools": USED_TOOLS[:1],
                  "thinking": {"type": "enabled", "budget_tokens": 2000},
                  "messages": [HI, {"role": "assistant", "content": call}, result]}  # fmt: skip
    up.enqueue(json_response({"input_tokens": 4711}))
    with Anthropic(base_url=f"{server.url}/api", api_key="unused", max_retries=0) as client:
        assert client.messages.count_tokens(**asked).input_tokens == 4711
        sent = up.requests[-1]
        assert sent.path == "/v1/messages/count_tokens"
        assert sent.headers["x-api-key"] == "claude-key-123456"
        body = sent.json()
        assert body.keys() == {"model", "system", "tools", "thinking", "messages"}
        assert (body["model"], body["messages"][1]["content"]) == ("claude-sonnet-4-5", call)
        for script in (error(429), json_response({"input_tokens": "many"}), json_response([]), raw(Cut())):
            up.enqueue(script)
            told = client.messages.with_raw_response.count_tokens(**asked)
            assert "estimated" in told.headers["x-ionrouter-notes"]
            assert 0 < told.parse().input_tokens < 4711
