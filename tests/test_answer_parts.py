"""What an upstream says beside its text, on each surface of the whole server: nothing vanishes silently."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.deltas import image, url_citation
from tests.support.server import GUARD_S, Server, running_server
from tests.support.sse import chunks
from tests.support.upstream import Upstream, chunk, json_response, sse
from tests.support.wire import Script, usage

ROUTES = """
providers:
  up: {{ type: openai, name: Up, base_url: {url}, forward_provider: true }}
models:
  m: {{ endpoints: [ {{ provider: up, model: up-m }} ] }}
"""
SAYS = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Upstream]]:
    with Upstream() as up:
        routes = ROUTES.format(url=up.base_url)
        with running_server(tmp_path_factory.mktemp("parts"), routes) as server:
            yield server, up


def whole(counts: Any = None, **message: Any) -> Script:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return json_response({"id": "c", "choices": [choice], "usage": counts or usage(5, 2)})


def streamed(*deltas: Any, counts: Any = None) -> Script:
    return sse([*map(chunk, deltas), chunk({}, "stop"), chunk(usage=counts or usage(5, 2))])


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_that_the_upstream_tells_apart(serving: tuple[Server, Upstream], stream: bool) -> None:
    server, up = serving
    asked = {"cached_tokens": 0, "cache_write_tokens": 0, "audio_tokens": 30, "video_tokens": 3}
    answered = {
        **{"reasoning_tokens": 0, "audio_tokens": 4, "image_tokens": 6},
        **{"accepted_prediction_tokens": 1, "rejected_prediction_tokens": 2},
    }
    counts = usage(50, 20, prompt_tokens_details=asked, completion_tokens_details=answered)
    up.enqueue(streamed({"content": "hi"}, counts=counts) if stream else whole(counts, content="hi"))
    body = {"model": "m", "messages": SAYS, "stream": stream}
    status, answer = server.post("/api/v1/chat/completions", body)
    told = (chunks(answer)[-1] if stream else answer)["usage"]
    assert status == 200
    assert (told["prompt_tokens_details"], told["completion_tokens_details"]) == (asked, answered)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_completions_reasoning(serving: tuple[Server, Upstream], stream: bool, hidden: bool) -> None:
    server, up = serving
    choices = [
        {"index": 0, "text": "", "reasoning": "hm"},
        {"index": 0, "text": "A", "finish_reason": "stop"},
    ]
    joined = {**choices[1], "reasoning": "hm"}
    counts = usage(5, 2)
    events = [*({"choices": [choice]} for choice in choices), {"choices": [], "usage": counts}]
    up.enqueue(sse(events) if stream else json_response({"choices": [joined], "usage": counts}))
    body = {"model": "m", "prompt": "One", "stream": stream, "reasoning": {"exclude": hidden}}
    status, answer = server.post("/api/v1/completions", body)
    told = [choice for one in chunks(answer) for choice in one["choices"]] if stream else answer["choices"]
    details = [{"type": "reasoning.text", "text": "hm", "format": "unknown", "index": 0}]
    assert (status, "".join(choice["text"] for choice in told)) == (200, "A")
    assert [choice["reasoning"] for choice in told if "reasoning" in choice] == ([] if hidden else ["hm"])
    thought = [choice["reasoning_details"] for choice in told if "reasoning_details" in choice]
    assert thought == ([] if hidden else [details])


SEES = {"content": "One two", "annotations": [url_citation(3)], "images": [image()]}
BODIES: dict[str, dict[str, Any]] = {
    "messages": {"model": "m", "max_tokens": 9, "messages": SAYS},
    "responses": {"model": "m", "input": "hi"},
}


def ask(server: Server, surface: str, **more: Any) -> tuple[str | None, Any]:
    """The notes in the header, and the answer or its stream's text."""
    data = json.dumps({**BODIES[surface], **more}).encode()
    request = urllib.request.Request(
        f"{server.url}/api/v1/{surface}", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=GUARD_S) as answer:
        text = answer.read().decode()
        return answer.headers["X-Ionrouter-Notes"], text if more.get("stream") else json.loads(text)


def named_events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


def test_a_message_has_citations_and_names_images(serving: tuple[Server, Upstream]) -> None:
    server, up = serving
    up.enqueue(
        whole(**SEES), streamed({"content": "One two"}, {k: SEES[k] for k in ("annotations", "images")})
    )
    notes, answer = ask(server, "messages")
    (block,) = answer["content"]
    assert [citation["url"] for citation in block["citations"]] == ["https://a.example/3"]
    assert notes == "left out, for this API has no form for it: images"
    late, text = ask(server, "messages", stream=True)
    events = named_events(text)
    assert late is None  # the headers were sent before
    assert events[-2]["ionrouter"]["notes"] == [notes]
    deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert deltas == ["text_delta", "citations_delta"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_has_citations_and_images(serving: tuple[Server, Upstream], stream: bool) -> None:
    server, up = serving
    up.enqueue(streamed(SEES) if stream else whole(**SEES))
    notes, answer = ask(server, "responses", stream=stream)
    message, drawn = (named_events(answer)[-1]["response"] if stream else answer)["output"]
    assert [cited["end_index"] for cited in message["content"][0]["annotations"]] == [3]
    assert drawn["result"] == "iVBORw0K0"
    assert notes is None and "notes" not in str(answer)
    up.enqueue(whole(content="x"))
    ask(server, "responses", input=[{"role": "user", "content": "hi"}, message, drawn])
    said = up.requests[-1].json()["messages"][1]
    assert (said["content"], said["images"]) == ("One two", [image()])


def test_what_a_response_leaves_out_is_told(serving: tuple[Server, Upstream]) -> None:
    server, up = serving
    said = {"content": "x", "audio": {"id": "a", "data": "x"}}
    up.enqueue(whole(**said), streamed(said))
    notes, _ = ask(server, "responses")
    assert notes == "left out, for this API has no form for it: audio"
    _, text = ask(server, "responses", stream=True)
    assert named_events(text)[-1]["response"]["ionrouter"]["notes"] == [notes]
