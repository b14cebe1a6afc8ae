"""Observers that are told later: every record once, in order, and at once to whoever reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

from structlog.testing import capture_logs

from ionrouter.observers import MAX_AT_ONCE, MAX_WAITING, DeferredObservers
from ionrouter.schema.events import RequestRecord
from tests.support.routes import Heard

LONG_S = 3600.0  # no turn comes by itself


def record(number: int) -> RequestRecord:
    return RequestRecord(f"gen-{number}", "chat", "m", False, 0.0, 0.1, 200)


def numbers(heard: Heard) -> list[int]:
    return [int(each.id.removeprefix("gen-")) for each in heard.records]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_they_hear_a_moment_later_of_all_in_order() -> None:
    first, second = Heard(), Heard()
    deferred = DeferredObservers((first, second))
    for number in range(3):
        deferred.observe(record(number))
    assert numbers(first) == []
    await until(lambda: len(second.records) == 3)
    assert numbers(first) == numbers(second) == [0, 1, 2]
    deferred.observe(record(3))  # another turn comes
    await until(lambda: len(first.records) == 4)


async def test_between_two_looks_at_the_loop_a_few_are_told() -> None:
    heard, seen = Heard(), [0]
    deferred = DeferredObservers((heard,), delay_s=0.0)
    for number in range(MAX_WAITING):
        deferred.observe(record(number))
    async with asyncio.timeout(20):
        while seen[-1] < MAX_WAITING:
            await asyncio.sleep(0)
            seen.append(len(heard.records))
    assert max(after - before for before, after in pairwise(seen)) == MAX_AT_ONCE
    assert numbers(heard) == list(range(MAX_WAITING))


async def test_no_more_wait_than_is_said_however_many_come() -> None:
    heard = Heard()
    deferred = DeferredObservers((heard,), delay_s=LONG_S)
    for number in range(10 * MAX_WAITING):
        deferred.observe(record(number))
        assert number + 1 - len(heard.records) <= MAX_WAITING
    deferred.flush()
    assert numbers(heard) == list(range(10 * MAX_WAITING))


async def test_who_flushes_has_all_of_them_told_and_once() -> None:
    heard = Heard()
    deferred = DeferredObservers((heard,), delay_s=0.001)
    for number in range(50):
        deferred.observe(record(number))
    deferred.flush()
    deferred.flush()
    assert numbers(heard) == list(range(50))
    await asyncio.sleep(0.02)  # its turn finds nothing
    assert len(heard.records) == 50


async def test_after_the_close_they_hear_at_once() -> None:
    heard = Heard()
    deferred = DeferredObservers((heard,), delay_s=0.001)
    for number in range(50):
        deferred.observe(record(number))
    deferred.close()
    assert numbers(heard) == list(range(50))
    deferred.observe(record(50))
    assert len(heard.records) == 51
    deferred.close()
    await asyncio.sleep(0.02)
    assert numbers(heard) == list(range(51))


def test_a_record_that_comes_when_no_loop_runs_is_told_at_once() -> None:
    heard = Heard()
    deferred = DeferredObservers((heard,), delay_s=LONG_S)

    deferred.observe(record(0))
    assert numbers(heard) == [0]


async def test_one_that_fails_harms_no_other_and_is_told_of_the_next() -> None:
    heard = Heard()

    class Failing:
        num_told = 0

        def observe(self, record: RequestRecord) -> None:
            self.num_told += 1
            raise KeyError("gone")

    failing = Failing()
    deferred = DeferredObservers((failing, heard), delay_s=LONG_S)
    with capture_logs() as logs:
        deferred.observe(record(0))
        deferred.observe(record(1))
        deferred.flush()
    assert numbers(heard) == [0, 1] and failing.num_told == 2
    assert [(e["event"], e["request"]) for e in logs] == [("observer_failed", f"gen-{n}") for n in (0, 1)]


async def test_an_observer_that_reads_while_it_is_told_hears_of_none_twice() -> None:
    class Reading(Heard):
        def observe(self, record: RequestRecord) -> None:
            super().observe(record)
            deferred.flush()

    reading, other = Reading(), Heard()
    deferred = DeferredObservers((reading, other), delay_s=LONG_S)
    for number in range(3 * MAX_AT_ONCE):
        deferred.observe(record(number))
    deferred.flush()
    assert sorted(numbers(reading)) == sorted(numbers(other)) == list(range(3 * MAX_AT_ONCE))
