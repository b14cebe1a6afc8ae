"""The response cache over real sockets, through the whole server: what comes back."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.support.kept import Pair, Trio, ask, chat, kept_server, pair_of
from tests.support.upstream import (
    Script,
    chat_json,
    chunk,
    completion_stream,
    embeddings_json,
    sse,
    usage,
)

CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    with kept_server(tmp_path_factory.mktemp("kept")) as trio:
        yield trio


@pytest.fixture
def pair(serving: Trio) -> Pair:
    return pair_of(serving)


def thinking_stream() -> Script:
    events = [chunk({"role": "assistant", "reasoning_content": "Hm."}), chunk({"content": "Hel"})]
    events += [chunk({"content": letter}) for letter in "lo, \u00e4\ud83d"]
    events += [chunk({"tool_calls": [CALL]}), chunk({}, "tool_calls"), chunk(usage=usage(5, 9))]
    return sse(events)


MESSAGES = [{"role": "user", "content": "hi"}]
SURFACES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "chat": ("/chat/completions", {"model": "m", "messages": MESSAGES, "tools": TOOLS}),
    "messages": (
        "/messages",
        {
            "model": "m",
            "max_tokens": 50,
            "messages": MESSAGES,
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        },
    ),
    "responses": (
        "/responses",
        {"model": "m", "input": "hi", "tools": [{"type": "function", "name": "f", "parameters": {}}]},
    ),
}


@pytest.mark.parametrize("surface", SURFACES)
def test_a_stream_comes_back_byte_by_byte_and_costs_nothing(pair: Pair, surface: str) -> None:
    server, up = pair
    path, body = SURFACES[surface]
    up.enqueue(thinking_stream())
    first, second = (ask(server, {**body, "stream": True}, path) for _ in range(2))
    assert (first.status, first.cache, second.status, second.cache) == (200, "MISS", 200, "HIT")
    assert len(up.requests) == 1
    assert second.words == first.words
    assert b"call_1" in second.body and second.body.count(b"\n\n") == first.body.count(b"\n\n") > 8
    ids = [answer.headers["X-Generation-Id"] for answer in (first, second)]
    assert ids[0] != ids[1] and ids[0].encode() not in second.body
    assert second.headers["X-OpenRouter-Cache-Source-Id"] == ids[0]
    assert first.usage["cost"] > 0
    told = [value for name, value in second.usage.items() if name.endswith("tokens")]
    assert second.usage["cost"] == 0 and told and not any(told)
    assert not re.search(rb'"(input|prompt|output|completion|total)_tokens":[1-9]', second.body)


@pytest.mark.parametrize("surface", SURFACES)
def test_a_whole_answer_comes_back_and_costs_nothing(pair: Pair, surface: str) -> None:
    server, up = pair
    path, body = SURFACES[surface]
    up.enqueue(chat_json("whole"))
    first, second = (ask(server, body, path) for _ in range(2))
    assert (first.cache, second.cache, len(up.requests)) == ("MISS", "HIT", 1)
    assert second.words == first.words and b"whole" in second.body
    assert second.json()["id"] == second.headers["X-Generation-Id"] != first.json()["id"]
    assert (first.usage["cost"] > 0, second.usage["cost"]) == (True, 0)
    assert second.headers["X-Ionrouter-Route"] == f"up/acme/m; kept answer of {first.json()['id']}"


def test_completions_and_embeddings(pair: Pair) -> None:
    server, up = pair
    up.enqueue(completion_stream(["a", "b"]), embeddings_json([[0.5, -1.0]]))
    text = {"model": "m", "prompt": "p", "stream": True}
    vector = {"model": "acme/embed", "input": "a"}
    for path, body in (("/completions", text), ("/embeddings", vector)):
        first, second = (ask(server, body, path) for _ in range(2))
        assert (first.status, first.cache, second.cache) == (200, "MISS", "HIT")
        assert second.words == first.words
        assert second.usage["prompt_tokens"] == second.usage["cost"] == 0
    assert len(up.requests) == 2


def test_large_embeddings_keep_their_numbers(pair: Pair) -> None:
    server, up = pair
    vectors = [[number / 7 + row for number in range(500)] for row in range(60)]
    up.enqueue(embeddings_json(vectors))
    first, second = (ask(server, {"model": "acme/embed", "input": ["a"] * 60}, "/embeddings") for _ in "ab")
    assert second.cache == "HIT" and second.words == first.words
    assert [row["embedding"] for row in second.json()["data"]] == vectors


def test_surfaces_do_not_share_answers(pair: Pair) -> None:
    server, up = pair
    body = {"model": "m", "messages": [{"role": "user", "content": "shared"}], "max_tokens": 9}
    up.enqueue(chat_json("A"), chat_json("B"))
    assert ask(server, body).cache == ask(server, body, "/messages").cache == "MISS"
    assert ask(server, body, "/messages").json()["content"][0]["text"] == "B"


def test_what_differs_is_another_answer(pair: Pair) -> None:
    server, up = pair
    up.default = chat_json("A")
    bodies: list[dict[str, Any]] = [
        {},
        {"temperature": 0},
        {"provider": {"sort": "price"}},
        {"provider": {"sort": "latency"}},
        {"models": ["acme/two"]},
        {"user": "u"},
    ]
    try:
        assert [chat(server, "differs", **body).cache for body in bodies] == ["MISS"] * 6
        assert [chat(server, "differs", **body).cache for body in bodies] == ["HIT"] * 6
        swapped = {"messages": [{"content": "differs", "role": "user"}], "model": "m"}
        assert ask(server, swapped).cache == "MISS"  # the order of properties counts
    finally:
        up.default = None


def test_spaces_compression_and_who_calls_do_not_differ(pair: Pair) -> None:
    server, up = pair
    body = {"model": "m", "messages": [{"role": "user", "content": "spaces"}]}
    up.enqueue(chat_json("A"))
    assert ask(server, body).cache == "MISS"
    assert ask(server, json.dumps(body, indent=3).encode()).cache == "HIT"
    assert ask(server, gzip.compress(json.dumps(body).encode()), Content_Encoding="gzip").cache == "HIT"
    assert (
        ask(server, body, HTTP_Referer="https://app.example", X_Title="App", X_Session_Id="s").cache == "HIT"
    )


def test_metadata_is_for_answers_that_were_routed(pair: Pair) -> None:
    server, up = pair
    up.enqueue(chat_json("A"))
    body = {"model": "m", "messages": [{"role": "user", "content": "metadata"}]}
    first, second = (ask(server, body, X_OpenRouter_Metadata="enabled") for _ in range(2))
    assert ("openrouter_metadata" in first.json(), "openrouter_metadata" in second.json()) == (True, False)
