"""Rows of batches in both databases: claimed by one server, answered once, forgotten in time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from ionrouter.store.batches import LEASE_S, Answered, Batch, BatchStore
from tests.support.databases import Place

GOOD = Answered(200, "gen-1", '{"a": 1}', 10, 3, 0.5)


def a_batch(name: str = "batch_a", key: str = "k", num: int = 3, created_at: float | None = None) -> Batch:
    now = time.time() if created_at is None else created_at
    return Batch(name, key, "/v1/chat/completions", "m", "{}", "validating", now, now + 60.0, None, None, num)


@asynccontextmanager
async def opened(place: Place, owner: str) -> AsyncIterator[BatchStore]:
    store = BatchStore(place.database, owner)
    try:
        yield store
    finally:
        await store.close()


async def submitted(store: BatchStore, batch: Batch, max_live: int = 9) -> bool:
    return await store.submit(batch, [(f"r{n}", "{}") for n in range(batch.num_requests)], max_live)


async def test_one_server_runs_a_batch_until_it_lets_go(place: Place) -> None:
    async with opened(place, "one") as one, opened(place, "two") as two:
        assert await submitted(one, a_batch())
        (mine,) = await one.claim()
        assert (mine.id, mine.status) == ("batch_a", "in_progress")
        assert await two.claim() == ()
        assert [b.id for b in await one.claim()] == ["batch_a"]
        await one.release()
        assert [b.id for b in await two.claim()] == ["batch_a"]
        place.ask("UPDATE batch SET lease_until = lease_until - ?", (LEASE_S + 1,))
        assert [b.id for b in await one.claim()] == ["batch_a"]
        await two.finish("batch_a", "completed")  # it is not its own any more
        found = await one.find("batch_a", "k")
        assert found is not None
        assert found.is_live


async def test_a_line_has_its_first_answer_and_counts_once(place: Place) -> None:
    async with opened(place, "one") as store:
        await submitted(store, a_batch())
        await store.answer("batch_a", 1, GOOD)
        await store.answer("batch_a", 1, replace(GOOD, status=500, answer="{}"))
        await store.answer("batch_a", 2, Answered(402, "gen-2", "{}"))
        assert await store.unanswered("batch_a") == [0]
        assert (await store.body("batch_a", 0), await store.body("batch_a", 1)) == ("{}", None)
        found = await store.find("batch_a", "k")
        assert found is not None
        assert (found.num_completed, found.num_failed) == (1, 1)
        assert (found.prompt_tokens, found.completion_tokens, found.cost) == (10, 3, 0.5)
        (line,) = await store.lines("batch_a", 1, 1)
        assert (line.status, line.answer) == (200, GOOD.answer)


async def test_a_batch_is_the_key_s_own(place: Place) -> None:
    async with opened(place, "one") as store:
        await submitted(store, a_batch("batch_a", "k", created_at=1.0))
        await submitted(store, a_batch("batch_b", "k", created_at=2.0))
        await submitted(store, a_batch("batch_c", "other"))
        assert await store.find("batch_c", "k") is None
        first, second = await store.listed("k", None, 5)
        assert (first.id, second.id) == ("batch_b", "batch_a")
        assert await store.listed("k", first, 5) == [second]


async def test_a_key_has_so_many_that_are_not_over(place: Place) -> None:
    async with opened(place, "one") as store:
        assert await submitted(store, a_batch("batch_a"), max_live=1)
        assert not await submitted(store, a_batch("batch_b"), max_live=1)
        await store.claim()
        await store.finish("batch_a", "cancelled")
        assert await submitted(store, a_batch("batch_b"), max_live=1)


@pytest.mark.parametrize("num", [1, 100, 101, 250])
async def test_what_is_old_or_never_got_whole_is_forgotten(place: Place, num: int) -> None:
    now = time.time()
    async with opened(place, "one") as store:
        for name in ("batch_a", "batch_b", "batch_c"):
            await submitted(store, a_batch(name, num=num))
        place.ask("UPDATE batch SET status = 'hidden', created_at = 1.0 WHERE id = 'batch_b'")
        await store.claim()
        await store.finish("batch_a", "completed")
        await store.forget(now - 60.0, now)
        assert await store.find("batch_a", "k") is not None
        await store.forget(now + 60.0, now)
        assert await store.find("batch_a", "k") is None
        assert place.ask("SELECT id FROM batch") == [("batch_c",)]
        assert place.ask("SELECT DISTINCT batch_id FROM batch_line") == [("batch_c",)]
