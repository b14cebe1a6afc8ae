"""POST embeddings over a real socket, through the whole server and a scripted upstream."""

from __future__ import annotations

import base64
import http.client
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Server, running_server
from tests.support.upstream import Upstream, embeddings_json, error, json_response

VECTORS = [[0.5, -1.0], [2.0, 0.25]]
PACKED = [base64.b64encode(struct.pack("<2f", *vector)).decode() for vector in VECTORS]


def routes(up: Upstream, other: Upstream) -> str:
    return f"""
providers:
  up: {{ type: openai, name: Up, base_url: {up.base_url} }}
  other: {{ type: openai, name: Other, base_url: {other.base_url} }}
  fake: {{ type: fake, name: Fake }}
routing: {{ explore: 0 }}
defaults: {{ breaker: {{ cooldown: 0 }} }}
models:
  acme/embed:
    output_modalities: [embeddings]
    context_length: 100
    endpoints:
      - {{ provider: up, model: e, prices: {{ prompt: 1, completion: 0 }} }}
      - {{ provider: other, model: e2, prices: {{ prompt: 1000, completion: 0 }} }}
  acme/chat: {{ endpoints: [ {{ provider: fake }} ] }}
"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Upstream, Upstream]]:
    folder: Path = tmp_path_factory.mktemp("embeddings")
    up, other = Upstream(embeddings_json(VECTORS)), Upstream(embeddings_json(VECTORS))
    with up, other, running_server(folder, routes(up, other)) as server:
        yield server, up, other


def embed(server: Server, **body: Any) -> tuple[int, Any]:
    return server.post("/api/v1/embeddings", {"model": "acme/embed", "input": ["a", "b"], **body})


def packed(upstream_usage: bool = True) -> Any:
    data = [{"object": "embedding", "index": i, "embedding": text} for i, text in enumerate(PACKED)]
    usage = {"usage": {"prompt_tokens": 4, "total_tokens": 4}} if upstream_usage else {}
    return json_response({"object": "list", "model": "e", "data": data, **usage})


def packed_large(vectors: list[list[float]]) -> Any:
    coded = [base64.b64encode(struct.pack(f"<{len(v)}f", *v)).decode() for v in vectors]
    return json_response({"data": [{"index": i, "embedding": text} for i, text in enumerate(coded)]})


def test_numbers_by_default_and_base64_on_request(serving: Any) -> None:
    server, up, _ = serving
    status, plain = embed(server)
    _, coded = embed(server, encoding_format="base64")
    assert status == 200
    assert [row["embedding"] for row in plain["data"]] == VECTORS
    assert [row["embedding"] for row in coded["data"]] == PACKED
    assert (plain["model"], plain["provider"], plain["object"]) == ("acme/embed", "Up", "list")
    assert plain["usage"]["prompt_tokens"] == plain["usage"]["total_tokens"] == 4
    assert plain["usage"]["cost"] == pytest.approx(4e-6)
    assert "encoding_format" not in up.requests[-1].json()
    assert up.requests[-1].json()["model"] == "e"
    assert up.requests[-1].path == "/v1/embeddings"


def test_an_upstream_that_answers_in_base64_unasked(serving: Any) -> None:
    server, up, _ = serving
    up.enqueue(packed(), packed())
    assert [row["embedding"] for row in embed(server)[1]["data"]] == VECTORS
    assert [row["embedding"] for row in embed(server, encoding_format="base64")[1]["data"]] == PACKED


def test_broken_vectors_and_faults_go_to_the_next_endpoint(serving: Any) -> None:
    server, up, _ = serving
    up.enqueue(json_response({"data": [{"index": 0, "embedding": "not base64!"}]}))
    assert embed(server)[1]["provider"] == "Other"
    up.enqueue(error(503))
    assert embed(server)[1]["provider"] == "Other"


def test_usage_nobody_reported_is_estimated(serving: Any) -> None:
    server, up, other = serving
    for upstream in (up, other):
        upstream.enqueue(packed(upstream_usage=False))
    _, body = embed(server, input=["a" * 40, "b" * 40])
    assert body["usage"]["prompt_tokens"] == 20
    assert body["usage"]["total_tokens"] == 20


def test_a_large_answer_is_the_same_to_the_last_bit(serving: Any) -> None:
    server, up, _ = serving
    rng = random.Random(1)
    vectors = [[rng.uniform(-1, 1) for _ in range(256)] for _ in range(300)]
    up.enqueue(*[embeddings_json(vectors)] * 2, packed_large(vectors))
    inputs = ["a"] * 300
    status, plain = embed(server, input=inputs)
    _, coded = embed(server, input=inputs, encoding_format="base64")
    _, unasked = embed(server, input=inputs)
    floats = [struct.unpack("<256f", struct.pack("<256f", *vector)) for vector in vectors]
    assert (status, plain["provider"], plain["object"], plain["model"]) == (200, "Up", "list", "acme/embed")
    assert [(row["index"], row["object"], row["embedding"]) for row in plain["data"]] == [
        (i, "embedding", vector) for i, vector in enumerate(vectors)
    ]
    assert [struct.unpack("<256f", base64.b64decode(row["embedding"])) for row in coded["data"]] == floats
    assert [tuple(row["embedding"]) for row in unasked["data"]] == floats
    assert plain["usage"] == coded["usage"]
    assert plain["usage"]["prompt_tokens"] > 0


def test_a_large_answer_that_is_none_is_a_failure_and_one_that_nobody_takes_holds_nobody(
    serving: Any,
) -> None:
    server, up, _ = serving
    vectors = [[0.123456789] * 256 for _ in range(299)]
    up.enqueue(embeddings_json([*vectors, [1e39] * 256]), embeddings_json([*vectors, vectors[0]]))
    status, body = embed(server, input=["a"] * 300)
    assert (status, "embedding 299 is not a list" in json.dumps(body)) == (502, True)  # nor has the other 300
    leaving = http.client.HTTPConnection(server.host, server.port)
    asked = json.dumps({"model": "acme/embed", "input": ["a"] * 300})
    leaving.request("POST", "/api/v1/embeddings", asked, {"Content-Type": "application/json"})
    answer = leaving.getresponse()
    assert int(answer.headers["Content-Length"]) > 300 * 256 * 11
    assert answer.headers["X-Generation-Id"] and answer.headers["X-Ionrouter-Route"]
    answer.read(10)
    leaving.close()
    assert embed(server)[0] == 200
    assert not server.events("request_crashed")


def test_zero_reported_tokens_are_believed_as_those_of_a_chat_are(serving: Any) -> None:
    server, up, _ = serving
    rows = [{"index": i, "embedding": vector} for i, vector in enumerate(VECTORS)]
    up.enqueue(json_response({"data": rows, "usage": {"prompt_tokens": 0, "total_tokens": 0}}))
    usage = embed(server)[1]["usage"]
    assert (usage["prompt_tokens"], usage["total_tokens"], usage["cost"]) == (0, 0, 0.0)


def test_each_input_must_fit_not_all_together(serving: Any) -> None:
    server, _, _ = serving
    assert embed(server, input=["a" * 300, "b" * 300])[0] == 200
    status, body = embed(server, input=["a" * 3000, "b"])
    assert (status, body["error"]["metadata"]["error_type"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("vectors", "asked"),
    [([[0.5, -1.0]], {}), ([[0.5], [2.0]], {"dimensions": 2}), ([[0.5], [2.0, 0.25]], {})],
    ids=["too few", "too short", "of two sizes"],
)
def test_vectors_that_were_not_asked_for_are_a_failure_of_their_endpoint(
    serving: Any, vectors: list[list[float]], asked: dict[str, Any]
) -> None:
    server, up, other = serving
    up.enqueue(embeddings_json(vectors))
    num_before = len(other.requests)
    status, body = embed(server, **asked)
    assert (status, body["provider"]) == (200, "Other")
    assert [row["embedding"] for row in body["data"]] == VECTORS
    assert len(other.requests) == num_before + 1
    told = server.get(f"/api/v1/generation?id={body['id']}")[1]["data"]
    assert [(a["provider_name"], a["failure"]) for a in told["provider_responses"]] == [
        ("Up", "transient"),
        ("Other", None),
    ]
    assert told["total_cost"] == body["usage"]["cost"]  # the failed attempt's usage was never read


def test_fewer_dimensions_than_asked_for_are_no_answer(serving: Any) -> None:
    """Nobody has as many: all attempts failed, and nothing is booked as an answer."""
    server, up, other = serving
    status, body = embed(server, dimensions=3)
    assert status == 502
    assert "2 dimensions where 3 were asked for" in body["error"]["message"]
    assert all(upstream.requests[-1].json()["dimensions"] == 3 for upstream in (up, other))
    assert len(body["error"]["metadata"]["previous_errors"]) == 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/embeddings", {"model": "acme/chat", "input": "x"}),
        ("/api/v1/chat/completions", {"model": "acme/embed", "messages": [{"role": "user", "content": "x"}]}),
        ("/api/v1/completions", {"model": "acme/embed", "prompt": "x"}),
        ("/api/v1/responses", {"model": "acme/embed", "input": "x"}),
    ],
)
def test_the_wrong_endpoint_for_a_model_says_so(serving: Any, path: str, body: Any) -> None:
    status, answer = serving[0].post(path, body)
    assert status == 400
    assert answer["error"]["availability"]["code"] == "wrong_endpoint"
    assert answer["error"]["param"] == "model"


def test_the_models_that_make_embeddings(serving: Any) -> None:
    status, body = serving[0].get("/api/v1/embeddings/models")
    assert status == 200
    assert [model["id"] for model in body["data"]] == ["acme/embed"]
    assert body["data"][0]["architecture"]["output_modalities"] == ["embeddings"]
