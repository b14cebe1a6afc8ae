"""Requests that wait for one of this server's own connections: no endpoint is blamed for that time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.server import Server, eventually, running_server
from tests.support.upstream import Upstream, WaitFor, chat_stream, raw

ROUTES = """
providers:
  held: {{ type: openai, base_url: {held} }}
  quick: {{ type: openai, base_url: {quick} }}
  worked: {{ type: litellm, litellm_provider: openai, base_url: {quick}, options: {{ carrier: off }} }}
models:
  held: {{ endpoints: [ {{ provider: held, model: m }} ] }}
  quick: {{ endpoints: [ {{ provider: quick, model: m, timeouts: {{ first_token: 1, connect: 30 }} }} ] }}
  worked: {{ endpoints: [ {{ provider: worked, model: m, timeouts: {{ first_token: 1, connect: 30 }} }} ] }}
  warm: {{ endpoints: [ {{ provider: worked, model: warm, timeouts: {{ connect: 60 }} }} ] }}
  hasty: {{ endpoints: [ {{ provider: worked, model: m, timeouts: {{ connect: 0.5 }} }} ] }}
"""
HELD_S = 1.5  # longer than the first token may take


@dataclass
class World:
    server: Server
    held: Upstream


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Upstream() as held, Upstream(chat_stream("quick")) as quick:
        text = ROUTES.format(held=held.base_url, quick=quick.base_url)
        folder = tmp_path_factory.mktemp("queue")
        with running_server(folder, text, max_upstream_connections=1) as server:
            assert server.chat(model="warm", stream=True)[0] == 200  # litellm is imported
            yield World(server, held)


def candidate(server: Server, model: str) -> dict[str, Any]:
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "x"}]}
    status, told = server.post("/api/v1/routing/explain", body)
    assert status == 200
    found: dict[str, Any] = told["data"]["candidates"][0]
    return found


@pytest.mark.parametrize("model", ["quick", "worked"])  # by the server itself, by litellm's process
def test_a_wait_for_a_connection_of_ours_is_not_the_endpoints(world: World, model: str) -> None:
    """Its first token took 10 ms after seconds for a place: it passed for slow, and then for silent."""
    for _ in range(3):
        assert world.server.chat(model=model, stream=True)[0] == 200
    go, statuses = threading.Event(), []
    world.held.default = raw(WaitFor(go), *chat_stream("late").steps)
    num_before = len(world.held.requests)

    def ask(model: str) -> None:
        statuses.append(world.server.chat(model=model, stream=True)[0])

    threads = [threading.Thread(target=ask, args=("held",))]
    threads[0].start()
    eventually(lambda: len(world.held.requests) > num_before)
    threads += [threading.Thread(target=ask, args=(model,)) for _ in range(4)]
    for thread in threads[1:]:
        thread.start()
    threading.Event().wait(HELD_S)
    while_held = candidate(world.server, model)["expected_ttft_s"]
    go.set()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 5
    assert while_held < HELD_S / 2
    assert candidate(world.server, model)["expected_ttft_s"] < HELD_S / 2


def test_who_gets_none_in_time_hears_of_our_limit_through_litellm_too(world: World) -> None:
    assert world.server.chat(model="worked", stream=True)[0] == 200  # its process is there
    go, num_before = threading.Event(), len(world.held.requests)
    world.held.default = raw(WaitFor(go), *chat_stream("late").steps)
    holding = threading.Thread(target=world.server.chat, kwargs={"model": "held", "stream": True})
    holding.start()
    eventually(lambda: len(world.held.requests) > num_before)
    status, told = world.server.chat(model="hasty", stream=True)
    go.set()
    holding.join()
    assert status == 503
    assert "connections to upstreams are in use" in told["error"]["message"]
    assert world.server.chat(model="hasty", stream=True)[0] == 200  # and the endpoint is none the worse
