"""How answers end: failures before and after the first token, silence, clients that leave. Real sockets."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from ionrouter.errors import AllAttemptsFailed, FailureClass, RequestError, StreamBroken, UpstreamError
from ionrouter.schema.events import Event, Finished
from ionrouter.schema.request import InferenceRequest
from tests.support.edge import COMMITTED, COST, FINISHED, USAGE, a_table, edge_server, stop, text
from tests.support.sse import chunks, content

GENERATION_ID = re.compile(r"gen-\d{10}-[A-Za-z0-9]{20}")


@pytest.mark.parametrize("stream", [True, False])
async def test_all_endpoints_failing_is_a_real_status_and_one_envelope(tmp_path: Path, stream: bool) -> None:
    """G39, G63: nothing was sent yet, so the status is the failure's, with the soonest time to come back."""

    async def answer(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        a = UpstreamError(FailureClass.CAPACITY, "busy", 429, provider="A", retry_after_s=19.2)
        b = UpstreamError(FailureClass.CAPACITY, "busy", 429, provider="B", retry_after_s=45)
        raise AllAttemptsFailed(
            "Provider returned error", 429, [("a/m", a), ("b/m", b)], retry_after_s=19.2,
            error_type="rate_limit_exceeded",
        )  # fmt: skip
        yield COMMITTED

    async with edge_server(tmp_path, answer) as server:
        status, headers, body = await server.chat(stream=stream)
    assert status == 429
    assert headers["Content-Type"] == "application/json"
    assert headers["Retry-After"] == "20"
    assert GENERATION_ID.fullmatch(headers["X-Generation-Id"])
    error = body["error"]
    assert (error["code"], error["type"], error["param"]) == (429, "rate_limit_error", None)
    assert error["metadata"]["error_type"] == "rate_limit_exceeded"
    assert error["metadata"]["provider_name"] == "B"
    assert [p["provider"] for p in error["metadata"]["previous_errors"]] == ["A", "B"]


async def _breaks_after_hello(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
    yield COMMITTED
    yield text("Hel")
    await asyncio.sleep(0.05)
    raise StreamBroken(
        UpstreamError(FailureClass.TRANSIENT, "worker limit reached", 500, provider="Fake", code="E7")
    )


async def test_a_stream_that_breaks_ends_with_one_well_formed_error_chunk(tmp_path: Path) -> None:
    """G11, G25: a separate, parseable event, a choice that says "error", and no [DONE]."""
    async with edge_server(tmp_path, _breaks_after_hello) as server:
        status, _, body = await server.chat(stream=True)
    assert status == 200
    assert "[DONE]" not in body
    *_, last = chunks(body)
    assert content(body) == "Hel"
    assert last["error"]["code"] == 502
    assert last["error"]["message"] == "worker limit reached"
    assert last["error"]["metadata"]["provider_code"] == "E7"
    assert last["choices"][0]["index"] == 0
    assert last["choices"][0]["delta"] == {"content": ""}
    assert last["choices"][0]["finish_reason"] == "error"
    assert {"id", "object", "created", "model", "provider"} <= last.keys()
    assert [c for c in chunks(body) if "error" in c] == [last]


async def test_a_whole_answer_that_breaks_half_way_has_a_real_status(tmp_path: Path) -> None:
    async with edge_server(tmp_path, _breaks_after_hello) as server:
        status, _, body = await server.chat()
    assert (status, body["error"]["code"]) == (502, 502)


async def test_a_crash_is_a_masked_500(tmp_path: Path) -> None:
    async def answer(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        raise KeyError("sk-secret-inside")
        yield COMMITTED

    async with edge_server(tmp_path, answer) as server:
        status, headers, body = await server.chat(stream=True)
    assert (status, body["error"]["message"]) == (500, "internal error")
    assert headers["Content-Type"] == "application/json"
    assert "secret" not in json.dumps(body)


async def test_a_crash_in_a_stream_is_masked_in_its_metadata_too(tmp_path: Path) -> None:
    async def answer(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        yield COMMITTED
        yield text("x")
        raise KeyError("sk-secret-inside")

    async with edge_server(tmp_path, answer) as server:
        _, _, body = await server.chat(stream=True, headers={"X-OpenRouter-Metadata": "enabled"})
    assert chunks(body)[-1]["error"]["code"] == 500
    assert "secret" not in body and "openrouter_metadata" not in body


def _slow(pause_s: float, *, fails: bool = False):  # type: ignore[no-untyped-def]
    async def answer(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        await asyncio.sleep(pause_s)
        if fails:
            raise AllAttemptsFailed("Provider returned error", 503, [])
        yield COMMITTED
        yield text("ok")
        yield stop()
        yield FINISHED

    return answer


async def test_silence_is_filled_with_comments_and_the_route_comes_last(tmp_path: Path) -> None:
    """G104."""
    table = a_table(heartbeat_after_s=0.1)
    async with edge_server(tmp_path, _slow(0.5), table=table, heartbeat_interval_s=0.1) as server:
        _, headers, body = await server.chat(stream=True)
    assert body.startswith(": OPENROUTER PROCESSING\n\n")
    assert body.count(": OPENROUTER PROCESSING") >= 2
    assert headers["X-Ionrouter-Route"] == "pending"
    assert content(body) == "ok"
    assert chunks(body)[-1]["ionrouter"] == {
        "endpoint": "fake/m",
        "reason": "score 0.0002, first pick of 1",
        "attempt": 1,
        "dropped": [],
    }


async def test_a_failure_after_comments_is_an_error_event(tmp_path: Path) -> None:
    """G104, variant."""
    table = a_table(heartbeat_after_s=0.05)
    async with edge_server(tmp_path, _slow(0.2, fails=True), table=table) as server:
        status, _, body = await server.chat(stream=True)
    assert status == 200
    (only,) = chunks(body)
    assert only["error"]["code"] == 503
    assert only["choices"][0]["finish_reason"] == "error"
    assert only["model"] == "m"
    assert "[DONE]" not in body


async def test_a_whole_answer_gets_no_comments(tmp_path: Path) -> None:
    table = a_table(heartbeat_after_s=0.05)
    async with edge_server(tmp_path, _slow(0.3), table=table, heartbeat_interval_s=0.05) as server:
        _, _, body = await server.chat()
    assert body["choices"][0]["message"]["content"] == "ok"


def _raw_chat(*, stream: bool = True) -> bytes:
    body = json.dumps({"model": "m", "stream": stream, "messages": [{"role": "user", "content": "hi"}]})
    head = (
        "POST /api/v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return (head + body).encode()


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("when", ["before_first_token", "mid_stream"])
async def test_a_client_that_leaves_closes_the_answer_within_a_second(
    tmp_path: Path, how: str, when: str
) -> None:
    """G96, G97: the events' iterator is closed, wherever the answer stood, FIN or RST."""

    async def endless(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        if when == "before_first_token":
            await asyncio.Event().wait()
        yield COMMITTED
        while True:
            yield text("x")
            await asyncio.sleep(0.02)

    async with edge_server(tmp_path, endless) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(_raw_chat())
        if when == "mid_stream":
            await reader.readuntil(b"data: ")
        await server.routes.opened.wait()
        if how == "rst":
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        else:
            writer.close()
        async with asyncio.timeout(1.0):
            await server.routes.closed.wait()
        assert server.routes.num_open == 0
        assert await server.edge.in_flight.wait_until_empty(5.0)


async def test_a_client_that_leaves_a_whole_answer_closes_it_too(tmp_path: Path) -> None:
    async def endless(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        await asyncio.Event().wait()
        yield COMMITTED

    async with edge_server(tmp_path, endless) as server:
        _, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(_raw_chat(stream=False))
        await server.routes.opened.wait()
        writer.close()
        async with asyncio.timeout(1.0):
            await server.routes.closed.wait()


async def test_a_client_that_reads_nothing_stops_the_endpoint(tmp_path: Path) -> None:
    """Back-pressure: the endpoint may run ahead by what the sockets hold, no further."""
    produced = 0

    async def flood(_request: InferenceRequest) -> AsyncGenerator[Event, None]:
        nonlocal produced
        yield COMMITTED
        while True:
            produced += 1
            yield text("x" * 10_000)

    async with edge_server(tmp_path, flood) as server:
        _, writer = await asyncio.open_connection(server.host, server.port, limit=1024)
        writer.write(_raw_chat())
        before = -1
        while produced != before or produced == 0:
            before = produced
            await asyncio.sleep(0.2)
        assert produced < 10_000
        writer.transport.abort()
        async with asyncio.timeout(5.0):
            await server.routes.closed.wait()


async def test_no_request_stays_in_flight(tmp_path: Path) -> None:
    """G99: every POST route, streaming and not, ending well and badly, gives its place back."""

    async def sometimes(request: InferenceRequest) -> AsyncGenerator[Event, None]:
        if request.max_tokens == 1:
            raise RequestError("no")
        yield COMMITTED
        yield text("ok")
        if request.max_tokens == 2:
            raise StreamBroken(UpstreamError(FailureClass.TRANSIENT, "cut"))
        yield stop()
        yield Finished(USAGE, COST, (), None)

    async with edge_server(tmp_path, sometimes) as server:
        for path, base in (
            ("/api/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
            ("/v1/completions", {"prompt": "hi"}),
        ):
            for stream in (True, False):
                for limit in (1, 2, 3):
                    await server.post(path, {**base, "model": "m", "stream": stream, "max_tokens": limit})
        assert len(server.edge.in_flight) == 0
        assert server.routes.num_open == 0
        assert len(server.routes.requests) == 12
        _, _, metrics = await server.get("/metrics")
        assert "ionrouter_requests_in_flight 0.0" in metrics
