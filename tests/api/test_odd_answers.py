"""Whatever an upstream puts into a field, no client sees a 500: it is left out, or the next endpoint answers.

Over real sockets, on every surface, whole, streamed, and put together from a stream; with prompts logged and
not. Every place and more values are in tests/providers/test_odd_answers.py.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.support.odd_answers import FEW, OF_CHOICES, OPTIONAL, Place, full, nested, places, put
from tests.support.server import Server, running_server
from tests.support.upstream import (
    Received,
    Script,
    Upstream,
    chat_json,
    chat_stream,
    completion_json,
    completion_stream,
    response,
    sse,
)

ROUTES = """
routing: { explore: 0 }
defaults: { breaker: { cooldown: 0 } }
providers:
  up: { type: openai, name: Up, base_url: UP, probe: false }
  other: { type: openai, name: Other, base_url: OTHER, probe: false }
models:
  m:
    endpoints:
      - { provider: up, model: u, prices: { prompt: 1, completion: 1 } }
      - { provider: other, model: o, prices: { prompt: 2, completion: 2 } }
  joined:
    endpoints:
      - { provider: up, model: u, upstream_stream: always, prices: { prompt: 1, completion: 1 } }
      - { provider: other, model: o, prices: { prompt: 2, completion: 2 } }
"""
MESSAGES = [{"role": "user", "content": "hi"}]
SURFACES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": MESSAGES, "logprobs": True},
    "completions": {"prompt": "x", "logprobs": 1},
    "messages": {"messages": MESSAGES, "max_tokens": 5, "stop_sequences": ["x"]},
    "responses": {"input": "x", "include": ["message.output_text.logprobs"]},
}
_HOLDERS = ((0,), ("message",), ("delta",))
MODES = ("whole", "streamed", "joined")
# Events that say that something of ours broke.
BROKEN = ("request_crashed", "stream_crashed", "provider_client_failed", "store_row_refused")


def sound(request: Received) -> Script:
    is_chat, is_stream = "chat/" in request.path, request.json().get("stream")
    if is_stream:
        return chat_stream(["ok"]) if is_chat else completion_stream(["ok"])
    return chat_json("ok") if is_chat else completion_json("ok")


@dataclass
class Bench:
    """A server between two upstreams, of which `up` is asked first."""

    server: Server
    up: Upstream
    connection: http.client.HTTPConnection

    def ask(self, surface: str, mode: str, script: Script) -> tuple[int, bytes]:
        self.up.forget()
        self.up.enqueue(script)
        num_before = len(self.up.requests)
        model, stream = "joined" if mode == "joined" else "m", mode == "streamed"
        body = {"model": model, "stream": stream, "provider": {"order": ["up"]}, **SURFACES[surface]}
        head = {"Content-Type": "application/json"}
        self.connection.request("POST", f"/api/v1/{surface}", json.dumps(body), head)
        answer = self.connection.getresponse()
        data = answer.read()
        assert len(self.up.requests) == num_before + 1
        return answer.status, data


@pytest.fixture(scope="module", params=[False, True], ids=["prompts not kept", "prompts logged"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder: Path = tmp_path_factory.mktemp("odd")
    up, other = Upstream(sound), Upstream(sound)
    with up, other:
        routes = ROUTES.replace("UP", up.base_url).replace("OTHER", other.base_url)
        with running_server(folder, routes, log_prompts=request.param) as server:
            connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
            yield Bench(server, up, connection)
            connection.close()
        assert not [event for name in BROKEN for event in server.events(name)]


def script_of(doc: Any, kind: str, mode: str) -> Script:
    """Answer with a document; as a stream, twice and then a sound end, so that what is joined has to fit."""
    if mode == "whole":
        return response(200, json.dumps(doc))
    event = b"data: " + json.dumps(doc).encode() + b"\n\n"
    said = {"text": ""} if kind == "completions" else {"delta": {}}
    return sse([event, event, {"id": "c", "choices": [{"index": 0, **said, "finish_reason": "stop"}]}])


def fields_of(doc: Any) -> list[Place]:
    """Where the optional fields are."""
    optional = {*OPTIONAL, *OF_CHOICES}
    return [place for place in places(doc) if place[-1] in optional and place[-2:-1] in _HOLDERS]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("surface", SURFACES)
def test_no_odd_value_is_a_500(bench: Bench, surface: str, mode: str) -> None:
    kind = "completions" if surface == "completions" else "chat"
    doc = full(kind, stream=mode != "whole")
    assert len(fields_of(doc)) == len(OF_CHOICES) + (len(OPTIONAL) if kind == "chat" else 1)
    for place, odd in product(fields_of(doc), FEW):
        status, data = bench.ask(surface, mode, script_of(put(doc, place, odd), kind, mode))
        where = (place, str(odd)[:40], data[-500:])
        assert status == 200, where
        if mode == "streamed":
            lines = [line.removeprefix(b"data: ") for line in data.splitlines() if line.startswith(b"data: ")]
            events = [json.loads(line) for line in lines if line != b"[DONE]"]
        else:
            events = [json.loads(data)]
        assert not [event for event in events if event.get("error") or event.get("type") == "error"], where


def test_what_is_left_out_leaves_the_answer_with_its_endpoint(bench: Bench) -> None:
    """A summary that is a list, logprobs that are a number: worth no second attempt."""
    odd = {"reasoning_details": [{"type": "reasoning.summary", "summary": ["step one"]}]}
    message = {"role": "assistant", "content": "a", **odd}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": {"content": 0.5}}
    for surface in ("chat/completions", "messages", "responses"):
        status, data = bench.ask(surface, "whole", response(200, json.dumps({"choices": [choice]})))
        assert (status, json.loads(data)["provider"]) == (200, "Up"), surface


@pytest.mark.parametrize(
    "choice",
    [
        {"message": "hello", "finish_reason": "stop"},
        {"message": {"content": None, "tool_calls": "f"}, "finish_reason": "tool_calls"},
        {"message": {"content": None, "tool_calls": [5]}, "finish_reason": "tool_calls"},
        {"message": {"content": None, "function_call": {"name": "f", "arguments": nested(600)}}},
    ],
    ids=["no message", "no calls", "a call that is none", "a call nested beyond reason"],
)
def test_what_cannot_be_left_out_is_the_endpoints_failure(bench: Bench, choice: dict[str, Any]) -> None:
    streamed = {"delta": choice["message"], "finish_reason": choice.get("finish_reason", "stop")}
    for mode, doc in (("whole", choice), ("streamed", streamed), ("joined", streamed)):
        status, data = bench.ask("chat/completions", mode, script_of({"choices": [doc]}, "chat", mode))
        assert status == 200
        assert b'"provider":"Other"' in data, (mode, data)
