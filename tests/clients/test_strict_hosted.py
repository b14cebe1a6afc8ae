"""The same defects through litellm, which reads answers its own way: no defect."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import strict_shapes
from tests.support.defects import PIECES, STREAM_DEFECTS, WHOLE, WHOLE_DEFECTS, spoiled
from tests.support.server import GUARD_S, Server, running_server
from tests.support.sse import chunks
from tests.support.upstream import Script, Upstream, response, sse, together_json

ROUTES = """
providers:
  up:
    {{ type: litellm, name: Up, litellm_provider: together_ai, base_url: {up}, keys: [UP_KEY],
       options: {{ carrier: "off" }} }}
models:
  m: {{ endpoints: [ {{ provider: up, model: u, cooldown: 0, prices: {{ prompt: 1, completion: 2 }} }} ] }}
"""
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Upstream]]:
    folder: Path = tmp_path_factory.mktemp("hosted")
    with (
        Upstream(together_json("warm")) as up,
        running_server(folder, ROUTES.format(up=up.base_url), env={"UP_KEY": "up-key-123456"}) as server,
    ):
        deadline = time.monotonic() + GUARD_S
        while server.chat()[0] != 200:  # litellm's import takes a while
            assert time.monotonic() < deadline, server.log
            time.sleep(0.5)
        up.default = None
        yield server, up


def check(hosted: tuple[Server, Upstream], script: Script, stream: bool) -> None:
    server, up = hosted
    asked = len(up.requests)
    up.enqueue(script)
    status, body = server.chat(tools=TOOLS, stream=stream)
    assert len(up.requests) == asked + 1
    assert status == 200, body
    if not stream:
        strict_shapes.assert_whole(body)
        return
    found = chunks(body)
    strict_shapes.assert_stream(found)
    assert "error" not in found[-1]


# One test, and not one a defect: a second test process would start a second litellm (300 MB, 10 s).
def test_no_defect_passes_through_litellm(hosted: tuple[Server, Upstream]) -> None:
    faults = []
    whole = [(name, response(200, json.dumps(spoiled(WHOLE, d))), False) for name, d in WHOLE_DEFECTS.items()]
    streams = [(name, sse([spoiled(p, d) for p in PIECES]), True) for name, d in STREAM_DEFECTS.items()]
    for name, script, stream in whole + streams:
        try:
            check(hosted, script, stream)
        except AssertionError as fault:
            faults.append(f"{name}, stream {stream}: {fault}")
    assert not faults
