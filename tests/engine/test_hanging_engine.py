"""An engine that hangs, in the whole server on a real socket: who waits is told, and nobody is sent there."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from ionrouter.api.server import EnvelopeRunner
from ionrouter.app import build
from ionrouter.engine import ion
from ionrouter.engine.grammar_keeper import GrammarKeeper
from ionrouter.redact import Redactor
from ionrouter.settings import Settings
from tests.support.tiny_model import write_tiny_model

GUARD_S = 60.0
CHAT: dict[str, Any] = {
    "model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "ignore_eos": True
}  # fmt: skip
HANGING = {**CHAT, "ignore_eos": False, "structured_outputs": {"regex": "[a-z]{3}"}}


class Hang:
    """Masks of grammars do not come as long as it holds; the engine's loop waits for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.let_go = threading.Event()
        self.has_begun = threading.Event()
        mask = GrammarKeeper._mask

        def late(keeper: GrammarKeeper, *args: Any) -> bytes:
            self.has_begun.set()
            assert self.let_go.wait(GUARD_S)
            return mask(keeper, *args)

        monkeypatch.setattr(GrammarKeeper, "_mask", late)


@asynccontextmanager
async def whole_server(folder: Path) -> AsyncIterator[aiohttp.ClientSession]:
    path = write_tiny_model(folder / "m.gguf")
    routes = folder / "routes.yaml"
    endpoint = f"{{ provider: ion, weights: {path}, kv_memory: 16MiB }}"
    routes.write_text(
        f"providers: {{ ion: {{ type: ion }} }}\nmodels: {{ m: {{ endpoints: [ {endpoint} ] }} }}\n"
    )
    settings = Settings(config=routes, state_dir=folder / "state", cache_dir=folder / "cache")
    service = build(settings, {}, Redactor())
    runner = EnvelopeRunner(service.application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        service.listening.set()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
            await until(lambda: health(session), 200)
            yield session
    finally:
        await runner.cleanup()


async def health(session: aiohttp.ClientSession) -> int:
    async with session.get("/health") as answer:
        return answer.status


async def chat(session: aiohttp.ClientSession, body: dict[str, Any]) -> tuple[int, Any]:
    async with session.post("/api/v1/chat/completions", json=body) as answer:
        return answer.status, await (
            answer.json() if answer.content_type == "application/json" else answer.text()
        )


async def until(ask: Callable[[], Awaitable[int]], wanted: int) -> None:
    deadline = time.monotonic() + GUARD_S
    while await ask() != wanted:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_e29_who_waits_for_an_engine_that_hangs_gets_a_503(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ion, "_MAX_SILENCE_S", 0.3)
    monkeypatch.setattr(ion, "_MAX_WAIT_S", 4.0)
    hang = Hang(monkeypatch)
    async with whole_server(tmp_path) as session:
        assert (await chat(session, CHAT))[0] == 200
        waiting = [asyncio.create_task(chat(session, HANGING))]
        assert await asyncio.to_thread(hang.has_begun.wait, GUARD_S)
        waiting += [asyncio.create_task(chat(session, CHAT | {"stream": stream})) for stream in (True, False)]
        await until(lambda: health(session), 503)
        status, body = await chat(session, CHAT)
        assert (status, body["error"]["availability"]["code"]) == (503, "temporarily_unavailable")
        assert "unresponsive for" in body["error"]["message"]
        async with session.get("/livez") as alive, session.get("/api/v1/models") as models:
            assert (alive.status, models.status) == (200, 200)
        answers = await asyncio.wait_for(asyncio.gather(*waiting), GUARD_S)
        for status, body in answers:
            assert status == 503, body
            assert "the engine hangs" in body["error"]["message"]
        hang.let_go.set()
        await until(lambda: health(session), 200)
        status, body = await chat(session, HANGING)
        assert (status, len(body["choices"][0]["message"]["content"])) == (200, 3)


async def test_newcomers_do_not_make_a_hanging_engine_look_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ion, "_MAX_SILENCE_S", 0.5)
    hang = Hang(monkeypatch)
    async with whole_server(tmp_path) as session:
        waiting = [asyncio.create_task(chat(session, HANGING))]
        assert await asyncio.to_thread(hang.has_begun.wait, GUARD_S)
        deadline = time.monotonic() + GUARD_S
        while await health(session) == 200:
            assert time.monotonic() < deadline
            waiting.append(asyncio.create_task(chat(session, CHAT)))
            await asyncio.sleep(0.1)
        hang.let_go.set()
        statuses = [status for status, _ in await asyncio.gather(*waiting)]
        assert statuses[:2] == [200, 200]
