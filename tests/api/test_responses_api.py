"""POST responses over a real socket: the stream's order and end, errors before and after commit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from ionrouter.errors import AllAttemptsFailed, FailureClass, StreamBroken, UpstreamError
from ionrouter.schema.events import Chunk, Event
from ionrouter.schema.request import InferenceRequest
from tests.support.edge import COMMITTED, FINISHED, a_table, edge_server, stop, text
from tests.support.sse import data_lines

BODY: dict[str, Any] = {"model": "m", "input": "hi"}
PATHS = ["/api/v1/responses", "/v1/responses"]


def events(body: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data_lines(body) if line != "[DONE]"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_whole_response(tmp_path: Path, path: str) -> None:
    async with edge_server(tmp_path) as server:
        status, headers, body = await server.post(path, {**BODY, "store": False, "temperature": 0.5})
    assert (status, body["object"], body["status"]) == (200, "response", "completed")
    assert body["output_text"] == "Hello"
    assert (body["provider"], body["model"], body["temperature"]) == ("Fake", "acme/m", 0.5)
    assert body["id"] == headers["X-Generation-Id"]
    assert headers["X-Ionrouter-Route"].startswith("fake/m; ")
    assert body["usage"]["total_tokens"] == 9


async def test_a_stream_in_order_with_done_at_its_end(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        status, _, body = await server.post(PATHS[0], {**BODY, "stream": True})
    assert status == 200
    assert data_lines(body)[-1] == "[DONE]"
    assert [event["type"].removeprefix("response.") for event in events(body)] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in events(body)] == list(range(10))
    assert "event:" not in body


async def test_the_router_gets_a_chat_request(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        await server.post(PATHS[0], {**BODY, "instructions": "s", "max_output_tokens": 3, "session_id": "s1"})
        (request,) = server.routes.requests
    assert (request.kind, request.session_id, request.max_tokens) == ("chat", "s1", 3)
    assert [message["role"] for message in request.body["messages"]] == ["system", "user"]


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_of_its_tools_the_allowed_ones_are_asked_with(tmp_path: Path, mode: str) -> None:
    tools = [{"type": "function", "name": name, "parameters": {}} for name in "fg"]
    allowed = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "g"}]}
    chat = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed["tools"]}}
    functions = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in "fg"]
    async with edge_server(tmp_path) as server:
        _, _, answer = await server.post(PATHS[0], {**BODY, "tools": tools, "tool_choice": allowed})
        await server.chat(tools=functions, tool_choice=chat)
        unknown = {**allowed, "tools": [{"type": "function", "name": "h"}]}
        status, _, refused = await server.post(PATHS[0], {**BODY, "tools": tools, "tool_choice": unknown})
        requests = server.routes.requests
    assert [request.body["tools"] for request in requests] == [functions[1:], functions[1:]]
    assert {request.body["tool_choice"] for request in requests} == {mode}
    assert (answer["tool_choice"], len(answer["tools"])) == (allowed, 2)
    assert (status, refused["error"]["param"]) == (400, "tool_choice")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": [{"type": "web_search_call"}]}, "input[0]"),
        ({"plugins": [{"id": "fusion"}]}, "plugins[0]"),
        ({"provider": {"colour": "red"}}, "provider.colour"),
    ],
)
async def test_refusals_name_the_field(tmp_path: Path, body: Any, param: str) -> None:
    async with edge_server(tmp_path) as server:
        status, _, answer = await server.post(PATHS[0], {**BODY, **body})
    assert status == 400
    assert (answer["error"]["code"], answer["error"]["param"]) == (400, param)
    assert answer["error_type"] == "invalid_request"


async def test_an_error_before_commit_has_its_status(tmp_path: Path) -> None:
    async def fails(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        raise AllAttemptsFailed("slow down", 429, [], retry_after_s=3, error_type="rate_limit_exceeded")
        yield  # an iterator that never yields

    async with edge_server(tmp_path, fails) as server:
        status, headers, body = await server.post(PATHS[0], {**BODY, "stream": True})
    assert (status, headers["Retry-After"]) == (429, "3")
    assert (body["error"]["code"], body["error_type"]) == (429, "rate_limit_exceeded")


async def test_an_error_after_commit_ends_as_failed(tmp_path: Path) -> None:
    async def breaks(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        yield COMMITTED
        yield text("x")
        raise StreamBroken(UpstreamError(FailureClass.TRANSIENT, "wire cut", provider="Fake"))

    async with edge_server(tmp_path, breaks) as server:
        status, _, body = await server.post(PATHS[0], {**BODY, "stream": True})
        whole_status, _, _ = await server.post(PATHS[0], BODY)
    last = events(body)[-1]
    assert (status, last["type"]) == (200, "response.failed")
    assert last["response"]["error"] == {"code": "server_error", "message": "wire cut"}
    assert whole_status == 502


@pytest.mark.parametrize("ending", [stop(), stop("length"), None])
async def test_metadata_is_a_field_of_the_last_response(tmp_path: Path, ending: Chunk | None) -> None:
    async def ends(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        yield COMMITTED
        yield text("x")
        if ending is None:
            raise StreamBroken(UpstreamError(FailureClass.TRANSIENT, "wire cut", provider="Fake"))
        yield ending
        yield FINISHED

    asked = {"X-OpenRouter-Metadata": "enabled"}
    async with edge_server(tmp_path, ends) as server:
        _, _, body = await server.post(PATHS[0], {**BODY, "stream": True}, headers=asked)
        _, _, whole = await server.post(PATHS[0], BODY, headers=asked)
    *others, last = events(body)
    assert last["response"]["openrouter_metadata"]["requested"] == whole["openrouter_metadata"]["requested"]
    assert last["response"]["status"] in last["type"]
    assert "openrouter_metadata" not in last
    assert "openrouter_metadata" not in str(others)


async def test_heartbeats_are_comments(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def late(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        await go.wait()
        for event in (COMMITTED, text("x"), stop(), FINISHED):
            yield event

    async with edge_server(tmp_path, late, table=a_table(heartbeat_after_s=0.01)) as server:
        url, body = server.url(PATHS[0]), {**BODY, "stream": True}
        async with server.session.post(url, json=body) as answer:
            assert (await answer.content.readuntil(b"\n\n")).startswith(b":")
            go.set()
            rest = (await answer.read()).decode()
    last = json.loads(data_lines(rest)[-2])
    assert last["response"]["ionrouter"]["endpoint"] == "fake/m"
