"""Custom tools and namespaces of the Responses API, as Codex sends them; the upstream knows chat alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.support.server import Server, running_server
from tests.support.upstream import Script, Upstream
from tests.support.wire import chat_json, chunk, json_response, sse

ROUTES = """
providers:
  up: {{ type: openai, name: Up, base_url: "{url}" }}
models:
  m: {{ endpoints: [ {{ provider: up, model: m, cooldown: 0 }} ] }}
"""
PATCH = '*** Begin Patch\n*** Add File: a.py\n+print("hi")\n*** End Patch\n'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "x"+'}
TOOLS: Any = [
    {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False},
    {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": GRAMMAR},
    {"type": "namespace", "name": "mcp__maps", "description": "Tools about places.", "tools": [
        {"type": "function", "name": "weather", "description": "Of a place.", "parameters": SCHEMA},
        {"type": "custom", "name": "route", "format": {"type": "text"}},
    ]},
    {"type": "function", "name": "mcp__maps__route", "parameters": SCHEMA, "strict": False},
]  # fmt: skip
# As chat names them: a name that was taken is made another.
NAMES = ["weather", "apply_patch", "mcp__maps__weather", "mcp__maps__route_2", "mcp__maps__route"]
INPUTS = ['{"city": "Oslo"}', json.dumps({"input": PATCH}), "{}", '{"input": "A to B"}', '{"city": "B"}']
CALLS = [
    {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
    for n, (name, arguments) in enumerate(zip(NAMES, INPUTS, strict=True))
]
ITEMS: list[Any] = [
    {"type": "function_call", "call_id": "call_0", "name": "weather", "arguments": INPUTS[0]},
    {"type": "custom_tool_call", "call_id": "call_1", "name": "apply_patch", "input": PATCH},
    {"type": "function_call", "call_id": "call_2", "name": "weather", "arguments": "{}",
     "namespace": "mcp__maps"},
    {"type": "custom_tool_call", "call_id": "call_3", "name": "route", "input": "A to B",
     "namespace": "mcp__maps"},
    {"type": "function_call", "call_id": "call_4", "name": "mcp__maps__route", "arguments": INPUTS[4]},
]  # fmt: skip
Asked = tuple[OpenAI, Upstream, Server]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    folder: Path = tmp_path_factory.mktemp("custom")
    with (
        Upstream() as up,
        running_server(folder, ROUTES.format(url=up.base_url)) as server,
        OpenAI(base_url=server.base_url, api_key="unused", max_retries=0, timeout=60) as client,
    ):
        yield client, up, server


def calling(stream: bool, calls: list[Any]) -> Script:
    if not stream:
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return json_response({"object": "chat.completion", "choices": [choice]})
    pieces: list[Any] = []
    for index, call in enumerate(calls):
        arguments = call["function"]["arguments"]
        begun = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
        pieces.append(chunk({"tool_calls": [begun]}))
        pieces += [
            chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments[at : at + 5]}}]})
            for at in range(0, len(arguments), 5)
        ]
    return sse([*pieces, chunk({}, finish_reason="tool_calls")])


def answered(client: OpenAI, stream: bool, **body: Any) -> tuple[Any, list[Any]]:
    if not stream:
        return client.responses.create(model="m", **body), []
    with client.responses.stream(model="m", **body) as events:
        seen = list(events)
        return events.get_final_response(), seen


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_custom_tools_and_of_namespaces_go_there_and_back(asked: Asked, stream: bool) -> None:
    client, up, _ = asked
    up.enqueue(calling(stream, CALLS), chat_json("done"))
    response, events = answered(client, stream, input="hi", tools=TOOLS)
    told = [item.model_dump(exclude_none=True) for item in response.output]
    assert [{key: item[key] for key in want} for item, want in zip(told, ITEMS, strict=True)] == ITEMS
    if stream:
        deltas = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
        assert "".join(deltas) == f"{PATCH}A to B" and len(deltas) > 9
        done = [e.input for e in events if e.type == "response.custom_tool_call_input.done"]
        assert done == [PATCH, "A to B"]
    for item in told:
        item.pop("parsed_arguments", None)
    results = [
        {"type": item["type"] + "_output", "call_id": item["call_id"], "output": "ok"} for item in ITEMS
    ]
    answered(client, False, input=[{"role": "user", "content": "hi"}, *told, *results], tools=TOOLS)
    offered, history = (up.requests[-1].json()[name] for name in ("tools", "messages"))
    assert [tool["function"]["name"] for tool in offered] == NAMES
    assert [json.loads(call["function"]["arguments"]) for call in history[1]["tool_calls"]] == [
        json.loads(arguments) for arguments in INPUTS
    ]
    assert [call["function"]["name"] for call in history[1]["tool_calls"]] == NAMES
    assert [message["tool_call_id"] for message in history[2:]] == [call["id"] for call in CALLS]


def test_what_a_tool_is_about_is_said_to_the_model(asked: Asked) -> None:
    client, up, _ = asked
    up.enqueue(chat_json("done"))
    choice: Any = {"type": "custom", "name": "apply_patch"}
    answered(client, False, input="hi", tools=TOOLS, tool_choice=choice)
    sent = up.requests[-1].json()
    functions = [tool["function"] for tool in sent["tools"]]
    assert functions[0] == {"name": "weather", "parameters": SCHEMA, "strict": False}
    assert (
        functions[1]["description"] == 'Edits files.\n\nThe input must match this Lark grammar:\nstart: "x"+'
    )
    assert functions[1]["parameters"]["required"] == ["input"]
    assert functions[2]["description"] == "[mcp__maps: Tools about places.]\nOf a place."
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "apply_patch"}}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input": "cut\\', "cut"), ('"bare"', "bare"), ('{"patch": 1}', '{"patch": 1}'), ("", "{}")],
)
def test_arguments_that_hold_no_input_are_shown_as_they_came(asked: Asked, arguments: str, text: str) -> None:
    client, up, _ = asked
    call = {**CALLS[1], "function": {"name": "apply_patch", "arguments": arguments}}
    up.enqueue(calling(False, [call]))
    response, _ = answered(client, False, input="hi", tools=TOOLS)
    assert response.output[0].input == text


def test_names_that_are_too_long_or_odd_are_made_short(asked: Asked) -> None:
    client, up, _ = asked
    up.enqueue(chat_json("done"))
    inner = [{"type": "function", "name": name, "parameters": SCHEMA} for name in ("a" * 60, "a" * 61, "ö.b")]
    space: Any = {"type": "namespace", "name": "crm.eu", "description": "", "tools": inner}
    answered(client, False, input="hi", tools=[space])
    names = [tool["function"]["name"] for tool in up.requests[-1].json()["tools"]]
    assert len(set(names)) == 3 and max(map(len, names)) <= 64
    assert names[2] == "crm_eu____b"


def test_a_fault_in_a_namespace_is_told_where_it_is(asked: Asked) -> None:
    _, _, server = asked
    tools = [
        *TOOLS[:2],
        {"type": "namespace", "name": "n", "description": "", "tools": [{"type": "function"}]},
    ]
    status, refused = server.post("/v1/responses", {"model": "m", "input": "hi", "tools": tools})
    assert (status, refused["error"]["param"]) == (400, "tools[2].tools[0]")
    half = {"type": "custom", "name": "c", "format": {"type": "grammar"}}
    for odd in ({"type": "namespace", "name": "n"}, half, {"type": "tool_search"}):
        assert server.post("/v1/responses", {"model": "m", "input": "hi", "tools": [odd]})[0] == 400
