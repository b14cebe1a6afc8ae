"""Deadlines over both doors, in the whole server: to connect, first token, between tokens, in all."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.server import GUARD_S, Server, eventually, running_server
from tests.support.sse import chunks, content
from tests.support.upstream import Hang, Script, Upstream, Wait, chat_json, chat_stream, chunk, raw, sse

pytestmark = pytest.mark.xdist_group("hosted")  # one litellm worker: 300 MB and 10 s

DOORS = pytest.mark.parametrize("door", ["openai", "litellm"])
MODES = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])

# Each model has one deadline that is short; the others are far away.
LONG = 50
SHORT = {
    "connect": {"connect": 0.4},
    "first": {"first_token": 0.4},
    "inter": {"inter_token": 0.4},
    "total": {"total": 0.8},
}


def endpoint(door: str, deadlines: dict[str, float], *, is_deaf: bool) -> str:
    all_of_them = {"connect": LONG, "first_token": LONG, "inter_token": LONG, "total": LONG, **deadlines}
    timeouts = ", ".join(f"{name}: {min(s, all_of_them['total'])}" for name, s in all_of_them.items())
    provider = f"{door}-deaf" if is_deaf else door
    return f"{{ provider: {provider}, model: up-model, cooldown: 0, timeouts: {{ {timeouts} }} }}"


def routes(up: Upstream, deaf: str) -> str:
    providers = "".join(
        f"""
  openai{suffix}: {{ type: openai, base_url: {url} }}
  litellm{suffix}: {{ type: litellm, litellm_provider: together_ai, base_url: {url}, keys: [UP_KEY] }}"""
        for suffix, url in (("", up.base_url), ("-deaf", deaf))
    )
    models = "".join(
        f"\n  {door}-{name}: {{ endpoints: [ {endpoint(door, deadlines, is_deaf=name == 'connect')} ] }}"
        for door in ("openai", "litellm")
        for name, deadlines in SHORT.items()
    )
    return f"providers:{providers}\nmodels:{models}\n"


@contextmanager
def deaf_address() -> Iterator[str]:
    """An address that neither takes nor refuses a connection: its queue is full."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(listening.getsockname())
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            for client in waiting:
                client.close()


@dataclass
class World:
    server: Server
    up: Upstream

    def ask(self, model: str, stream: bool, script: Script | None = None) -> tuple[int, Any, float]:
        """Ask with the upstream playing `script`; status, answer, and seconds."""
        self.up.default = script
        started_at = time.monotonic()
        status, answer = self.server.chat(model=model, stream=stream)
        return status, answer, time.monotonic() - started_at


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Upstream() as up, deaf_address() as deaf:
        text = routes(up, deaf)
        with running_server(tmp_path_factory.mktemp("deadlines"), text, env={"UP_KEY": "sk-up"}) as server:
            world = World(server, up)
            deadline = time.monotonic() + GUARD_S * 3
            while world.ask("litellm-first", False, chat_json("awake"))[0] != 200:  # litellm is imported
                assert time.monotonic() < deadline, server.log
                time.sleep(0.5)
            yield world


def failure(world: World, endpoint: str) -> dict[str, Any]:
    """The log's word on an endpoint's failed attempt; it is written with some delay."""

    def failed() -> list[dict[str, Any]]:
        return [event for event in world.server.events("attempt_failed") if event["endpoint"] == endpoint]

    return eventually(failed)[0]


@DOORS
@MODES
def test_connecting_may_take_so_long(world: World, door: str, stream: bool) -> None:
    status, _, seconds = world.ask(f"{door}-connect", stream)
    assert status in (502, 504) and seconds < LONG / 2
    failed = failure(world, f"{door}-deaf/{door}-connect")
    assert failed["failure"] == "transient" and "onnect" in failed["error"]


@DOORS
def test_the_first_token_may_take_so_long_whatever_comes_before(world: World, door: str) -> None:
    role_only = sse([chunk({"role": "assistant", "content": ""})], done=False, end=False).then(Hang())
    for silence in (raw(Hang()), role_only):
        status, answer, seconds = world.ask(f"{door}-first", True, silence)
        assert (status, seconds < LONG / 2) == (504, True)
        assert "first token did not come in time" in answer["error"]["message"]
        assert world.up.requests[-1].wait_closed()


@DOORS
def test_between_tokens_may_pass_so_long(world: World, door: str) -> None:
    stalled = sse([chunk({"content": "one"})], done=False, end=False).then(Hang())
    status, answer, seconds = world.ask(f"{door}-inter", True, stalled)
    assert (status, content(answer), seconds < LONG / 2) == (200, "one", True)
    last = chunks(answer)[-1]
    assert "next token did not come in time" in last["error"]["message"]
    assert world.up.requests[-1].wait_closed()


@DOORS
@MODES
def test_the_whole_answer_may_take_so_long(world: World, door: str, stream: bool) -> None:
    slow = chat_stream([f"{n} " for n in range(200)], pause_s=0.1) if stream else raw(Hang())
    status, answer, seconds = world.ask(f"{door}-total", stream, slow)
    assert seconds < LONG / 2
    if stream:
        assert status == 200 and "whole answer did not come in time" in chunks(answer)[-1]["error"]["message"]
    else:
        assert status == 504 and "whole answer did not come in time" in answer["error"]["message"]
    assert world.up.requests[-1].wait_closed()


@DOORS
def test_a_whole_answer_has_no_first_token_to_wait_for(world: World, door: str) -> None:
    late = raw(Wait(0.8), *chat_json("in its own time").steps)
    status, answer, _ = world.ask(f"{door}-first", False, late)
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "in its own time")
