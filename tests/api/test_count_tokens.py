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
  seeing:
    input_modalities: [text, image]
    endpoints: [ {{ provider: ion, weights: {weights}, kv_memory: 64MiB }} ]
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


def test_an_error_names_the_block_that_the_caller_sent(server: Server) -> None:
    """The engine inside names a part of its chat, where the picture is in a message of its own."""
    url = "https://a.example/b.png"
    result = {"type": "tool_result", "tool_use_id": "t", "content": [
        {"type": "text", "text": "see"}, {"type": "image", "source": {"type": "url", "url": url}},
    ]}  # fmt: skip
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    turns = [*HI, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    for stream in (False, True):
        body = {"model": "seeing", "max_tokens": 9, "tools": TOOLS, "messages": turns, "stream": stream}
        status, refused = server.post("/v1/messages", body)
        assert status == 400
        assert refused["error"]["message"].startswith("messages[2].content[0].content[1]: ")
    shown = {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
    body = {"model": "seeing", "instructions": "short", "input": [{"role": "user", "content": "hi"}, shown]}
    status, refused = server.post("/v1/responses", body)
    assert (status, refused["error"]["param"]) == (400, "input[1].content[0]")
    assert refused["error"]["message"].startswith("input[1].content[0]: ")
