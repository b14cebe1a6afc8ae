"""Hedges, canaries, shadows, probes, breakers and budgets in the whole server, over real sockets."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.accounts import bank
from tests.support.server import Server, eventually, running_server
from tests.support.sse import chunks, content
from tests.support.upstream import (
    Hang,
    Received,
    Script,
    Upstream,
    chat_json,
    chat_stream,
    error,
    raw,
    refused_url,
)

pytestmark = pytest.mark.xdist_group("traffic")  # one server for all


def says(text: str) -> Callable[[Received], Script]:
    """Answer as asked: streamed or whole."""
    return lambda request: chat_stream([text]) if request.json().get("stream") else chat_json(text)


ROUTES = """
providers:
  silent: {{ type: openai, base_url: {silent} }}
  quick: {{ type: openai, base_url: {quick} }}
  stable: {{ type: openai, base_url: {stable} }}
  next: {{ type: openai, base_url: {next} }}
  real: {{ type: openai, base_url: {real} }}
  copy: {{ type: openai, base_url: {copy} }}
  broken: {{ type: openai, base_url: {broken} }}
  dead: {{ type: openai, base_url: {dead} }}
routing: {{ explore: 0 }}
models:
  hedged:
    hedge: {{ after: 0.15, floor: 0.05, budget: 1 }}
    endpoints:
      - {{ provider: silent, expected: {{ ttft: 0.01, throughput: 1000 }} }}
      - {{ provider: quick }}
  watched:
    canary: {{ endpoint: next, percent: 20 }}
    endpoints:
      - {{ provider: stable }}
      - {{ provider: next }}
  copied:
    shadow: {{ endpoint: copy/other, share: 1 }}
    endpoints:
      - {{ provider: real, prices: {{ prompt: 1, completion: 1 }} }}
  other:
    endpoints:
      - {{ provider: copy, model: new, prices: {{ prompt: 5, completion: 5 }} }}
  broken:
    endpoints:
      - {{ provider: broken, probe: 2, breaker: {{ failures: 2, cooldown: 3600, max_cooldown: 7200 }} }}
  stormy:
    endpoints:
      - {{ provider: dead, cooldown: 0 }}
      - {{ provider: quick, model: stormy }}
"""
SCRIPTS: dict[str, Any] = {
    "silent": raw(Hang()),
    "quick": says("quick"),
    "stable": says("stable"),
    "next": says("canary"),
    "real": says("real"),
    "copy": says("shadowy words"),
    "broken": error(500),
}


@dataclass
class World:
    server: Server
    ups: dict[str, Upstream]

    def metric(self, name: str, **labels: str) -> float:
        text = self.server.get("/metrics", self.server.management_key())[1]
        for line in text.splitlines():
            head, _, value = line.rpartition(" ")
            if head.startswith(f"{name}{{") and all(f'{k}="{v}"' in head for k, v in labels.items()):
                return float(value)
        return 0.0

    def generations(self, model: str) -> list[tuple[str, float]]:
        with sqlite3.connect(self.server.state / "ionrouter.db") as database:
            told = "SELECT endpoint, cost FROM generation WHERE requested_model = ? ORDER BY cost"
            return database.execute(told, (model,)).fetchall()

    def finished(self, request_id: str) -> dict[str, Any]:
        events = self.server.wait_for_event("request_finished", request_id)
        return next(event for event in events if event["request"] == request_id)


@contextmanager
def serving(folder: Path) -> Iterator[World]:
    url, held = refused_url()
    with held, ExitStack() as stack:
        ups = {name: stack.enter_context(Upstream(script)) for name, script in SCRIPTS.items()}
        text = ROUTES.format(dead=url, **{name: up.base_url for name, up in ups.items()})
        yield World(stack.enter_context(running_server(folder, text)), ups)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serving(tmp_path_factory.mktemp("traffic")) as world:
        yield world


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_silent_upstream_is_outrun_and_its_connection_closed_at_once(world: World, stream: bool) -> None:
    before = world.metric("ionrouter_hedges_total", model="hedged", outcome="started")
    status, answer = world.server.chat(model="hedged", stream=stream)
    told = content(answer) if stream else answer["choices"][0]["message"]["content"]
    assert (status, told) == (200, "quick")
    assert world.ups["silent"].requests[-1].wait_closed()
    request_id = chunks(answer)[0]["id"] if stream else answer["id"]
    finished = world.finished(request_id)
    assert finished["attempts"] == [["silent/hedged", "lost_race"], ["quick/hedged", "ok"]]
    assert finished["route"] == "hedge: silent/hedged had not answered after 0.15 s"
    assert world.metric("ionrouter_hedges_total", model="hedged", outcome="started") == before + 1
    lost = world.metric("ionrouter_attempts_total", endpoint="silent/hedged", failure="lost_race")
    won = world.metric("ionrouter_attempts_total", endpoint="quick/hedged", role="hedge", failure="")
    assert lost == won == before + 1
    key = world.server.management_key()
    card = world.server.get(f"/api/v1/generation?id={request_id}", key)[1]["data"]
    assert [row["failure"] for row in card["provider_responses"]] == ["lost_race", None]
    assert card["provider_name"] == "quick" and card["finish_reason"] == "stop"


def test_a_canary_gets_its_percentage_and_sessions_stay(world: World) -> None:
    server = world.server

    def served(session: str) -> str:
        answer = server.chat(model="watched", session_id=session)[1]
        return str(answer["choices"][0]["message"]["content"])

    first = {f"s{n}": served(f"s{n}") for n in range(60)}
    assert 3 <= Counter(first.values())["canary"] <= 24
    assert {name: served(name) for name in first} == first
    name = next(name for name, told in first.items() if told == "canary")
    body = {"model": "watched", "messages": [{"role": "user", "content": "x"}], "session_id": name}
    plan = server.post("/api/v1/routing/explain", body, server.management_key())[1]["data"]
    percents = {"next": 20.0, "the others": 80.0}
    assert plan["splits"] == [
        {"name": "canary of watched", "arm": "next", "by": "session", "percents": percents}
    ]
    assert [c["endpoint_id"] for c in plan["candidates"]] == ["next/watched", "stable/watched"]
    world.ups["next"].enqueue(error(503))
    assert served(name) == "stable"  # falls back, and comes back
    assert served(name) == "canary"
    routes = eventually(
        lambda: [event["route"] for event in server.events("request_finished")],
        lambda routes: any("canary of watched: next (20%) by session" in route for route in routes),
    )
    assert any("canary of watched: the others (80%) by session" in route for route in routes)


def test_a_shadow_is_asked_and_neither_shown_nor_billed(world: World) -> None:
    for stream in (True, False):
        status, answer = world.server.chat(model="copied", stream=stream)
        assert status == 200 and "shadowy" not in json.dumps(answer)
    (copied, _) = world.ups["copy"].wait_for_requests(2)
    real = world.ups["real"].requests[0].json()
    assert copied.json()["model"] == "new" and copied.json()["messages"] == real["messages"]
    eventually(
        lambda: world.metric("ionrouter_attempts_total", endpoint="copy/other", role="shadow", failure=""),
        lambda count: count == 2,
    )
    assert world.metric("ionrouter_shadows_total", endpoint="copy/other", outcome="started") == 2
    assert world.metric("ionrouter_cost_usd_total", endpoint="copy/other") == 0

    def count(role: str) -> int:
        told = world.server.get(f"/api/v1/models/other/endpoints?role={role}")[1]
        return int(
            told["data"]["endpoints"][0]["perf_last_30m_by_workload"]["text_generation"]["request_count"]
        )

    assert (count("main"), count("shadow"), count("probe")) == (0, 2, 0)
    status, refused = world.server.get("/api/v1/models/other/endpoints?role=spy")
    assert status == 400 and "known are main, shadow, probe" in refused["error"]["message"]
    rows = eventually(lambda: world.generations("copied"), lambda rows: len(rows) == 2)
    assert [endpoint for endpoint, _ in rows] == ["real/copied"] * 2
    assert [cost for _, cost in rows] == pytest.approx([(5 + 1) / 1e6, (5 + 2) / 1e6])
    assert not world.generations("other")


def test_an_open_breaker_is_told_everywhere_and_a_probe_closes_it(world: World) -> None:
    server, key = world.server, world.server.management_key()
    body = {"model": "broken", "messages": [{"role": "user", "content": "x"}]}
    for _ in range(2):
        assert server.chat(model="broken")[0] >= 500
    (told,) = server.get("/health", key)[1]["breakers"]
    assert (told["endpoint"], told["state"], told["num_openings"]) == ("broken/broken", "open", 1)
    assert 3000 < told["opens_for_s"] <= 3600
    assert world.metric("ionrouter_breaker_state", endpoint="broken/broken") == 2
    plan = server.post("/api/v1/routing/explain", body, key)[1]["data"]
    assert plan["candidates"][0]["breaker"] == "open"  # the last one left is tried all the same
    (card,) = server.get("/api/v1/models/broken/endpoints", key)[1]["data"]["endpoints"]
    assert card["status"] == -5
    world.ups["broken"].default = says("well again")
    eventually(lambda: server.get("/health", key)[1]["breakers"], lambda told: told == [])
    probe = world.ups["broken"].requests[-1].json()
    assert probe["max_tokens"] == 1 and probe["stream"] is True
    assert world.metric("ionrouter_breaker_state", endpoint="broken/broken") == 0
    ok = world.metric("ionrouter_attempts_total", endpoint="broken/broken", role="probe", failure="")
    assert ok >= 1 and len(world.generations("broken")) == 2  # no probe is anybody's request
    assert server.chat(model="broken")[1]["choices"][0]["message"]["content"] == "well again"


def test_the_retry_budget_holds_under_a_storm(world: World) -> None:
    """A dead port beside a live one: retries of its connection stay a share of the requests."""
    wish = {"model": "stormy", "provider": {"order": ["dead"]}}
    for _ in range(60):
        assert world.server.chat(**wish)[0] == 200
    name = "ionrouter_connection_retries_total"
    made, refused = (world.metric(name, endpoint="dead/stormy", outcome=o) for o in ("made", "refused"))
    assert 1 <= made <= 3 + 0.1 * 60 + 1 and made + refused == 60


def test_a_hanging_shadow_does_not_hold_a_stop(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        world.ups["copy"].default = raw(Hang())
        assert world.server.chat(model="copied")[0] == 200
        (received,) = world.ups["copy"].wait_for_requests(1)
        world.server.process.terminate()
        assert world.server.wait() == 0
        assert received.wait_closed()


BILLED = """
providers:
  a: { type: fake, options: { text: "answer" } }
  b: { type: fake, options: { text: "answer" } }
models:
  plain:
    endpoints: &two
      - { provider: a, prices: { prompt: 0, completion: 1000 } }
      - { provider: b, prices: { prompt: 0, completion: 1000 } }
  hedged: { hedge: {}, endpoints: *two }
"""


def test_a_keys_limit_reserves_for_both_endpoints_of_a_hedge(tmp_path: Path) -> None:
    """One answer of at most 1000 tokens is a dollar at most, two at once are two."""
    with bank(tmp_path, BILLED) as account:
        key, _ = account.make_key(limit=1.5)
        assert account.chat(key, model="plain", max_tokens=1000)[0] == 200
        status, refused = account.chat(key, model="hedged", max_tokens=1000)
        assert status == 402, refused
        assert account.chat(key, model="hedged", max_tokens=500)[0] == 200
