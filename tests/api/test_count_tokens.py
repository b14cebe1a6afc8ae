"""The tokens of a prompt over HTTP, as the engine inside counts them, in a server process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic

from tests.support.server import Server, running_server
from tests.support.tiny_model import write_tiny_model

ROUTES = """
providers:
  ion: {{ type: ion }}
  gone: {{ type: openai, base_url: "http://127.0.0.1:1/v1" }}
models:
  m: {{ endpoints: [ {{ provider: ion, weights: {weights}, kv_memory: 64MiB }} ] }}
  far: {{ endpoints: [ {{ provider: gone }} ] }}
  broken: {{ endpoints: [ {{ provider: ion, weights: ./none.gguf }} ] }}
"""
HI: Any = [{"role": "user", "content": "the quick brown fox"}]
TOOLS: Any = [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("counts")
    weights = write_tiny_model(folder / "x.gguf")
    with running_server(folder, ROUTES.format(weights=weights)) as running:
        yield running


@pytest.mark.parametrize(
    "body",
    [{}, {"system": "be brief"}, {"tools": TOOLS}, {"thinking": {"type": "enabled", "budget_tokens": 8}}],
)
def test_a_count_is_what_the_answer_tells_as_its_input(server: Server, body: Any) -> None:
    with Anthropic(base_url=f"{server.url}/api", api_key="unused", max_retries=0, timeout=60) as client:
        told = client.messages.create(model="m", max_tokens=9, messages=HI, **body).usage
        counted = client.messages.count_tokens(model="m", messages=HI, **body).input_tokens
    assert counted == told.input_tokens + (told.cache_read_input_tokens or 0)


def test_a_prompt_that_is_too_long_is_counted(server: Server) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "the quick brown fox " * 400}]}
    assert server.post("/v1/messages", {**body, "max_tokens": 1})[0] == 400
    status, counted = server.post("/v1/messages/count_tokens", body)
    assert status == 200
    assert counted["input_tokens"] > 512


def test_nobody_is_asked(server: Server) -> None:
    assert server.post("/v1/messages/count_tokens", {"model": "far", "messages": HI}) == (
        200,
        {"input_tokens": 5},
    )


def test_what_cannot_be_counted_is_refused_in_anthropics_shape(server: Server) -> None:
    status, refused = server.post("/v1/messages/count_tokens", {"model": "broken", "messages": HI})
    assert (status, refused["type"]) == (503, "error")
    picture = {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}}
    messages = [{"role": "user", "content": [picture]}]
    status, refused = server.post("/v1/messages/count_tokens", {"model": "m", "messages": messages})
    assert (status, refused["error"]["type"]) == (400, "invalid_request_error")
