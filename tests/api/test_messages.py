"""POST messages over a real socket: events, the heartbeat, and Anthropic's envelope for every error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from ionrouter.errors import AllAttemptsFailed, AvailabilityError, FailureClass, StreamBroken, UpstreamError
from ionrouter.schema.events import ChoiceDelta, Chunk, Event
from ionrouter.schema.request import InferenceRequest
from tests.support.edge import COMMITTED, FINISHED, a_table, edge_server, stop, text

BODY: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
PATHS = ["/api/v1/messages", "/v1/messages"]


def events(body: str) -> list[dict[str, Any]]:
    """The events of a stream; each one's name must be its type."""
    found = []
    for block in body.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


@pytest.mark.parametrize("path", PATHS)
async def test_a_whole_message(tmp_path: Path, path: str) -> None:
    async with edge_server(tmp_path) as server:
        status, headers, message = await server.post(path, BODY)
    assert status == 200
    assert message["content"] == [{"type": "text", "text": "Hello", "citations": None}]
    assert (message["stop_reason"], message["provider"], message["model"]) == ("end_turn", "Fake", "acme/m")
    assert message["id"] == headers["X-Generation-Id"]
    assert headers["X-Ionrouter-Route"].startswith("fake/m; ")
    assert message["usage"]["input_tokens"] == 7
    assert message["usage"]["cost"] == pytest.approx(0.000011)


async def test_a_stream_of_named_events(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        status, headers, body = await server.post(PATHS[0], {**BODY, "stream": True})
    assert (status, headers["Content-Type"]) == (200, "text/event-stream")
    assert [event["type"] for event in events(body)] == [
        "message_start", "content_block_start", "content_block_delta", "content_block_delta",
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert "[DONE]" not in body
    estimated = events(body)[0]["message"]["usage"]
    assert estimated["input_tokens"] == 1  # "hi", at four characters a token
    assert events(body)[-2]["usage"]["input_tokens"] == 7


async def test_the_router_gets_a_chat_request(tmp_path: Path) -> None:
    body = {**BODY, "system": "s", "stop_sequences": ["E"], "session_id": "s1", "metadata": {"user_id": "u"}}
    async with edge_server(tmp_path) as server:
        await server.post(PATHS[0], body)
        (request,) = server.routes.requests
    assert (request.kind, request.session_id, request.max_tokens) == ("chat", "s1", 9)
    assert request.body["messages"][0] == {"role": "system", "content": "s"}
    assert request.body["stop"] == ["E"]
    assert {"max_tokens", "stop"} <= request.parameters


async def test_omitted_thoughts_are_asked_for_and_shown_without_their_text(tmp_path: Path) -> None:
    detail = {"type": "reasoning.text", "text": "secret", "signature": "S", "index": 0}

    async def thinks(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        yield COMMITTED
        yield Chunk(choices=(ChoiceDelta(0, {"reasoning": "secret", "reasoning_details": [detail]}),))
        yield Chunk(choices=(ChoiceDelta(0, {"content": "x"}, "stop"),))
        yield FINISHED

    thinking = {"type": "enabled", "budget_tokens": 5, "display": "omitted"}
    async with edge_server(tmp_path, thinks) as server:
        _, _, body = await server.post(PATHS[0], {**BODY, "thinking": thinking, "stream": True})
        (request,) = server.routes.requests
    assert request.body["reasoning"] == {"max_tokens": 5, "thinking": thinking}
    assert "secret" not in body
    assert '"signature_delta","signature":"S"' in body


async def test_what_had_no_effect_is_in_the_header(tmp_path: Path) -> None:
    edits = {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}
    async with edge_server(tmp_path) as server:
        _, headers, _ = await server.post(PATHS[0], {**BODY, **edits})
    assert headers["X-Ionrouter-Dropped"] == "context_management"


async def test_the_heartbeat_is_a_ping_and_a_late_route_is_told_at_the_end(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def late(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        await go.wait()
        for event in (COMMITTED, text("x"), stop(), FINISHED):
            yield event

    async with edge_server(tmp_path, late, table=a_table(heartbeat_after_s=0.01)) as server:
        url, body = server.url(PATHS[0]), {**BODY, "stream": True}
        async with server.session.post(url, json=body) as answer:
            assert await answer.content.readuntil(b"\n\n") == b'event: ping\ndata: {"type":"ping"}\n\n'
            go.set()
            rest = (await answer.read()).decode()
    told = [event for event in events(rest) if event["type"] != "ping"]
    assert told[0]["type"] == "message_start"
    assert told[-2]["ionrouter"]["endpoint"] == "fake/m"


async def test_an_error_after_commit_is_the_last_event(tmp_path: Path) -> None:
    async def breaks(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        yield COMMITTED
        yield text("x")
        raise StreamBroken(UpstreamError(FailureClass.TRANSIENT, "wire cut", status=503, provider="Fake"))

    async with edge_server(tmp_path, breaks) as server:
        status, headers, body = await server.post(PATHS[0], {**BODY, "stream": True})
        whole_status, _, whole = await server.post(PATHS[0], BODY)
    last = events(body)[-1]
    assert status == 200
    assert last["type"] == "error"
    assert last["error"] == {
        "type": "overloaded_error", "message": "wire cut", "error_type": "provider_overloaded"
    }  # fmt: skip
    assert last["request_id"] == headers["X-Generation-Id"]
    assert "message_stop" not in body
    assert (whole_status, whole["error"]["type"]) == (503, "overloaded_error")


FAILURES: list[tuple[Exception, int, str, str]] = [
    (AvailabilityError("no such", error_type="not_found"), 404, "not_found_error", "not_found"),
    (AvailabilityError("bad", status=400, error_type="invalid_request"), 400, "invalid_request_error",
     "invalid_request"),
    (AllAttemptsFailed("slow down", 429, [], retry_after_s=3, error_type="rate_limit_exceeded"), 429,
     "rate_limit_error", "rate_limit_exceeded"),
    (AllAttemptsFailed("busy", 503, [], error_type="provider_overloaded"), 503, "overloaded_error",
     "provider_overloaded"),
    (AllAttemptsFailed("broken", 502, []), 502, "api_error", "provider_unavailable"),
    (AllAttemptsFailed("late", 504, [], error_type="timeout"), 504, "timeout_error", "timeout"),
    (AllAttemptsFailed("long", 400, [], error_type="context_length_exceeded"), 400, "invalid_request_error",
     "context_length_exceeded"),
    (ValueError("ours"), 500, "api_error", "server"),
]  # fmt: skip


@pytest.mark.parametrize(("failure", "status", "kind", "error_type"), FAILURES)
async def test_failures_have_their_status_and_anthropics_type(
    tmp_path: Path, failure: Exception, status: int, kind: str, error_type: str
) -> None:
    async def fails(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        raise failure
        yield  # an iterator that never yields

    async with edge_server(tmp_path, fails) as server:
        found, headers, body = await server.post(PATHS[0], BODY)
    assert found == status
    assert body["type"] == "error"
    assert (body["error"]["type"], body["error"]["error_type"]) == (kind, error_type)
    assert body["request_id"] == headers["X-Generation-Id"]
    assert ("Retry-After" in headers) == (status == 429)


async def test_refusals_at_the_door_are_in_the_same_envelope(tmp_path: Path) -> None:
    async with edge_server(tmp_path, max_body_bytes=2000) as server:
        url = server.url(PATHS[0])
        answers = {}
        for name, options in {
            "form": {"data": "x", "headers": {"Content-Type": "text/plain"}},
            "broken": {"data": "{", "headers": {"Content-Type": "application/json"}},
            "large": {"json": {**BODY, "system": "x" * 3000}},
            "field": {"json": {**BODY, "max_tokens": "many"}},
        }.items():
            async with server.session.post(url, **options) as answer:  # type: ignore[arg-type]
                answers[name] = (answer.status, await answer.json())
        async with server.session.get(url) as answer:
            answers["method"] = (answer.status, await answer.json())
        async with server.session.post(server.url("/v1/messages/count"), json=BODY) as answer:
            answers["count"] = (answer.status, await answer.json())
    assert {name: status for name, (status, _) in answers.items()} == {
        "form": 415, "broken": 400, "large": 413, "field": 400, "method": 405, "count": 404,
    }  # fmt: skip
    for _, body in answers.values():
        assert body.keys() >= {"type", "error", "request_id"}
        assert body["type"] == "error"
        assert body["error"].keys() >= {"type", "message", "error_type"}
    assert answers["field"][1]["error"]["message"].startswith("max_tokens: should be an integer")
    assert answers["count"][1]["error"]["type"] == "not_found_error"


async def test_keys_come_in_either_header_and_wrong_ones_are_answered_in_the_envelope(tmp_path: Path) -> None:
    async with edge_server(tmp_path, asks_for_keys=True) as server:
        assert server.edge.keys is not None
        plain, _ = server.edge.keys.create("app", "inference", 1.0)
        none, _, body = await server.post(PATHS[0], BODY)
        wrong, _, _ = await server.post(PATHS[0], BODY, headers={"x-api-key": "sk-wrong"})
        right, _, _ = await server.post(PATHS[0], BODY, headers={"x-api-key": plain})
        bearer, _, _ = await server.post(PATHS[0], BODY, headers={"Authorization": f"Bearer {plain}"})
    assert (none, wrong, right, bearer) == (401, 401, 200, 200)
    assert body["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("path", PATHS)
async def test_tokens_are_counted_or_an_estimate_is_called_one(tmp_path: Path, path: str) -> None:
    body = {**BODY, "messages": [{"role": "user", "content": "x" * 400}]}
    async with edge_server(tmp_path) as server:
        status, headers, told = await server.post(f"{path}/count_tokens", body)
        assert (status, told) == (200, {"input_tokens": 100})
        assert "estimated" in headers["X-Ionrouter-Notes"]
        server.routes.counted = 93
        status, headers, told = await server.post(f"{path}/count_tokens", body)
        assert (status, told) == (200, {"input_tokens": 93})
        assert "X-Ionrouter-Notes" not in headers
        status, _, refused = await server.post(f"{path}/count_tokens", {**body, "messages": []})
    assert (status, refused["error"]["type"]) == (400, "invalid_request_error")
