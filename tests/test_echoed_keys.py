"""An upstream that echoes our key wherever an answer has words beside the answer itself: nobody sees it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.server import Server, running_server
from tests.support.upstream import DONE, Received, Script, Upstream, chunked, error, event, json_response

KEY = "sk-UPSTREAM-KEY-123456"
MESSAGES = [{"role": "user", "content": "hi"}]
PATHS: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": MESSAGES},
    "completions": {"prompt": "hi"},
    "messages": {"messages": MESSAGES, "max_tokens": 9, "stop_sequences": ["x"]},
    "responses": {"input": "hi"},
    "embeddings": {"input": "hi"},
    "rerank": {"query": "hi", "documents": ["a"]},
}
STREAMED = tuple(PATHS)[:4]
WORDS = {
    name: f"a {KEY} b"
    for name in (
        *("id", "model", "service_tier", "system_fingerprint", "provider", "warning", "request_id"),
        *("created", "object", "native_finish_reason", "citations"),
    )
}
USED = {"prompt_tokens": 1, "completion_tokens": 1, "note": KEY, "prompt_tokens_details": {"note": KEY}}
ODD = {"finish_reason": f"ended by {KEY}", "stop_reason": KEY, "matched_stop": KEY, "logprobs": None}
HEADERS = {"X-Request-Id": KEY, "Server": KEY, "OpenAI-Organization": KEY}
WRONG = {"error": {"message": KEY, "type": KEY, "code": KEY, "param": KEY, "metadata": {"raw": KEY}}}


def echoing(got: Received) -> Script:
    """The answer to any request, whole or streamed, right or wrong."""
    asked = got.json()
    if got.path.endswith("embeddings"):
        rows = [{**WORDS, "index": 0, "embedding": [1.0]}]
        return json_response({**WORDS, "data": rows, "usage": USED}, headers=HEADERS)
    if got.path.endswith("rerank"):
        rows = [{**WORDS, "index": 0, "relevance_score": 1.0}]
        return json_response(
            {**WORDS, "results": rows, "usage": USED, "meta": {"note": KEY}}, headers=HEADERS
        )
    said = {"text": "hi"} if got.path.endswith("/completions") and "prompt" in asked else {}
    key = "delta" if asked.get("stream") else "message"
    choice = {**WORDS, "index": 0, key: {"role": "assistant", "content": "hi", "warning": KEY}, **said}
    if not asked.get("stream"):
        return json_response({**WORDS, "choices": [{**choice, **ODD}], "usage": USED}, headers=HEADERS)
    end = {**choice, key: {}, **ODD, **({"text": ""} if said else {})}
    events = [{**WORDS, "choices": [each]} for each in (choice, end)]
    return chunked(
        [*map(event, events), event({**WORDS, "choices": [], "usage": USED}), DONE], headers=HEADERS
    )


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Upstream]]:
    with Upstream(echoing) as up:
        routes = f"""
providers:
  direct: {{ type: openai, base_url: {up.base_url}, keys: [UP_KEY] }}
  hosted: {{ type: litellm, litellm_provider: together_ai, base_url: {up.base_url}, keys: [UP_KEY] }}
models:
  direct: {{ endpoints: [ {{ provider: direct, model: up }} ] }}
  embeddings: {{ output_modalities: [embeddings], endpoints: [ {{ provider: direct, model: up }} ] }}
  rerank: {{ output_modalities: [rerank], endpoints: [ {{ provider: direct, model: up }} ] }}
  hosted: {{ endpoints: [ {{ provider: hosted, model: up }} ] }}
"""
        folder = tmp_path_factory.mktemp("echoes")
        with running_server(folder, routes, env={"UP_KEY": KEY}, log_level="debug") as server:
            yield server, up


ASKED = [
    pytest.param(model, path, stream, id=f"{model} {path}{' stream' if stream else ''}")
    for model, paths in (("direct", tuple(PATHS)), ("hosted", ("chat/completions",)))
    for path in paths
    for stream in (False, True)
    if path in STREAMED or not stream
]


@pytest.mark.parametrize(("model", "path", "stream"), ASKED)
def test_no_answer_and_no_record_holds_our_key(
    shared: tuple[Server, Upstream], model: str, path: str, stream: bool
) -> None:
    server, up = shared
    for wanted in (200, 400):
        if wanted == 400:
            up.enqueue(error(400, {**WRONG, **WORDS}, HEADERS))
        name = path if path in ("embeddings", "rerank") else model
        body = {**PATHS[path], "model": name, **({"stream": True} if stream else {})}
        status, answer = server.post(f"/api/v1/{path}", body)
        assert status == wanted, answer
        assert KEY not in json.dumps(answer)
    for done in server.wait_for_event("request_finished", 2):
        told = server.get(f"/api/v1/generation?id={done['request']}", server.management_key())[1]
        assert KEY not in json.dumps(told)
    assert KEY not in server.log
    for where in ("/metrics", "/api/v1/stats", "/api/v1/activity"):
        assert KEY not in json.dumps(server.get(where, server.management_key())[1])
    for file in server.state.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file
