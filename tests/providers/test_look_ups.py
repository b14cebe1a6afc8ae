"""Names are looked up in threads; one that nobody answers for must not keep the others waiting."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ionrouter.providers.look_ups import MAX_PER_NAME, LookUps

FOUND = [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 80))]


class NameServer:
    """Answers all names but `dead.example`, which it keeps until it is told to go on."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.goes_on = threading.Event()

    def __call__(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked.append(host)
        if host == "dead.example":
            self.goes_on.wait(20.0)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return FOUND


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    names = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", names)
    yield names
    names.goes_on.set()


async def test_a_name_that_nobody_answers_for_leaves_threads_for_others(names: NameServer) -> None:
    look_ups = LookUps(MAX_PER_NAME + 1, "test")
    waiting = [asyncio.create_task(look_ups("dead.example", 80)) for _ in range(20)]
    await asyncio.sleep(0.05)
    async with asyncio.timeout(5.0):
        assert await look_ups("alive.example", 80) == FOUND
    assert names.asked.count("dead.example") == MAX_PER_NAME
    names.goes_on.set()
    for told in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(told, socket.gaierror)


async def test_who_leaves_takes_no_answer_from_others_and_ended_look_ups_are_forgotten(
    names: NameServer,
) -> None:
    look_ups = LookUps(MAX_PER_NAME + 1, "test")
    waiting = [asyncio.create_task(look_ups("dead.example", 80)) for _ in range(MAX_PER_NAME + 2)]
    await asyncio.sleep(0.05)
    waiting[-1].cancel()
    names.goes_on.set()
    *stayed, left = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(left, asyncio.CancelledError)
    assert all(isinstance(told, socket.gaierror) for told in stayed)
    assert not look_ups._running
    assert await look_ups("alive.example", 80) == await look_ups("alive.example", 80) == FOUND
    assert names.asked.count("alive.example") == 2
