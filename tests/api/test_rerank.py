"""POST rerank over a real socket: scores of the upstream beside the caller's own documents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Server, running_server
from tests.support.upstream import Upstream, error, json_response

DOCUMENTS = ["Paris is in France.", {"text": "Berlin is in Germany."}, "Rome is in Italy."]


def answer(*rows: tuple[Any, float], **more: Any) -> Any:
    results = [{"index": index, "relevance_score": score} for index, score in rows]
    return json_response({"id": "up-1", "results": results, "usage": {"total_tokens": 30}} | more)


GOOD = answer((2, 0.1), (0, 0.9), (1, 0.4))


def routes(up: Upstream, other: Upstream) -> str:
    return f"""
providers:
  up: {{ type: openai, name: Up, base_url: {up.base_url} }}
  other: {{ type: openai, name: Other, base_url: {other.base_url} }}
  fake: {{ type: fake, name: Fake }}
routing: {{ explore: 0 }}
models:
  acme/rerank:
    output_modalities: [rerank]
    context_length: 100
    endpoints:
      - {{ provider: up, model: r, prices: {{ prompt: 1, completion: 0 }} }}
      - {{ provider: other, model: r2, prices: {{ prompt: 1000, completion: 0 }} }}
  acme/units:
    output_modalities: [rerank]
    endpoints: [ {{ provider: up, model: u, prices: {{ prompt: 0, completion: 0, request: 0.002 }} }} ]
  acme/chat: {{ endpoints: [ {{ provider: fake }} ] }}
  acme/fake-rerank: {{ output_modalities: [rerank], endpoints: [ {{ provider: fake }} ] }}
"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Upstream, Upstream]]:
    folder: Path = tmp_path_factory.mktemp("rerank")
    up, other = Upstream(GOOD), Upstream(GOOD)
    with up, other, running_server(folder, routes(up, other)) as server:
        yield server, up, other


def rerank(server: Server, **body: Any) -> tuple[int, Any]:
    given = {"model": "acme/rerank", "query": "Where is Paris?", "documents": DOCUMENTS, **body}
    return server.post("/api/v1/rerank", given)


def test_results_come_by_relevance_with_the_callers_documents(serving: Any) -> None:
    server, up, _ = serving
    status, body = rerank(server)
    assert status == 200
    assert body["model"] == "acme/rerank" and body["provider"] == "Up" and body["id"].startswith("gen-")
    assert [(row["index"], row["relevance_score"]) for row in body["results"]] == [
        (0, 0.9),
        (1, 0.4),
        (2, 0.1),
    ]
    assert [row["document"] for row in body["results"]] == [
        {"text": "Paris is in France."},
        {"text": "Berlin is in Germany."},
        {"text": "Rome is in Italy."},
    ]
    assert body["usage"]["total_tokens"] == 30
    assert body["usage"]["cost"] == pytest.approx(30e-6)
    sent = up.requests[-1].json()
    assert up.requests[-1].path.endswith("/rerank")
    assert sent == {
        "model": "r",
        "query": "Where is Paris?",
        "documents": ["Paris is in France.", "Berlin is in Germany.", "Rome is in Italy."],
    }


def test_top_n_cuts_what_an_upstream_sends_too_many_of(serving: Any) -> None:
    server, up, _ = serving
    status, body = rerank(server, top_n=2)
    assert status == 200
    assert up.requests[-1].json()["top_n"] == 2
    assert [row["index"] for row in body["results"]] == [0, 1]


@pytest.mark.parametrize(("told", "cost"), [({"search_units": 10}, 0.02), ({}, 0.002)])
def test_each_search_unit_costs_the_price_of_a_request(serving: Any, told: Any, cost: float) -> None:
    server, up, _ = serving
    rows = [{"index": index, "relevance_score": 0.5} for index in range(3)]
    up.enqueue(json_response({"results": rows, "meta": {"billed_units": told}}))
    status, body = rerank(server, model="acme/units")
    assert (status, body["usage"]["cost"]) == (200, cost)
    _, kept = server.get(f"/api/v1/generation?id={body['id']}")
    assert kept["data"]["total_cost"] == cost


def test_documents_are_left_out_on_request(serving: Any) -> None:
    _, body = rerank(serving[0], return_documents=False)
    assert [row["document"] for row in body["results"]] == [{}, {}, {}]


@pytest.mark.parametrize(
    ("payload", "tokens", "units"),
    [
        (
            {"results": [{"index": 0, "relevance_score": 1}], "meta": {"billed_units": {"search_units": 3}}},
            None,
            3,
        ),
        ({"results": [{"index": 0, "score": 0.5}], "meta": {"tokens": {"input_tokens": 12}}}, 12, None),
        (
            {
                "data": [{"index": 0, "relevance_score": 0.5}],
                "usage": {"prompt_tokens": 9, "total_tokens": 9},
            },
            9,
            None,
        ),
        ([{"index": 0, "score": 0.7}], None, None),
        (
            {"results": [{"index": 0, "score": 0.7}], "usage": {"total_tokens": 9, "search_units": 1e308}},
            9,
            None,
        ),
    ],
    ids=["cohere", "cohere tokens", "voyage", "text-embeddings-inference", "units that are no number"],
)
def test_every_common_shape_is_read(
    serving: Any, payload: Any, tokens: int | None, units: int | None
) -> None:
    server, up, _ = serving
    up.enqueue(json_response(payload))
    status, body = rerank(server, documents=["a"])
    assert status == 200
    assert body["provider"] == "Up"
    assert body["usage"].get("search_units") == units
    if tokens is not None:
        assert body["usage"]["total_tokens"] == tokens


def test_places_are_read_as_those_of_vectors_are(serving: Any) -> None:
    server, up, _ = serving
    rows = [{"index": place, "relevance_score": score} for place, score in (("2", 0.1), (0.0, 0.9), (1, 0.4))]
    up.enqueue(json_response({"results": rows}))
    _, body = rerank(server)
    assert body["provider"] == "Up"
    assert [row["index"] for row in body["results"]] == [0, 1, 2]


@pytest.mark.parametrize(
    "bad",
    [
        answer((0, 0.5)),
        answer((0, 0.5), (0, 0.4), (1, 0.1)),
        answer((0, 0.5), (1, 0.4), (7, 0.1)),
        answer((0, float(1)), (1, 0.4), (-1, 0.1)),
        answer((0, 0.5), (1.5, 0.4), (2, 0.1)),
        answer((0, 0.5), (True, 0.4), (2, 0.1)),
        answer((0, 0.5), (None, 0.4), (2, 0.1)),
        json_response({"results": [{"index": 0}, {"index": 1}, {"index": 2}]}),
        json_response({"results": [{"index": i, "score": float("inf")} for i in range(3)]}),
        json_response({"results": []}),
        json_response({"results": "none"}),
        error(503, "busy"),
    ],
    ids=[
        "too few",
        "twice",
        "no such document",
        "negative",
        "between two",
        "a truth value",
        "none",
        "no score",
        "infinite",
        "empty",
        "no list",
        "503",
    ],
)
def test_an_answer_that_cannot_be_used_falls_back(serving: Any, bad: Any) -> None:
    server, up, _ = serving
    up.enqueue(bad)
    status, body = rerank(server)
    assert (status, body["provider"]) == (200, "Other")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"query": ""}, "query"),
        ({"query": None}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": ["a", ""]}, "documents[1]"),
        ({"documents": ["a", {}]}, "documents[1]"),
        ({"documents": "a"}, "documents"),
        ({"top_n": 0}, "top_n"),
        ({"stream": True}, ""),
        ({"provider": {"nonsense": 1}}, "nonsense"),
    ],
    ids=str,
)
def test_a_bad_field_is_a_400_that_names_it(serving: Any, body: Any, param: str) -> None:
    status, told = rerank(serving[0], **body)
    assert status == 400
    assert param in told["error"]["message"]


def test_a_chat_model_does_not_rerank_and_a_reranker_does_not_chat(serving: Any) -> None:
    server = serving[0]
    status, told = rerank(server, model="acme/chat")
    assert (status, told["error"]["code"]) == (400, 400)
    assert "does not rerank" in told["error"]["message"]
    hello = {"model": "acme/rerank", "messages": [{"role": "user", "content": "Hi"}]}
    status, told = server.post("/api/v1/chat/completions", hello)
    assert status == 400
    assert "/rerank" in told["error"]["message"]


@pytest.mark.parametrize(
    ("documents", "words"),
    [(["x" * 2000], "context length"), ([{"image": "https://example.com/a.png"}], "image input")],
    ids=["too long", "image"],
)
def test_what_no_reranker_can_take_is_a_400_that_names_the_documents(
    serving: Any, documents: Any, words: str
) -> None:
    status, told = rerank(serving[0], documents=documents)
    assert (status, told["error"]["param"]) == (400, "documents")
    assert words in told["error"]["message"]


def test_the_scripted_provider_ranks_too_and_the_generation_says_what_it_was(serving: Any) -> None:
    server = serving[0]
    status, body = rerank(server, model="acme/fake-rerank")
    assert status == 200
    assert [row["index"] for row in body["results"]] == [0, 1, 2]
    assert body["usage"]["search_units"] == 1
    status, told = server.get(f"/api/v1/generation?id={body['id']}")
    assert (status, told["data"]["api_type"]) == (200, "rerank")
