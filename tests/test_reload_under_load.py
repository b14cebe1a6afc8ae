"""Reloads every 100 ms under load, over real sockets: no request is lost, each is accounted once."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import aiohttp
import pytest

from tests.support.server import GUARD_S, Server, headers, running_server
from tests.support.sse import chunks, content, data_lines
from tests.support.upstream import Received, Script, Upstream, Wait, chat_json, chat_stream, raw

LOAD_S = 10.0
MIN_RELOADS, MIN_ANSWERS = 20, 50  # an idle machine makes five and ten times as many
RELOAD_EVERY_S = 0.1
NUM_CLIENTS = 12
PROMPT, PIECES = 5, ["one ", "two ", "three ", "four ", "five"]

# Endpoints of each version of the file, and USD per million tokens: they come, go and cost otherwise.
VERSIONS: tuple[dict[str, float], ...] = (
    {"a": 1.0, "b": 1.0},
    {"a": 2.0, "b": 1.0, "c": 1.0},
    {"b": 3.0, "c": 1.0},
    {"c": 2.0},
    {"a": 3.0, "c": 2.0},
    {"a": 1.0},
)


def routes(version: dict[str, float], upstreams: dict[str, Upstream]) -> str:
    providers = "\n".join(
        f"  {name}: {{ type: openai, base_url: {up.base_url} }}"
        for name, up in upstreams.items()
        if name in version
    )
    endpoints = "\n".join(
        f"      - {{ provider: {name}, prices: {{ prompt: {price}, completion: {price} }} }}"
        for name, price in version.items()
    )
    return (
        f"providers:\n{providers}\nrouting: {{ spread: 100 }}\nmodels:\n  m:\n    endpoints:\n{endpoints}\n"
    )


def answer(name: str) -> Script | object:
    """Streams take a quarter of a second, so that tables are swapped under them; they say who they are."""

    def choose(request: Received) -> Script:
        if request.json().get("stream"):
            return chat_stream([f"{name}:", *PIECES], pause_s=0.03, prompt=PROMPT)
        return chat_json(f"{name}:{''.join(PIECES)}", prompt=PROMPT, completion=len(PIECES) + 1)

    return choose


@dataclass
class Load:
    """What the clients saw."""

    base_url: str
    until: float  # where there have been too few by then: until there are enough, or until the guard
    seen: Counter[str] = field(default_factory=Counter)  # endpoint -> good answers
    ids: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    num_reloads: int = 0

    @property
    def is_over(self) -> bool:
        now = time.monotonic()
        is_enough = self.num_reloads >= MIN_RELOADS and len(self.ids) >= MIN_ANSWERS
        return now > self.until and (is_enough or now > self.until + GUARD_S)

    async def client(self, session: aiohttp.ClientSession, number: int) -> None:
        for turn in range(100_000):
            if self.is_over:
                return
            stream = (turn + number) % 2 == 0
            try:
                await self.ask(session, stream)
            except Exception as error:
                self.wrong.append(repr(error))

    async def ask(self, session: aiohttp.ClientSession, stream: bool) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
        async with session.post(f"{self.base_url}/chat/completions", json=body) as response:
            text = await response.text()
        if response.status != 200:
            self.wrong.append(f"{response.status} {text[:200]}")
        elif stream:
            parts = chunks(text)
            assert data_lines(text)[-1] == "[DONE]", text[-200:]
            self._take(content(text), parts[0]["id"], parts[-1]["usage"]["cost"])
        else:
            whole = json.loads(text)
            self._take(whole["choices"][0]["message"]["content"], whole["id"], whole["usage"]["cost"])

    def _take(self, told: str, request_id: str, cost: float) -> None:
        name, _, words = told.partition(":")
        prices = {version[name] for version in VERSIONS if name in version}
        costs = [(PROMPT + len(PIECES) + 1) * price / 1e6 for price in prices]
        assert words == "".join(PIECES), told
        assert any(cost == pytest.approx(possible) for possible in costs), (name, cost)
        self.seen[name] += 1
        self.ids.append(request_id)


async def keep_reloading(
    session: aiohttp.ClientSession, server: Server, files: list[str], load: Load
) -> None:
    """Write another version and have it taken over, ten times a second."""
    key = headers(server.management_key())
    for text in cycle(files):
        started_at = time.monotonic()
        if load.is_over:
            return
        server.config.write_text(text)
        async with session.post(f"{server.base_url}/admin/reload", json={}, headers=key) as response:
            assert response.status == 200, await response.text()
        load.num_reloads += 1
        await asyncio.sleep(max(started_at + RELOAD_EVERY_S - time.monotonic(), 0.0))


async def run_load(server: Server, files: list[str]) -> Load:
    load = Load(server.base_url, time.monotonic() + LOAD_S)
    timeout = aiohttp.ClientTimeout(total=60)
    connector = aiohttp.TCPConnector(limit=NUM_CLIENTS + 4)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        clients = [load.client(session, number) for number in range(NUM_CLIENTS)]
        await asyncio.gather(keep_reloading(session, server, files, load), *clients)
    return load


def test_reloading_ten_times_a_second_loses_no_request(tmp_path: Path) -> None:
    upstreams = {name: Upstream(answer(name)) for name in ("a", "b", "c")}  # type: ignore[arg-type]
    with upstreams["a"], upstreams["b"], upstreams["c"]:
        files = [routes(version, upstreams) for version in VERSIONS]
        with running_server(tmp_path, files[0]) as server:
            load = asyncio.run(run_load(server, files))
            assert server.get("/health")[1]["in_flight"] == 0
            assert server.get("/health")[1]["routes"]["problem"] is None
            metrics = server.get("/metrics", server.management_key())[1]
    assert not load.wrong, load.wrong[:5]
    assert load.num_reloads >= MIN_RELOADS
    assert set(load.seen) == {"a", "b", "c"} and len(load.ids) >= MIN_ANSWERS
    # Each request once: to its client, upstream, in the log, in the metrics and in the database.
    assert len(set(load.ids)) == len(load.ids)
    for name, up in upstreams.items():
        assert len(up.requests) == load.seen[name]
    finished = Counter(event["request"] for event in server.events("request_finished"))
    assert finished == Counter(load.ids)
    counted = [line for line in metrics.splitlines() if line.startswith("ionrouter_requests_total{")]
    assert sum(float(line.rpartition(" ")[2]) for line in counted) == len(load.ids)
    with sqlite3.connect(tmp_path / "state" / "ionrouter.db") as database:
        rows = database.execute("SELECT id, state, status FROM generation").fetchall()
    assert sorted(rows) == sorted((name, "finished", 200) for name in load.ids)
    assert not server.events("routes_reload_crashed") and not server.events("request_crashed")
    assert len(server.events("routes_reloaded")) >= load.num_reloads


def test_endpoints_that_go_while_they_answer_end_their_answers(tmp_path: Path) -> None:
    slow = Upstream(lambda request: answer_slowly(request.json().get("stream", False)))
    other = Upstream(chat_json("other"))
    with slow, other:
        first, second = routes({"a": 1.0}, {"a": slow}), routes({"b": 1.0}, {"b": other})
        with running_server(tmp_path, first) as server:
            told = asyncio.run(ask_and_reload(server, slow, second))
            assert server.chat()[1]["choices"][0]["message"]["content"] == "other"
    assert told == ["slowly, but whole"] * 2


def answer_slowly(stream: bool) -> Script:
    if stream:
        return chat_stream(["slowly,", " but", " whole"], pause_s=0.3)
    whole = chat_json("slowly, but whole")
    return raw(Wait(0.8), *whole.steps)


async def ask_and_reload(server: Server, slow: Upstream, text: str) -> list[str]:
    """Take the endpoint away under a streamed and a whole answer; what they say."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:

        async def asked(stream: bool) -> str:
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
            async with session.post(f"{server.base_url}/chat/completions", json=body) as response:
                answered = await response.text()
                assert response.status == 200, answered
            if stream:
                return content(answered)
            return str(json.loads(answered)["choices"][0]["message"]["content"])

        tasks = [asyncio.create_task(asked(stream)) for stream in (True, False)]
        await slow.requests_soon(2)
        server.config.write_text(text)
        key = headers(server.management_key())
        async with session.post(f"{server.base_url}/admin/reload", json={}, headers=key) as response:
            changes = (await response.json())["data"]["changes"]
        assert "- model m -> endpoint a/m" in changes and "+ model m -> endpoint b/m" in changes
        return list(await asyncio.gather(*tasks))
