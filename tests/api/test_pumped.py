"""Streams whose events are written where they are read: the same bytes and books as the way that waits.

The whole path is real, from a scripted upstream's socket to the client's; only keys and stores are left out.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop
from msgspec.structs import asdict

from ionrouter.errors import FailureClass
from ionrouter.routing.table import Hedge
from ionrouter.schema.events import (
    Batch,
    ChoiceDelta,
    Chunk,
    RequestRecord,
    Taker,
)
from ionrouter.schema.request import InferenceRequest
from tests.support.edge import COMMITTED, edge_server, text
from tests.support.pumped import HI, World, paced, world
from tests.support.routes import endpoint, route, table
from tests.support.sse import chunks, content, data_lines
from tests.support.upstream import DONE, Cut, Hang, Script, Wait, WaitFor, chunk, sse, usage

GUARD_S = 20.0
WORDS = ["plain ", 'quo"ted \\ ', "Grüße 👋🏽 ", "two\nlines ", "", "} ", *(f"w{i} " for i in range(20))]


@pytest.fixture(
    params=[asyncio.DefaultEventLoopPolicy(), uvloop.EventLoopPolicy()], ids=["asyncio", "uvloop"]
)
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    policy: asyncio.AbstractEventLoopPolicy = request.param
    return policy


def spoken(words: Sequence[str], pause_s: float = 0.005) -> Script:
    """Role, a word an event, reasoning, a tool call in pieces, the finish, usage."""
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "find", "arguments": ""}}
    rest = [{"index": 0, "function": {"arguments": part}} for part in ('{"a"', ": 1", "}")]
    events = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"reasoning_content": piece}) for piece in ("so ", "then ")]
    events += [chunk({"content": word}) for word in words]
    events += [chunk({"tool_calls": [part]}) for part in (call, *rest)]
    events += [chunk({}, "tool_calls"), chunk(usage=usage(5, 33))]
    return sse(events, pause_s=pause_s)


def without_names(body: str) -> str:
    """Leave out what differs from request to request: ids and times."""
    body = re.sub(r"(gen|msg|resp|rs|fc|call)[-_][A-Za-z0-9_-]{8,}", r"\1-x", body)
    return re.sub(r'"(created|created_at|completed_at)":[0-9.]+', r'"\1":0', body)


def books(record: RequestRecord) -> dict[str, Any]:
    """What was counted, without times."""
    attempt = asdict(record.attempts[-1])
    times = ("started_at", "duration_s", "ttft_s", "max_gap_s", "queue_s")
    kept = {name: value for name, value in attempt.items() if name not in times}
    return {
        **kept,
        "all": (record.usage, record.cost, record.status, record.is_usage_estimated, record.error),
    }


SURFACES = pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/chat/completions", {}),
        ("/api/v1/chat/completions", {"reasoning": {"exclude": True}}),
        ("/api/v1/messages", {"max_tokens": 99}),
        ("/api/v1/responses", {"messages": None, "input": "hi"}),
    ],
    ids=["chat", "without reasoning", "messages", "responses"],
)


@SURFACES
async def test_a_pumped_stream_is_the_same_byte_for_byte(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    told, counted = [], []
    for pumps, pause_s in ((True, 0.005), (False, 0.005), (True, 0.0)):
        async with world(tmp_path / f"{pumps}{pause_s}", pumps=pumps) as w:
            told.append(without_names(await w.ask(spoken(WORDS, pause_s), path, **body)))
            counted.append(books(w.record))
            if pause_s and pumps:
                assert w.routes.taken > 5 and (w.routes.alone > 5) == ("chat" in path)
            elif not pumps:
                assert w.routes.taken == 0 and w.routes.yielded > 5
    assert told[0] == told[1] == told[2]
    assert counted[0] == counted[1] == counted[2]
    assert counted[0]["usage"].completion_tokens == 33 and counted[0]["num_tool_calls"] == 1


async def asked(w: World, version: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask over a plain socket that holds little, in the kernel too, and is closed after the answer."""
    body = json.dumps(HI).encode()
    head = (
        f"POST /api/v1/chat/completions HTTP/{version}\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    plain = socket.socket()
    plain.setblocking(False)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    await asyncio.get_running_loop().sock_connect(plain, (w.server.host, w.server.port))
    reader, writer = await asyncio.open_connection(sock=plain, limit=1024)
    writer.write(head.encode() + body)
    return reader, writer


async def rest_of(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[bytes, bytes]:
    """Read to the end; the head and the body."""
    async with asyncio.timeout(GUARD_S):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


def unchunked(body: bytes) -> tuple[str, int]:
    """Undo HTTP's chunks, strictly; also how many there were."""
    out, num = b"", 0
    while True:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        assert rest[length : length + 2] == b"\r\n"
        if length == 0:
            assert rest == b"\r\n"
            return out.decode(), num
        out, body, num = out + rest[:length], rest[length + 2 :], num + 1


async def test_http_1_1_gets_chunks_and_http_1_0_bare_bytes(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.up.default = spoken(WORDS)
        _, body = await rest_of(*await asked(w, "1.1"))
        taken = w.routes.taken
        told, num_chunks = unchunked(body)
        head, bare = await rest_of(*await asked(w, "1.0"))
        assert b"chunked" not in head.lower()
        assert without_names(bare.decode()) == without_names(told)
        assert taken > 5 and w.routes.taken > taken + 5 and num_chunks >= taken
        assert content(told) == "".join(WORDS)


async def test_usage_that_nobody_reports_is_estimated_from_what_was_pumped(tmp_path: Path) -> None:
    events = [chunk({"content": "1234"}) for _ in range(20)]
    for pumps in (True, False):
        async with world(tmp_path / str(pumps), pumps=pumps) as w:
            await w.ask(sse([*events, chunk({}, "stop")], pause_s=0.005))
            assert w.record.usage.completion_tokens == 20 and w.record.is_usage_estimated
            assert (w.routes.taken > 5) == pumps
            gap_s = w.record.attempts[-1].max_gap_s
            assert gap_s is not None and 0.004 < gap_s < 1


FAULTS: dict[str, Sequence[Any]] = {
    "cut": (Cut(),),
    "not JSON": (b"data: {no json\n\n", DONE),
    "an error": (b'data: {"error": {"message": "overloaded", "code": 529}}\n\n',),
    "no event at all": (b"event: x\ndata: [1, 2]\n\n",),
    "a finish of its own": (chunk({}, "error"), DONE),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_faults_end_a_pumped_stream_as_any_other(tmp_path: Path, fault: str) -> None:
    told, counted = [], []
    steps = [step for word in WORDS for step in (chunk({"content": word}), Wait(0.005))]
    for pumps in (True, False):
        async with world(tmp_path / str(pumps), pumps=pumps) as w:
            script = paced([*steps, *FAULTS[fault]])
            told.append(without_names(await w.ask(script)))
            counted.append(books(w.record))
            assert (w.routes.taken > 5) == pumps
    assert told[0] == told[1] and counted[0] == counted[1]
    assert content(told[0]) == "".join(WORDS)
    assert chunks(told[0])[-1]["error"] and counted[0]["after_commit"]
    assert counted[0]["failure"] is FailureClass.TRANSIENT


async def test_a_stall_after_pumped_events_is_timed_from_the_last_of_them(tmp_path: Path) -> None:
    steps = [step for _ in range(12) for step in (chunk({"content": "x"}), Wait(0.1))]  # longer than 0.6 s
    async with world(tmp_path, inter_token_s=0.6) as w:
        started_at = time.monotonic()
        told = await w.ask(paced([*steps, Hang()]))
        seconds = time.monotonic() - started_at
        assert content(told) == "x" * 12 and 1.6 < seconds < 6
        assert chunks(told)[-1]["error"] and "the next token" in (w.record.error or "")
        assert w.routes.taken > 4 and w.record.attempts[-1].after_commit
        assert await w.up.requests[0].closed_soon()


async def test_the_total_deadline_ends_a_stream_that_is_pumped_for_ever(tmp_path: Path) -> None:
    steps = [step for _ in range(400) for step in (chunk({"content": "x"}), Wait(0.02))]
    async with world(tmp_path, total_s=0.8) as w:
        started_at = time.monotonic()
        told = await w.ask(paced(steps))
        assert 0.7 < time.monotonic() - started_at < 5
        assert "a whole answer" in (w.record.error or "") and chunks(told)[-1]["error"]
        assert w.routes.taken > 3


async def test_a_client_that_leaves_ends_a_pumped_stream(tmp_path: Path) -> None:
    steps = [step for _ in range(4000) for step in (chunk({"content": "1234"}), Wait(0.01))]
    async with world(tmp_path) as w:
        w.up.default = paced(steps)
        async with w.server.session.post(w.server.url("/api/v1/chat/completions"), json=HI) as answer:
            await eventually(lambda: w.routes.taken >= 10)
            answer.close()
        assert await w.up.requests[0].closed_soon()
        await eventually(lambda: w.heard.records)
        assert w.record.status == 499 and w.record.attempts[-1].failure is FailureClass.CLIENT_LEFT
        assert w.record.usage.completion_tokens >= 10 and w.record.is_usage_estimated
        assert await w.server.edge.in_flight.wait_until_empty(5.0)


async def eventually(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(GUARD_S):
        while not is_so():  # noqa: ASYNC110 - it is in another thread, or a number
            await asyncio.sleep(0.005)


async def test_a_client_that_reads_nothing_holds_the_upstream_and_loses_nothing(tmp_path: Path) -> None:
    go = threading.Event()
    few = [step for i in range(20) for step in (chunk({"content": f"{i:06} "}), Wait(0.002))]
    many = [chunk({"content": f"{i:06} " + "x" * 20_000}) for i in range(20, 4000)]
    async with world(tmp_path) as w:
        w.up.default = paced([*few, WaitFor(go), *many, chunk({}, "stop"), DONE])
        reader, writer = await asked(w, "1.0")
        await eventually(lambda: w.routes.taken >= 10)
        go.set()
        before = -1
        while (now := w.up.requests[0].sent_bytes) != before or not w.routes.refused:
            before = now
            await asyncio.sleep(0.2)
        assert now < 60_000_000  # of 80 MB: what kernels' buffers do not hold waits at the upstream
        told = (await rest_of(reader, writer))[1].decode()
        words = content(told).replace("x", "").split()
        assert words == [f"{i:06}" for i in range(4000)]
        assert data_lines(told)[-1] == "[DONE]" and w.routes.yielded > 2


async def test_a_comment_between_pumped_events(tmp_path: Path) -> None:
    few = [step for i in range(10) for step in (chunk({"content": f"{i} "}), Wait(0.01))]
    script = paced([*few, Wait(0.5), *few, chunk({}, "stop"), chunk(usage=usage(1, 2)), DONE])
    async with world(tmp_path) as w:
        w.server.edge.settings = w.server.edge.settings.model_copy(update={"heartbeat_interval_s": 0.2})
        told = await w.ask(script)
        assert told.count(": OPENROUTER PROCESSING\n\n") >= 1
        assert content(told) == "0 1 2 3 4 5 6 7 8 9 " * 2
        assert w.routes.taken > 5 and w.routes.refused >= 1


async def test_no_comment_comes_between_pumped_events_that_come_in_time(tmp_path: Path) -> None:
    steady = [step for i in range(60) for step in (chunk({"content": f"{i} "}), Wait(0.04))]
    async with world(tmp_path) as w:
        w.server.edge.settings = w.server.edge.settings.model_copy(update={"heartbeat_interval_s": 1.2})
        told = await w.ask(paced([*steady, chunk({}, "stop"), DONE]))
        assert "PROCESSING" not in told and w.routes.alone > 40


async def test_whoever_wins_a_race_is_pumped(tmp_path: Path) -> None:
    async with world(tmp_path, hedge=Hedge(after_s=0.05, floor_s=0.0, budget=1.0)) as w:
        w.up.enqueue(paced([Hang()]))
        told = await w.ask(spoken(WORDS))
        assert content(told) == "".join(WORDS) and w.routes.taken > 5
        ends = [(attempt.role, attempt.failure) for attempt in w.record.attempts]
        assert ends == [("main", FailureClass.LOST_RACE), ("hedge", None)]
        assert await w.up.requests[0].closed_soon()


class Offering:
    """Routes that offer what the test says, and yield what was not taken."""

    def __init__(self, *offers: Chunk) -> None:
        self.offers, self.answers = offers, [False]
        self.table = table(route("m", endpoint("up")))

    async def batches(
        self, _: InferenceRequest, taker: Taker | None = None, tell: Any = None
    ) -> AsyncGenerator[Batch, None]:
        assert taker is not None
        self.answers = [taker.take([text("too early")])]
        yield [COMMITTED, text("first ")]
        for offer in self.offers:
            self.answers.append(taker.take([offer]))
            if not self.answers[-1]:
                yield [offer]

    def explain(self, _: InferenceRequest) -> Any:
        return {}


async def test_nothing_is_taken_before_the_stream_has_begun(tmp_path: Path) -> None:
    routes = Offering()
    async with edge_server(tmp_path, table=routes.table, router=routes) as server:
        _, _, told = await server.chat(model="m", stream=True)
    assert routes.answers == [False] and content(told) == "first "


async def test_what_cannot_be_encoded_is_a_crash_as_it_is_where_one_waits(tmp_path: Path) -> None:
    broken = Chunk((ChoiceDelta(0, {"content": object()}),))
    routes = Offering(text("second "), broken, text("never"))
    async with edge_server(tmp_path, table=routes.table, router=routes) as server:
        status, _, told = await server.chat(model="m", stream=True)
    assert status == 200 and content(told) == "first second "
    assert chunks(told)[-1]["error"]["code"] == 500
    assert routes.answers == [False, True, False]
