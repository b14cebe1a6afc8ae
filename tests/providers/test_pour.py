"""An answer poured: its bytes are taken where they are read, and whoever waits is woken when that ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from ionrouter.providers.answer import PIECE_BYTES, Answer
from ionrouter.providers.connection import PlainConnection
from ionrouter.providers.http_faults import Cut, Malformed
from ionrouter.providers.pool import READ_BYTES

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class Wire:
    """Stands where a transport would."""

    is_paused = is_closed = False

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def writelines(self, _: Any) -> None:
        pass

    def abort(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass
class Pouring:
    """An answer whose bytes come when the test says so, into a list that has room for `room` pieces."""

    room: int = 1000
    taken: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.wire = Wire()
        self.read = memoryview(bytearray(READ_BYTES))
        self.connection = PlainConnection(lambda _: None, lambda _: None, self.read)
        self.connection.connection_made(cast(asyncio.Transport, self.wire))
        self.answer: Answer = self.connection.ask(b"", b"")
        self.come(HEAD)

    def come(self, data: bytes) -> None:
        for at in range(0, len(data), READ_BYTES):
            read = data[at : at + READ_BYTES]
            self.connection.get_buffer(-1)[: len(read)] = read
            self.connection.buffer_updated(len(read))

    def take(self, data: bytes) -> bool:
        self.taken.append(data)
        self.room -= 1
        return self.room > 0

    async def begin(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self.answer.pour(self.take))
        await asyncio.sleep(0)
        return task


async def test_what_comes_is_taken_before_the_task_runs() -> None:
    pouring = Pouring()
    task = await pouring.begin()
    pouring.come(chunk(b"one"))
    pouring.come(chunk(b"two") + chunk(b"three"))
    assert pouring.taken == [b"one", b"twothree"]  # what one read brought is one piece
    await asyncio.sleep(0)
    assert not task.done()
    pouring.come(END)
    await task
    assert pouring.taken == [b"one", b"twothree", b""]


async def test_framing_without_bytes_wakes_nobody() -> None:
    pouring = Pouring()
    task = await pouring.begin()
    pouring.come(b"3\r\n")
    await asyncio.sleep(0)
    assert pouring.taken == [] and not task.done()
    pouring.come(b"one\r\n")
    assert pouring.taken == [b"one"]
    task.cancel()


async def test_who_wants_no_more_gets_no_more_until_it_asks_again() -> None:
    pouring = Pouring(room=2)
    task = await pouring.begin()
    pouring.come(chunk(b"one"))
    pouring.come(chunk(b"two"))
    pouring.come(chunk(b"three"))
    assert pouring.taken == [b"one", b"two"]
    await task
    pouring.room = 2
    task = await pouring.begin()  # what waited comes first, at once
    assert pouring.taken == [b"one", b"two", b"three"]
    pouring.come(chunk(b"four"))
    await task
    assert pouring.taken == [b"one", b"two", b"three", b"four"]


@pytest.mark.parametrize("sizes", [[500_000], [1000] * 500])
async def test_much_is_taken_piece_by_piece_and_no_more_is_read_meanwhile(sizes: list[int]) -> None:
    sent = [bytes([ord("a") + number % 26]) * size for number, size in enumerate(sizes)]
    pouring = Pouring(room=2)
    task = await pouring.begin()
    pouring.come(b"".join(map(chunk, sent)))
    await task
    assert 0 < sum(map(len, pouring.taken)) <= 4 * PIECE_BYTES and pouring.wire.is_paused
    pouring.room = 1000
    task = await pouring.begin()
    assert b"".join(pouring.taken) == b"".join(sent) and not pouring.wire.is_paused
    assert max(map(len, pouring.taken)) < PIECE_BYTES + READ_BYTES
    pouring.come(chunk(b"z" * 500_000))  # who keeps up gets all of it where it is read
    assert sum(map(len, pouring.taken)) == 1_000_000 and not pouring.wire.is_paused
    pouring.come(END)
    await task


async def test_bytes_behind_a_cancellation_are_kept() -> None:
    pouring = Pouring()
    task = await pouring.begin()
    task.cancel()
    pouring.come(chunk(b"one"))  # before the task has heard of it
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pouring.taken == []
    assert await pouring.answer.readany() == b"one"


async def test_what_came_before_a_cut_is_taken_first() -> None:
    pouring = Pouring()
    task = await pouring.begin()
    pouring.come(chunk(b"one"))
    pouring.connection.connection_lost(None)
    with pytest.raises(Cut):
        await task
    assert pouring.taken == [b"one"]


async def test_what_came_with_a_fault_is_taken_first() -> None:
    pouring = Pouring()
    task = await pouring.begin()
    pouring.come(chunk(b"one") + b"no chunk\r\n")
    with pytest.raises(Malformed):
        await task
    assert pouring.taken == [b"one"]


async def test_the_last_bytes_and_the_end_come_after_each_other() -> None:
    pouring = Pouring()
    task = await pouring.begin()
    pouring.come(chunk(b"one") + END)
    await task
    assert pouring.taken == [b"one", b""]


async def test_nobody_pouring_bytes_wait_and_pause_the_connection() -> None:
    pouring = Pouring()
    for _ in range(5):
        pouring.come(chunk(b"x" * 40_000))
    assert pouring.wire.is_paused
    task = await pouring.begin()
    assert not pouring.wire.is_paused
    assert sum(map(len, pouring.taken)) == 200_000
    task.cancel()
