"""Connections against upstreams that cut, trickle, lie and babble; all on real sockets."""

from __future__ import annotations

import asyncio
import errno
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ionrouter.providers.connection import MAX_HEAD_BYTES
from ionrouter.providers.http_faults import (
    Cut,
    Disconnected,
    HttpFault,
    Malformed,
    NotConnected,
    NotResolved,
)
from ionrouter.providers.outgoing import Outgoing
from ionrouter.providers.pool import STALE_S
from tests.support.connections import (
    GUARD_S,
    HI,
    OK,
    Reader,
    Script,
    Writer,
    both_loops,
    post,
    quiet_loops,
    read,
    serving,
    then_close,
    then_hang,
)
from tests.support.packed import packed
from tests.support.upstream import refused_url

pytestmark = quiet_loops
event_loop_policy = both_loops


@pytest.fixture
async def out() -> AsyncIterator[Outgoing]:
    outgoing = Outgoing()
    yield outgoing
    await outgoing.close()
    assert len(outgoing) == 0


def coded(coding: bytes, body: bytes) -> bytes:
    return OK + b"Content-Encoding: %s\r\nContent-Length: %d\r\n\r\n%s" % (coding, len(body), body)


async def test_headers_are_joined_and_trailers_are_none_of_them(out: Outgoing) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nX-A: early\r\n\r\n"
    head = OK + b"X-A: 1\r\nTransfer-Encoding: chunked\r\nx-a: \xe4\r\nX-B:\r\n\r\n"
    async with serving(early + head + b"2\r\nhi\r\n0\r\nX-A: late\r\nX-C: late\r\n\r\n", HI) as server:
        await read(answer := await post(out, server.url))
        assert answer.headers == {"x-a": "1, \xe4", "transfer-encoding": "chunked", "x-b": ""}
        assert (await post(out, server.url)).headers == {"content-length": "2"}


async def test_the_request_is_what_was_meant(out: Outgoing) -> None:
    async with serving(HI) as server:
        assert await read(await post(out, server.url, b'{"a": 1}')) == b"hi"
    host = f"Host: 127.0.0.1:{server.port}"
    expected = f'POST /v1/x HTTP/1.1\r\n{host}\r\nX-A: b\r\nContent-Length: 8\r\n\r\n{{"a": 1}}'
    assert server.heard == [(1, expected.encode())]


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (HI, b"hi"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nhi\r\n1\r\n!\r\n0\r\nTrailer: t\r\n\r\n", b"hi!"),
        (OK + b"Content-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + HI, b"hi"),
        (coded(b"gzip", packed(b"x" * 5000)), b"x" * 5000),
        (coded(b"gzip", packed(b"x" * 5000) + packed(b"yy") + bytes(9)), b"x" * 5000 + b"yy"),
        (coded(b"identity, X-Gzip", packed(b"yy")), b"yy"),
        (coded(b"gzip", b""), b""),
        (coded(b"deflate", zlib.compress(b"yy")), b"yy"),
        (coded(b"deflate", zlib.compress(b"yy")[2:-4]), b"yy"),
    ],
    ids=["length", "chunked", "empty", "204", "1xx", "gzip", "members", "identity, gzip", "no gzip",
         "deflate", "bare deflate"],
)  # fmt: skip
async def test_a_connection_whose_answer_ended_cleanly_is_used_again(
    out: Outgoing, answer: bytes, body: bytes
) -> None:
    async with serving(answer) as server:
        assert [await read(await post(out, server.url)) for _ in range(3)] == [body] * 3
    assert [number for number, _ in server.heard] == [1, 1, 1]


@pytest.mark.parametrize(
    "script",
    [
        then_close(OK + b"\r\nhi"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi",
        HI + HI,
        HI + b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
    ids=["until the end", "1.0", "close", "a second answer", "1xx after the answer"],
)
async def test_a_connection_that_may_hold_more_is_not_used_again(out: Outgoing, script: Script) -> None:
    async with serving(script) as server:
        assert [await read(await post(out, server.url)) for _ in range(2)] == [b"hi", b"hi"]
    assert [number for number, _ in server.heard] == [1, 2]


async def test_what_comes_unasked_on_an_idle_connection_closes_it(out: Outgoing) -> None:
    async def babble(writer: Writer, _reader: Reader) -> None:
        writer.write(HI)
        await asyncio.sleep(0.05)
        writer.write(HI.replace(b"hi", b"no"))

    async with serving(babble, HI) as server:
        assert await read(await post(out, server.url)) == b"hi"
        async with asyncio.timeout(GUARD_S):
            await server.closed[0].wait()
        assert await read(await post(out, server.url)) == b"hi"
    assert [number for number, _ in server.heard] == [1, 2]


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        (then_close(), Disconnected),
        (then_close(b"HTTP/1.1 2"), Cut),
        (then_close(OK + b"Content-Length: 5\r\n\r\nhi"), Cut),
        (then_close(OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"), Cut),
        (b"<html>no</html>\r\n\r\n", Malformed),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi", Malformed),
        (OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi", Malformed),
        (OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", Malformed),
        (OK + b"Content-Length: -2\r\n\r\nhi", Malformed),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhi\r\n", Malformed),
        (OK + b"Transfer-Encoding: gzip\r\n\r\nhi", Malformed),
        (OK + b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\nhi", Malformed),
        (OK + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nhi", Malformed),
        (coded(b"gzip, br", b"hi"), Malformed),
        (coded(b"gzip", packed(b"x" * 5000)[:-9]), Cut),
        (coded(b"gzip", packed(b"yy") + packed(b"yy")[:9]), Cut),
        (coded(b"gzip", b"\x1f"), Cut),
        (coded(b"gzip", packed(b"yy")[:-8] + bytes(8)), Malformed),
        (coded(b"deflate", zlib.compress(b"yy")[:-1]), Cut),
        (then_close(OK + b"Content-Encoding: gzip\r\n\r\n" + packed(b"yy")[:-9]), Cut),
        (OK + b"A b: c\r\n\r\n", Malformed),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhi", Malformed),
        (b"HTTP/1.1 101 Switching\r\n\r\nhi", Malformed),
        (then_hang(OK + b"X: " + b"a" * MAX_HEAD_BYTES, b"a" * MAX_HEAD_BYTES), Malformed),
        (then_hang(OK + b"X: y\r\n" * (MAX_HEAD_BYTES // 3)), Malformed),
        (then_hang(b"HTTP/1.1 100 Continue\r\n\r\n" * (MAX_HEAD_BYTES // 10)), Malformed),
        (then_hang(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n" * MAX_HEAD_BYTES), Malformed),
    ],
)  # fmt: skip
async def test_a_broken_answer_is_a_fault_and_its_connection_goes(
    out: Outgoing, script: Script, fault: type[HttpFault]
) -> None:
    async with serving(script) as server:
        with pytest.raises(fault):
            await read(await post(out, server.url))
        async with asyncio.timeout(GUARD_S):
            await server.closed[0].wait()
    assert len(out) == 0


async def test_a_reset_in_the_middle_is_a_cut_after_what_came_before_it(out: Outgoing) -> None:
    async def reset(writer: Writer, _reader: Reader) -> None:
        writer.write(OK + b"Content-Length: 100\r\n\r\nhalf")
        await asyncio.sleep(0.05)
        writer.transport.abort()

    async with serving(reset) as server:
        answer = await post(out, server.url)
        assert await answer.readany() == b"half"
        with pytest.raises(Cut):
            await answer.readany()


async def test_a_trickle_is_read_as_it_comes(out: Outgoing) -> None:
    async with serving(then_close(*(bytes([byte]) for byte in HI))) as server:
        assert await read(await post(out, server.url)) == b"hi"


async def test_a_kept_connection_that_was_closed_meanwhile_costs_one_more_try(out: Outgoing) -> None:
    async with serving(HI, then_close(), HI) as server:
        assert await read(await post(out, server.url)) == b"hi"
        assert await read(await post(out, server.url)) == b"hi"
    assert [number for number, _ in server.heard] == [1, 1, 2]


async def test_a_kept_connection_that_is_closed_after_a_while_had_its_request_read(out: Outgoing) -> None:
    """The work may have been done, and would be billed twice."""

    async def works_and_dies(writer: Writer, _reader: Reader) -> None:
        await asyncio.sleep(1.2 * STALE_S)
        writer.close()

    async with serving(HI, works_and_dies, HI) as server:
        assert await read(await post(out, server.url)) == b"hi"
        with pytest.raises(Disconnected):
            await post(out, server.url)
        assert len(server.heard) == 2


async def test_a_fresh_connection_that_is_closed_without_an_answer_is_not_tried_again(out: Outgoing) -> None:
    async with serving(then_close(), HI) as server:
        with pytest.raises(Disconnected):
            await post(out, server.url)
    assert len(server.heard) == 1


async def test_a_kept_connection_cut_after_one_byte_is_not_tried_again(out: Outgoing) -> None:
    async with serving(HI, then_close(b"H"), HI) as server:
        await read(await post(out, server.url))
        with pytest.raises(Cut):
            await post(out, server.url)
    assert len(server.heard) == 2


async def test_an_answer_before_the_request_is_through_ends_the_connection(out: Outgoing) -> None:
    """What is left of the body must not become the next request."""
    early = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: Writer) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await early.wait()
        writer.close()

    listener = await asyncio.start_server(refuse, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    answer = await post(out, url, b"x" * 50_000_000)
    assert (answer.status, await read(answer)) == (413, b"no")
    assert len(out) == 0
    early.set()
    listener.close()


async def test_cancelling_closes_the_connection_at_once(out: Outgoing) -> None:
    async with serving(then_hang()) as server:
        task = asyncio.create_task(post(out, server.url))
        async with asyncio.timeout(GUARD_S):
            while not server.heard:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(out) == 0
        async with asyncio.timeout(GUARD_S):
            await server.closed[0].wait()


async def test_an_unread_body_is_not_buffered_without_bound(out: Outgoing) -> None:
    sent = 0

    async def flood(writer: Writer, _reader: Reader) -> None:
        nonlocal sent
        writer.write(OK + b"Content-Length: 1000000000\r\n\r\n")
        while sent < 200_000_000:
            writer.write(b"x" * 1_000_000)
            await writer.drain()
            sent += 1_000_000

    async with serving(flood) as server:
        answer = await post(out, server.url)
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 100_000_000
        answer.close()
        async with asyncio.timeout(GUARD_S):
            await server.closed[0].wait()


async def test_an_inflated_bomb_is_refused(out: Outgoing) -> None:
    packed = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join([packed.compress(bytes(10_000_000)) for _ in range(27)]) + packed.flush()
    head = OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    async with serving(head + bomb) as server:
        answer = await post(out, server.url)
        with pytest.raises(Malformed):
            async with asyncio.timeout(GUARD_S):
                while await answer.readany():
                    pass
        answer.close()


async def test_a_refused_connection_says_why(out: Outgoing) -> None:
    url, held = refused_url()
    with held, pytest.raises(NotConnected) as caught:
        await post(out, url)
    assert caught.value.errno == errno.ECONNREFUSED


async def test_a_name_that_does_not_resolve_is_its_own_fault() -> None:
    async def nothing(_host: str, _port: int) -> list[Any]:
        return []

    outgoing = Outgoing(nothing)
    with pytest.raises(NotResolved):
        await post(outgoing, "https://nowhere.example/")
    await outgoing.close()
