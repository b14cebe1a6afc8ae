"""Hedges, canaries, shadows, probes, breakers and budgets in the whole server, over real sockets."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import GUARD_S, Server, running_server
from tests.support.sse import chunks, content
from tests.support.upstream import (
    Hang,
    Received,
    Script,
    Upstream,
    Wait,
    chat_json,
    chat_stream,
    error,
    raw,
    refused_url,
)


def says(text: str) -> Callable[[Received], Script]:
    """Answer as asked: streamed or whole."""
    return lambda request: chat_stream([text]) if request.json().get("stream") else chat_json(text)


@contextmanager
def serving(
    folder: Path, model: str, more: str = "", **defaults: Any
) -> Iterator[tuple[Server, dict[str, Upstream]]]:
    """Model m at upstreams a, b, ...; `model` is the rest of its entry."""
    with ExitStack() as stack:
        ups = {name: stack.enter_context(Upstream(answer)) for name, answer in defaults.items()}
        providers = "\n".join(f"  {n}: {{ type: openai, base_url: {up.base_url} }}" for n, up in ups.items())
        text = f"providers:\n{providers}\nrouting: {{ explore: 0 }}\n{more}\nmodels:\n  m:\n{model}"
        yield stack.enter_context(running_server(folder, text)), ups


def eventually(ask: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + GUARD_S
    while not wanted(found := ask()):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def metric(server: Server, name: str, **labels: str) -> float:
    text = server.get("/metrics", server.management_key())[1]
    for line in text.splitlines():
        head, _, value = line.rpartition(" ")
        if head.startswith(f"{name}{{") and all(f'{k}="{v}"' in head for k, v in labels.items()):
            return float(value)
    return 0.0


HEDGED = """
    hedge: { after: 0.15, floor: 0.05, budget: 1 }
    endpoints:
      - { provider: a, expected: { ttft: 0.01, throughput: 1000 } }
      - { provider: b }
"""


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_silent_upstream_is_outrun_and_its_connection_closed_at_once(tmp_path: Path, stream: bool) -> None:
    with serving(tmp_path, HEDGED, a=raw(Hang()), b=says("from b")) as (server, ups):
        status, answer = server.chat(stream=stream)
        told = content(answer) if stream else answer["choices"][0]["message"]["content"]
        assert (status, told) == (200, "from b")
        assert ups["a"].requests[0].wait_closed()
        (finished,) = server.wait_for_event("request_finished")
        assert finished["attempts"] == [["a/m", "lost_race"], ["b/m", "ok"]]
        assert finished["route"] == "hedge: a/m had not answered after 0.15 s"
        assert metric(server, "ionrouter_hedges_total", model="m", outcome="started") == 1
        assert metric(server, "ionrouter_attempts_total", endpoint="a/m", failure="lost_race") == 1
        assert metric(server, "ionrouter_attempts_total", endpoint="b/m", role="hedge", failure="") == 1
        key = server.management_key()
        request_id = chunks(answer)[0]["id"] if stream else answer["id"]
        card = server.get(f"/api/v1/generation?id={request_id}", key)[1]["data"]
        assert [row["failure"] for row in card["provider_responses"]] == ["lost_race", None]
        assert card["provider_name"] == "b" and card["finish_reason"] == "stop"


CANARY = """
    canary: { endpoint: b, percent: 20 }
    endpoints:
      - { provider: a }
      - { provider: b }
"""


def test_a_canary_gets_its_percentage_and_sessions_stay(tmp_path: Path) -> None:
    with serving(tmp_path, CANARY, a=says("stable"), b=says("canary")) as (server, ups):

        def served(session: str) -> str:
            return str(server.chat(session_id=session)[1]["choices"][0]["message"]["content"])

        first = {f"s{n}": served(f"s{n}") for n in range(60)}
        assert 3 <= Counter(first.values())["canary"] <= 24
        assert {name: served(name) for name in first} == first
        name = next(name for name, told in first.items() if told == "canary")
        ups["b"].default = error(503)
        assert served(name) == "stable"  # falls back
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "session_id": name}
        plan = server.post("/api/v1/routing/explain", body, server.management_key())[1]["data"]
        assert plan["splits"] == [
            {"name": "canary of m", "arm": "b", "by": "session", "percents": {"b": 20.0, "the others": 80.0}}
        ]
        assert [c["endpoint_id"] for c in plan["candidates"]] == ["b/m", "a/m"]
        routes = [event["route"] for event in server.events("request_finished")]
        assert any("canary of m: b (20%) by session" in route for route in routes)


SHADOWED = """
    shadow: { endpoint: b/m-next, share: 1 }
    endpoints:
      - { provider: a, prices: { prompt: 1, completion: 1 } }
  m-next:
    endpoints:
      - { provider: b, model: next, prices: { prompt: 5, completion: 5 } }
"""


def test_a_shadow_is_asked_and_neither_shown_nor_billed(tmp_path: Path) -> None:
    with serving(tmp_path, SHADOWED, a=says("real"), b=says("copied")) as (server, ups):
        for stream in (True, False):
            status, answer = server.chat(stream=stream)
            assert status == 200 and "copied" not in json.dumps(answer)
        (copied, _) = ups["b"].wait_for_requests(2)
        assert (
            copied.json()["model"] == "next"
            and copied.json()["messages"] == ups["a"].requests[0].json()["messages"]
        )
        eventually(
            lambda: metric(
                server, "ionrouter_attempts_total", endpoint="b/m-next", role="shadow", failure=""
            ),
            lambda count: count == 2,
        )
        assert metric(server, "ionrouter_shadows_total", endpoint="b/m-next", outcome="started") == 2
        assert metric(server, "ionrouter_cost_usd_total", endpoint="b/m-next") == 0
        rows = eventually(lambda: _generations(tmp_path), lambda rows: len(rows) == 2)
        assert {endpoint for endpoint, _ in rows} == {"a/m"}
        assert all(
            cost == pytest.approx((5 + tokens) / 1e6) for (_, cost), tokens in zip(rows, (1, 2), strict=True)
        )


def _generations(folder: Path) -> list[tuple[str, float]]:
    with sqlite3.connect(folder / "state" / "ionrouter.db") as database:
        return database.execute("SELECT endpoint, cost FROM generation ORDER BY cost").fetchall()


def test_a_hanging_shadow_does_not_hold_a_stop(tmp_path: Path) -> None:
    with serving(tmp_path, SHADOWED, a=says("real"), b=raw(Hang())) as (server, ups):
        assert server.chat()[0] == 200
        (received,) = ups["b"].wait_for_requests(1)
        server.process.terminate()
        assert server.wait() == 0
        assert received.wait_closed()


BROKEN = """
    endpoints:
      - { provider: a, probe: 2, breaker: { failures: 2, cooldown: 3600, max_cooldown: 7200 } }
"""


def test_an_open_breaker_is_told_everywhere_and_a_probe_closes_it(tmp_path: Path) -> None:
    with serving(tmp_path, BROKEN, a=error(500)) as (server, ups):
        key = server.management_key()
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
        for _ in range(2):
            assert server.chat()[0] >= 500
        (told,) = server.get("/health", key)[1]["breakers"]
        assert (told["endpoint"], told["state"], told["num_openings"]) == ("a/m", "open", 1)
        assert 3000 < told["opens_for_s"] <= 3600
        assert metric(server, "ionrouter_breaker_state", endpoint="a/m") == 2
        plan = server.post("/api/v1/routing/explain", body, key)[1]["data"]
        assert plan["candidates"][0]["breaker"] == "open"  # the last one left is tried all the same
        (card,) = server.get("/api/v1/models/m/endpoints", key)[1]["data"]["endpoints"]
        assert card["status"] == -5
        ups["a"].default = says("well again")
        eventually(lambda: server.get("/health", key)[1]["breakers"], lambda told: told == [])
        probe = ups["a"].requests[-1].json()
        assert probe["max_tokens"] == 1 and probe["stream"] is True
        assert metric(server, "ionrouter_breaker_state", endpoint="a/m") == 0
        assert metric(server, "ionrouter_attempts_total", endpoint="a/m", role="probe", failure="") >= 1
        assert len(_generations(tmp_path)) == 2  # no probe is anybody's request
        assert server.chat()[1]["choices"][0]["message"]["content"] == "well again"


def test_the_retry_budget_holds_under_a_storm(tmp_path: Path) -> None:
    """A dead port beside a live one: retries of its connection stay a share of the requests."""
    url, socket = refused_url()
    with socket, Upstream(says("alive")) as up:
        text = f"""
providers:
  dead: {{ type: openai, base_url: {url} }}
  live: {{ type: openai, base_url: {up.base_url} }}
models:
  m: {{ endpoints: [ {{ provider: dead, cooldown: 0 }}, {{ provider: live }} ] }}
"""
        with running_server(tmp_path, text) as server:
            wish = {"provider": {"order": ["dead"]}}
            for _ in range(60):
                assert server.chat(**wish)[0] == 200
            made = metric(server, "ionrouter_connection_retries_total", endpoint="dead/m", outcome="made")
            refused = metric(
                server, "ionrouter_connection_retries_total", endpoint="dead/m", outcome="refused"
            )
            assert 1 <= made <= 3 + 0.1 * 60 + 1 and made + refused == 60


def test_deadlines_are_each_endpoints_own(tmp_path: Path) -> None:
    model = """
    endpoints:
      - { provider: a, timeouts: { first_token: 0.2, inter_token: 0.3, total: 5 }, expected: { ttft: 0.01 } }
      - { provider: b, timeouts: { first_token: 5 } }
"""
    slow = raw(Wait(1.0), *chat_stream(["late"]).steps)
    with serving(tmp_path, model, a=slow, b=slow) as (server, _):
        status, answer = server.chat(stream=True)
        assert (status, content(answer)) == (200, "late")
        (finished,) = server.wait_for_event("request_finished")
        assert finished["attempts"] == [["a/m", "transient"], ["b/m", "ok"]]
        (failed,) = server.events("attempt_failed")
        assert failed["code"] == "timeout" and "first token" in failed["error"]
