"""Hosted models through the real litellm, in the whole server; Together and Fireworks are scripted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support.server import GUARD_S, Server, running_server
from tests.support.sse import chunks, content, data_lines
from tests.support.upstream import (
    Cut,
    Upstream,
    chunk,
    fireworks_json,
    fireworks_stream,
    sse,
    together_error,
    together_json,
    together_stream,
)

pytestmark = pytest.mark.xdist_group("hosted")  # one litellm worker: 300 MB and 10 s


@dataclass
class Hosted:
    server: Server
    together: Upstream
    fireworks: Upstream


ROUTES = """
providers:
  together:
    type: litellm
    name: Together
    litellm_provider: together_ai
    base_url: {together}
    keys: [TOGETHER_API_KEY]
  fireworks:
    type: litellm
    name: Fireworks
    litellm_provider: fireworks_ai
    base_url: {fireworks}
    keys: [FIREWORKS_API_KEY]
  gone: {{ type: openai, name: Gone, base_url: http://127.0.0.1:1/v1 }}
routing: {{ explore: 0 }}
models:
  meta-llama/llama-3.3-70b-instruct:
    endpoints:
      - provider: together
        model: meta-llama/Llama-3.3-70B-Instruct-Turbo
        prices: {{ prompt: 1, completion: 1 }}
      - provider: fireworks  # so dear that it is only ever the fallback
        model: accounts/fireworks/models/llama-v3p3-70b-instruct
        prices: {{ prompt: 5000, completion: 5000 }}
  acme/gone:
    endpoints: [ {{ provider: gone }} ]
    fallbacks: [ meta-llama/llama-3.3-70b-instruct ]
"""
MODEL = "meta-llama/llama-3.3-70b-instruct"
KEYS = {"TOGETHER_API_KEY": "tgp_v1_together_secret", "FIREWORKS_API_KEY": "fw_fireworks_secret"}


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with Upstream() as together, Upstream() as fireworks:
        routes = ROUTES.format(together=together.base_url, fireworks=fireworks.base_url)
        with running_server(tmp_path_factory.mktemp("hosted"), routes, env=KEYS) as server:
            _wait_until_together_answers(server, together, fireworks)
            yield Hosted(server, together, fireworks)


def _wait_until_together_answers(server: Server, together: Upstream, fireworks: Upstream) -> None:
    """litellm's import takes a while; until then its endpoints fail to connect, and breakers open."""
    together.default, fireworks.default = together_json("warm"), fireworks_json("warm")
    deadline = time.monotonic() + GUARD_S
    while server.chat(model=MODEL)[1].get("provider") != "Together":
        assert time.monotonic() < deadline, server.log
        time.sleep(0.5)
    together.default = fireworks.default = None


def test_a_hosted_model_answers_the_stock_client(hosted: Hosted) -> None:
    hosted.together.enqueue(together_json("Hello from Together"), together_stream(["Hello", " again"]))
    with OpenAI(base_url=hosted.server.base_url, api_key="unused", max_retries=0) as client:
        messages = [{"role": "user", "content": "hi"}]
        whole = client.chat.completions.create(model=MODEL, messages=messages)  # type: ignore[arg-type]
        assert whole.choices[0].message.content == "Hello from Together"
        assert whole.provider == "Together"  # type: ignore[attr-defined]
        stream = client.chat.completions.create(model=MODEL, messages=messages, stream=True)  # type: ignore[call-overload]
        pieces = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in pieces if c.choices) == "Hello again"
    assert pieces[-1].usage.cost > 0
    seen = hosted.together.requests[-1]
    assert seen.headers["authorization"] == f"Bearer {KEYS['TOGETHER_API_KEY']}"
    assert seen.json()["model"] == "meta-llama/Llama-3.3-70B-Instruct-Turbo"


@pytest.mark.parametrize("stream", [True, False])
def test_when_together_fails_fireworks_answers(hosted: Hosted, stream: bool) -> None:
    hosted.together.enqueue(together_error(503, "overloaded"))
    hosted.fireworks.enqueue(
        fireworks_stream(["from", " Fireworks"]) if stream else fireworks_json("from Fireworks")
    )
    status, body = hosted.server.chat(model=MODEL, stream=stream)
    assert status == 200
    text = content(body) if stream else body["choices"][0]["message"]["content"]
    assert text == "from Fireworks"
    answers = chunks(body) if stream else [body]
    assert {answer["provider"] for answer in answers} == {"Fireworks"}


def test_after_the_first_token_there_is_no_switch(hosted: Hosted) -> None:
    hosted.together.enqueue(sse([chunk({"content": "Hel"})], done=False, end=False).then(Cut()))
    before = len(hosted.fireworks.requests)
    _, body = hosted.server.chat(model=MODEL, stream=True)
    assert content(body) == "Hel"
    assert chunks(body)[-1]["error"]["code"] == 502
    assert "[DONE]" not in data_lines(body)
    assert len(hosted.fireworks.requests) == before


def test_a_model_nobody_can_serve_falls_back_to_another(hosted: Hosted) -> None:
    hosted.together.enqueue(together_stream(["second", " choice"]))
    _, body = hosted.server.chat(model="acme/gone", stream=True)
    assert content(body) == "second choice"
    assert {c["model"] for c in chunks(body)} == {MODEL}


def test_keys_are_in_no_log(hosted: Hosted) -> None:
    hosted.together.enqueue(together_error(401, f"bad key {KEYS['TOGETHER_API_KEY']}"))
    hosted.fireworks.enqueue(fireworks_json("ok"))
    assert hosted.server.chat(model=MODEL)[0] == 200
    for key in KEYS.values():
        assert key not in hosted.server.log


def test_the_worker_ends_with_the_server(tmp_path: Path) -> None:
    """Its litellm process must not outlive it, however it ends."""
    with Upstream(together_json("ok")) as up:
        routes = ROUTES.format(together=up.base_url, fireworks=up.base_url)
        with running_server(tmp_path, routes, env=KEYS) as server:
            (worker,) = _children(server.process.pid)
            server.process.kill()
            server.process.wait()
        _wait_gone(worker)


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def _wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "the worker outlived its server"
        time.sleep(0.1)
