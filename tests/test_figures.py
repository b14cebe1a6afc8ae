"""Figures of the whole server: whoever reads them reads of every request that has been answered."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from ionrouter.api.server import EnvelopeRunner
from ionrouter.app import Service, build
from ionrouter.redact import Redactor
from ionrouter.settings import Settings
from tests.support.server import CHAT
from tests.support.two_upstreams import FAKE

NUM = 5  # fewer samples say nothing


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Service, aiohttp.ClientSession]]:
    """A server whose observers hear of requests only when somebody reads, or at its end."""
    routes = folder / "routes.yaml"
    routes.write_text(FAKE)
    settings = Settings(config=routes, state_dir=folder / "state", cache_dir=folder / "cache")
    service = build(settings, {}, Redactor())
    service.observers._delay_s = 3600.0
    runner = EnvelopeRunner(service.application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        service.listening.set()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
            yield service, session
    finally:
        await runner.cleanup()


async def chat(session: aiohttp.ClientSession) -> None:
    async with session.post("/api/v1/chat/completions", json=CHAT) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()


async def read(session: aiohttp.ClientSession, path: str) -> Any:
    async with session.get(path) as answer:
        assert answer.status == 200, await answer.text()
        return await (answer.json() if answer.content_type == "application/json" else answer.text())


def rows(body: Any) -> float:
    return sum(row["requests"] for row in body["data"])


def card(body: Any) -> float:
    """Of an endpoint whose uptime is said: enough has been counted."""
    (endpoint,) = body["data"]["endpoints"]
    return NUM if endpoint["uptime_last_30m"] == 100.0 else 0


def scraped(text: str) -> float:
    found = re.search(r"(?m)^ionrouter_requests_total\{.*\} (\S+)$", text)
    return float(found[1]) if found else 0


READERS: Mapping[str, Any] = {
    "/metrics": scraped,
    "/api/v1/stats/routes": rows,
    "/api/v1/stats/routes?sort=-requests": rows,
    "/api/v1/models/m/endpoints": card,
}


@pytest.mark.parametrize("path", READERS)
async def test_no_figure_is_older_than_the_last_answer(path: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, session):
        for _ in range(NUM):
            await chat(session)
        assert READERS[path](await read(session, path)) == NUM


async def test_the_observers_hear_of_a_request_after_its_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as (service, session):
        await chat(session)
        assert service.edge.stats._series == {}
        service.observers.flush()
        assert len(service.edge.stats._series) == 1


async def test_a_stop_tells_of_all_of_them_once_and_keeps_their_statistics(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with serving(tmp_path) as (_, session):
            for _ in range(NUM):
                await chat(session)
            assert [e for e in logs if e["event"] == "request_finished"] == []
    finished = [event["request"] for event in logs if event["event"] == "request_finished"]
    assert len(finished) == len(set(finished)) == NUM
    async with serving(tmp_path) as (_, session), asyncio.timeout(60):
        while rows(await read(session, "/api/v1/stats/routes")) != NUM:  # noqa: ASYNC110 - read back at leisure
            await asyncio.sleep(0.02)


async def test_a_background_task_that_crashes_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(_self: Any) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("ionrouter.stats_keeper.StatsKeeper.run", crash)
    with capture_logs() as logs:
        async with serving(tmp_path) as (_, session):
            await chat(session)
    (told,) = [event for event in logs if event["event"] == "task_crashed"]
    assert (told["task"], str(told["exc_info"])) == ("keep-statistics", "out of luck")
