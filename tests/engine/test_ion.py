"""The engine as asyncio sees it: whole answers, isolation, and nothing kept after anybody leaves."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ionrouter.engine.ion import (
    EngineClosed,
    EngineStuck,
    GenerationFailed,
    LocalEngine,
    PromptRefused,
    SamplingParams,
)
from ionrouter.engine.loading import EngineSettings, load_model
from ionrouter.engine.mailbox import TokenEvent
from ionrouter.errors import ConfigError
from tests.support.tiny_model import POISON, write_tiny_folder, write_tiny_model

GUARD_S = 60.0
GREEDY = SamplingParams(max_tokens=24, temperature=0.0)
LONG = SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=65_000, temperature=0.0, ignore_eos=True)
PROMPT = list(range(10, 40))


@asynccontextmanager
async def engine_of(path: Path, **settings: object) -> AsyncIterator[LocalEngine]:
    options = EngineSettings(str(path), **({"kv_memory_bytes": 4 << 20, "max_running": 16} | settings))
    engine = await LocalEngine.open(options, cache=path.parent)
    try:
        yield engine
    finally:
        await engine.close()


async def answer(engine: LocalEngine, prompt: list[int], params: SamplingParams = GREEDY) -> list[TokenEvent]:
    async with aclosing(engine.generate(prompt, params)) as events:
        return [event async for event in events]


async def text_of(engine: LocalEngine, prompt: list[int], params: SamplingParams = GREEDY) -> str:
    return "".join(event.text for event in await answer(engine, prompt, params))


async def soon(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GUARD_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


def all_blocks_free(engine: LocalEngine) -> bool:
    stats = engine.stats()
    return stats["blocks_free"] + stats["blocks_cached"] == stats["blocks_total"] and stats["running"] == 0


async def test_an_answer_counts_its_tokens_and_says_why_it_ended(tiny_model: Path) -> None:
    async with engine_of(tiny_model) as engine:
        events = await answer(engine, PROMPT)
    assert sum(event.num_tokens for event in events) == 24
    assert [event.finish for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].finish == "length"


async def test_many_at_once_say_what_each_says_alone(tiny_model: Path) -> None:
    prompts = [[10 + i, 11, 12 + i] * (i + 1) for i in range(12)]
    async with engine_of(tiny_model) as engine:
        alone = [await text_of(engine, prompt) for prompt in prompts]
        together = await asyncio.gather(*(text_of(engine, prompt) for prompt in prompts))
    assert list(together) == alone
    assert len(set(alone)) > 1


async def test_a_dropped_reader_gives_its_blocks_back(endless_model: Path) -> None:
    async with engine_of(endless_model, kv_memory_bytes=32 << 20) as engine:
        events = engine.generate(PROMPT, ENDLESS)
        await anext(events)
        assert not all_blocks_free(engine)
        await events.aclose()
        await soon(lambda: all_blocks_free(engine))
        await asyncio.wait_for(engine.wait_idle(), GUARD_S)
        assert engine.stats()["aborts"] == 1


async def test_a_cancelled_reader_gives_its_blocks_back(endless_model: Path) -> None:
    async with engine_of(endless_model, kv_memory_bytes=32 << 20) as engine:
        task = asyncio.create_task(answer(engine, PROMPT, ENDLESS))
        await soon(lambda: engine.stats()["running"] == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await soon(lambda: all_blocks_free(engine))


async def test_readers_that_come_and_go_at_random_leave_nothing_behind(tiny_model: Path) -> None:
    rng = random.Random(11)
    async with engine_of(tiny_model, max_running=8, kv_memory_bytes=1 << 20) as engine:
        expected = await text_of(engine, PROMPT)

        async def visit() -> str | None:
            await asyncio.sleep(rng.random() * 0.2)
            num_events = rng.choice([0, 1, 2, 5, None, None])
            text = ""
            async with aclosing(engine.generate(PROMPT, GREEDY)) as events:
                async for event in events:
                    text += event.text
                    num_events = None if num_events is None else num_events - 1
                    if num_events is not None and num_events < 0:
                        return None
            return text

        answers = await asyncio.wait_for(asyncio.gather(*(visit() for _ in range(120))), GUARD_S)
        whole = [answer for answer in answers if answer is not None]
        assert len(whole) > 20 and set(whole) == {expected}
        await soon(lambda: all_blocks_free(engine))


async def test_a_slow_reader_holds_up_nobody_and_loses_nothing(tiny_model: Path) -> None:
    async with engine_of(tiny_model) as engine:
        whole = await text_of(engine, PROMPT, LONG)
        async with aclosing(engine.generate(PROMPT, LONG)) as slow:
            first = await anext(slow)
            assert await text_of(engine, [50, 51, 52]) != ""
            await soon(lambda: engine.stats()["running"] == 0)
            await asyncio.sleep(0)  # the last events are delivered
            rest = [event async for event in slow]
    assert len(rest) <= 2, "what nobody read is one event, not hundreds"
    assert first.text + "".join(event.text for event in rest) == whole


async def test_a_prompt_that_can_never_run_is_refused_before_any_work(tiny_model: Path) -> None:
    async with engine_of(tiny_model) as engine:
        for prompt in ([], [10] * 512, [10**6], [-1]):
            with pytest.raises(PromptRefused, match="prompt"):
                await answer(engine, prompt)
        assert engine.stats()["steps"] == 0
        assert await text_of(engine, PROMPT) != ""


async def test_closing_ends_what_runs_and_what_comes(endless_model: Path) -> None:
    async with engine_of(endless_model, kv_memory_bytes=32 << 20) as engine:
        task = asyncio.create_task(answer(engine, PROMPT, ENDLESS))
        await soon(lambda: engine.stats()["running"] == 1)
        await engine.close()
        with pytest.raises(EngineClosed):
            await asyncio.wait_for(task, GUARD_S)
        with pytest.raises(EngineClosed):
            await answer(engine, PROMPT)
        assert not engine.load().ready
        await engine.close()


async def test_poisoned_logits_end_one_answer_and_leave_its_neighbours_alone(poisoned_model: Path) -> None:
    async with engine_of(poisoned_model) as engine:
        alone = await text_of(engine, PROMPT)
        healthy = asyncio.create_task(text_of(engine, PROMPT))
        with pytest.raises(GenerationFailed, match=r"\w"):
            await answer(engine, [10, POISON, 11])
        assert await healthy == alone
        assert engine.stats()["non_finite_rows"] >= 1
        await soon(lambda: all_blocks_free(engine))


async def test_the_load_says_how_busy_it_is(endless_model: Path) -> None:
    async with engine_of(endless_model, kv_memory_bytes=32 << 20) as engine:
        idle = engine.load()
        assert idle.ready and (idle.running, idle.waiting, idle.max_running) == (0, 0, 16)
        assert idle.blocks_free == idle.blocks_total > 0 and idle.load_s is not None
        async with aclosing(engine.generate(PROMPT, ENDLESS)) as events:
            await anext(events)
            assert engine.load().running == 1
        await answer(engine, PROMPT, LONG)
        assert (engine.load().decode_rate or 0) > 0


class HangingEngine:
    """Stands where the C++ engine stands: it has work and makes no progress."""

    context_length = 512

    def __init__(self, silent_s: float, *, is_broken: bool = False) -> None:
        self.event_fd, self._other = os.pipe()
        self._silent_s = silent_s
        self._is_broken = is_broken

    def stats(self) -> dict[str, float]:
        names = ("running", "waiting", "waiting_tokens", "blocks_free", "blocks_total")
        return dict.fromkeys(names, 1) | {"unresponsive_s": self._silent_s, "is_broken": self._is_broken}

    def submit(self, *_args: Any, **_params: Any) -> int:
        raise RuntimeError("the engine broke down: books")

    def drain(self) -> list[Any]:
        return []

    def close(self) -> None:
        os.close(self._other)


async def test_an_engine_that_hangs_is_not_ready(tiny_model: Path) -> None:
    settings = EngineSettings(str(tiny_model))
    loaded = await asyncio.to_thread(load_model, settings, cache=tiny_model.parent, progress=False)
    for silent_s, reason in ((1.0, None), (90.0, "unresponsive for 90 s")):
        engine = LocalEngine(loaded, HangingEngine(silent_s), settings, 0.0, time.monotonic)
        assert (engine.load().ready, engine.load().reason) == (reason is None, reason)
        await engine.close()


async def test_an_engine_that_broke_down_is_not_ready_and_says_so(tiny_model: Path) -> None:
    settings = EngineSettings(str(tiny_model))
    loaded = await asyncio.to_thread(load_model, settings, cache=tiny_model.parent, progress=False)
    engine = LocalEngine(loaded, HangingEngine(0.0, is_broken=True), settings, 0.0, time.monotonic)
    assert engine.load().reason == "broken down; it comes back with a restart"
    with pytest.raises(EngineStuck, match="broke down: books"):
        await answer(engine, PROMPT)
    await engine.close()


async def test_settings_choose_the_numerics_and_the_memory(tiny_model: Path) -> None:
    async with (
        engine_of(tiny_model, numerics="exact", kv_memory_bytes=1 << 20) as small,
        engine_of(tiny_model, numerics="exact", kv_memory_bytes=4 << 20) as large,
    ):
        assert large.stats()["blocks_total"] > small.stats()["blocks_total"]
        assert await text_of(large, PROMPT) == await text_of(small, PROMPT)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF" + b"\xff" * 64, b"not a model"])
def test_a_file_that_is_no_model_is_told_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"broken\.gguf"):
        load_model(EngineSettings(str(path)), cache=tmp_path, progress=False)


def test_a_folder_without_weights_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer.json: missing"):
        load_model(EngineSettings(str(tmp_path)), cache=tmp_path, progress=False)


async def test_a_hugging_face_folder_says_what_its_gguf_twin_says(tmp_path: Path) -> None:
    twin = write_tiny_model(tmp_path / "twin.gguf", pre="qwen2")
    folder = write_tiny_folder(tmp_path / "folder")
    async with engine_of(twin, numerics="exact") as one, engine_of(folder, numerics="exact") as other:
        text = "the quick brown fox <|im_end|> 汉字 2024"
        assert other.tokenizer.encode(text) == one.tokenizer.encode(text)
        assert other.tokenizer.stop_ids[0] == one.tokenizer.stop_ids[0]
        ids = one.tokenizer.encode_template(f"<|im_start|>{text}")
        assert await text_of(other, ids) == await text_of(one, ids) != ""
        assert other.template is not None
