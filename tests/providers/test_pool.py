"""The cap on connections, whose turn it is under it, and what TLS hands on at its end; on real sockets."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest

from ionrouter.providers.http_faults import ConnectTooLong, NoFileLeft, NoPlaceLeft, NotResolved
from ionrouter.providers.outgoing import Outgoing
from ionrouter.providers.pool import AddressInfo, Pool, resolve
from tests.support.certificate import self_signed
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
    then_hang,
)

pytestmark = quiet_loops
event_loop_policy = both_loops


async def test_over_the_cap_a_request_waits_for_a_connection_and_no_longer_than_it_may() -> None:
    outgoing = Outgoing(max_connections=1)
    async with serving(then_hang(OK + b"Content-Length: 3\r\n\r\nhi")) as server:
        first = await post(outgoing, server.url)
        with pytest.raises(NoPlaceLeft):
            await post(outgoing, server.url, connect_s=0.05)
        waiting = asyncio.create_task(post(outgoing, server.url))
        await asyncio.sleep(0.01)
        first.close()
        (await waiting).close()
    await outgoing.close()


async def test_what_the_upstream_left_of_the_time_is_its_own_fault() -> None:
    async def hangs(_host: str, _port: int) -> Sequence[AddressInfo]:
        await asyncio.Event().wait()
        raise AssertionError

    outgoing = Outgoing(hangs)
    with pytest.raises(ConnectTooLong):
        await post(outgoing, "http://a.example/", connect_s=0.05)
    await outgoing.close()


@contextmanager
def no_file_left() -> Iterator[None]:
    """Take all files that this process may open, and let it open no more than a few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 8, hard))
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for file in held:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_file_table_that_is_full_is_not_the_upstreams_fault() -> None:
    async def finds_nothing(_host: str, _port: int) -> Sequence[AddressInfo]:
        raise socket.gaierror(socket.EAI_AGAIN, "as it says when it can open no file")

    outgoing, unresolved = Outgoing(max_connections=1), Outgoing(finds_nothing)
    async with serving(HI) as server:
        with no_file_left():
            with pytest.raises(NoFileLeft) as caught:
                await post(outgoing, server.url)
            assert caught.value.errno == errno.EMFILE
            with pytest.raises(NoFileLeft):
                await post(unresolved, server.url)
        with pytest.raises(NotResolved):
            await post(unresolved, server.url)
        assert await read(await post(outgoing, server.url)) == b"hi"  # its place was given back
    await outgoing.close()


async def test_certificates_that_could_not_be_read_are_read_again() -> None:
    """Else no upstream would be trusted until the next start."""
    if not ssl.create_default_context().get_ca_certs():
        pytest.skip("this system keeps its certificates in no file")
    pool = Pool((resolve, resolve), 1)
    with no_file_left(), pytest.raises(NoFileLeft):
        pool._context()
    assert pool._context().get_ca_certs()


async def test_an_idle_connection_makes_room_for_another_upstream() -> None:
    outgoing = Outgoing(max_connections=1)
    async with serving(HI) as one, serving(HI) as other:
        assert await read(await post(outgoing, one.url)) == b"hi"
        assert await read(await post(outgoing, other.url)) == b"hi"
        assert len(outgoing) == 1
    await outgoing.close()


def answered_at(free: asyncio.Event) -> Script:
    async def play(writer: Writer, _reader: Reader) -> None:
        await free.wait()
        writer.write(HI)

    return play


async def test_a_connection_that_comes_free_serves_who_waits_for_one() -> None:
    outgoing, free = Outgoing(max_connections=1), asyncio.Event()

    async def asked(url: str) -> bytes:
        return await read(await post(outgoing, url))

    async with serving(answered_at(free)) as one, serving(answered_at(free)) as other:
        tasks = []
        for server in (one, one, other, other, one):
            tasks.append(asyncio.create_task(asked(server.url)))
            await asyncio.sleep(0.02)
        free.set()
        assert await asyncio.gather(*tasks) == [b"hi"] * 5
        assert len(outgoing) == 1
    # Those that go on to the same upstream went on over the same connection.
    assert [number for number, _ in one.heard] == [1, 1, 2] and [n for n, _ in other.heard] == [1, 1]
    await outgoing.close()


async def test_who_waits_for_a_connection_is_served_in_turn_and_may_leave() -> None:
    outgoing, served = Outgoing(max_connections=2), list[int]()

    async def asked(url: str, number: int) -> None:
        await read(await post(outgoing, url))
        served.append(number)

    async def slowly(writer: Writer, _reader: Reader) -> None:
        await asyncio.sleep(0.02)
        writer.write(HI)

    async with serving(slowly) as server:
        tasks = []
        for number in range(12):
            tasks.append(asyncio.create_task(asked(server.url, number)))
            await asyncio.sleep(0.001)
        leaving = [4, 5, 7]
        for number in leaving:
            tasks[number].cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for number, task in enumerate(tasks) if number in leaving)
        stayed = [number for number in range(12) if number not in leaving]
        assert sorted(served) == stayed
        assert all(abs(place - number) <= 2 for place, number in enumerate(map(stayed.index, served)))
        assert server.num_connections == 2
        await asyncio.gather(*(asked(server.url, 99) for _ in range(20)))  # no place was lost
    await outgoing.close()


async def test_who_leaves_just_as_its_turn_comes_passes_it_on() -> None:
    outgoing, free = Outgoing(max_connections=1), asyncio.Event()
    async with serving(answered_at(free)) as server:
        first = asyncio.create_task(post(outgoing, server.url))
        await asyncio.sleep(0.02)
        second, third = (asyncio.create_task(post(outgoing, server.url)) for _ in range(2))
        await asyncio.sleep(0.02)
        free.set()
        answer = await first
        assert await answer.read(10) == b"hi"
        answer.release(0.0)  # wakes the second
        second.cancel()
        assert await read(await third) == b"hi"
        assert second.cancelled()
    await outgoing.close()


@contextmanager
def closing_over_tls(answer: bytes, *, is_announced: bool) -> Iterator[str]:
    """Answers one request over TLS and closes at once, with or without a close_notify before the end."""
    context = self_signed()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            plain, _ = listener.accept()
            with context.wrap_socket(plain, server_side=True) as secure:
                heard = b""
                while b"{}" not in heard:
                    heard += secure.recv(65536)
                secure.sendall(answer)
                if is_announced:
                    secure.unwrap()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}/v1/x"
        thread.join(GUARD_S)


@pytest.mark.parametrize("is_announced", [True, False])
@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_all_that_came_over_tls_before_its_end_is_read(framing: str, is_announced: bool) -> None:
    """Reading pauses where much is unread; the end comes while it does."""
    outgoing, body = Outgoing(), bytes(range(256)) * 12_000
    outgoing._pool._tls = ssl._create_unverified_context()
    chunk = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
    told = b"Content-Length: %d\r\n\r\n%s" if framing == "length" else chunk
    with closing_over_tls(OK + told % (len(body), body), is_announced=is_announced) as url:
        answer = await post(outgoing, url)
        await asyncio.sleep(0.2)
        assert await read(answer) == body
    await outgoing.close()
