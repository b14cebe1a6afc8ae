"""Scores of a prompt over HTTP, from the engine inside to the client, in a server process of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.server import Server, running_server
from tests.support.tiny_model import write_tiny_model

FRANCE = "The capital of France is"
ROUTES = """
providers: {{ ion: {{ type: ion }} }}
models: {{ m: {{ endpoints: [ {{ provider: ion, weights: {weights}, kv_memory: 64MiB }} ] }} }}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("scores")
    weights = write_tiny_model(folder / "x.gguf")
    with running_server(folder, ROUTES.format(weights=weights)) as running:
        yield running


def completions(server: Server, **body: Any) -> tuple[int, Any]:
    return server.post("/v1/completions", {"model": "m", "prompt": FRANCE, "temperature": 0} | body)


def test_a_text_is_scored(server: Server) -> None:
    status, body = completions(server, echo=True, logprobs=1, max_tokens=0)
    assert status == 200
    (choice,), usage = body["choices"], body["usage"]
    assert (choice["text"], choice["finish_reason"], usage["completion_tokens"]) == (FRANCE, "length", 0)
    told = choice["logprobs"]
    assert {len(values) for values in told.values()} == {usage["prompt_tokens"]}
    assert (told["token_logprobs"][0], told["top_logprobs"][0], told["text_offset"][0]) == (None, None, 0)
    assert "".join(told["tokens"]) == FRANCE
    assert "prompt_logprobs" not in choice


def test_a_streamed_echo_comes_first_and_says_the_same(server: Server) -> None:
    asked = {"echo": True, "logprobs": 1, "max_tokens": 4, "ignore_eos": True}
    _, whole = completions(server, **asked)
    status, text = completions(server, **asked, stream=True)
    assert status == 200
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    assert choices[0]["text"] == FRANCE
    assert choices[0]["logprobs"]["token_logprobs"][0] is None
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    for name, values in whole["choices"][0]["logprobs"].items():
        parts = [choice["logprobs"][name] for choice in choices if choice["logprobs"]]
        assert [value for part in parts for value in part] == values, name


def test_vllms_parameter_is_answered_where_vllm_answers_it(server: Server) -> None:
    _, body = completions(server, prompt_logprobs=1, max_tokens=1)
    (choice,) = body["choices"]
    assert len(choice["prompt_logprobs"]) == body["usage"]["prompt_tokens"]
    assert choice["prompt_logprobs"][0] is None and choice["logprobs"] is None
    status, chat = server.chat(prompt_logprobs=1, max_tokens=1)
    assert status == 200
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in chat["choices"][0]
    assert "prompt_logprobs" not in server.chat(max_tokens=1)[1]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"echo": True, "logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"max_tokens": 0, "logprobs": 1}, "max_tokens"),
        ({"max_tokens": 0, "prompt_logprobs": 1}, "max_tokens"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
    ],
    ids=str,
)
def test_what_cannot_be_is_a_400_that_names_its_field(
    server: Server, body: dict[str, Any], param: str
) -> None:
    status, answer = completions(server, **body)
    assert (status, answer["error"]["param"]) == (400, param), answer
    assert completions(server, max_tokens=1)[0] == 200
