"""Groups are found and listed like models; endpoints that keep nothing are one flat list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.server import Server, running_server

ROUTES = """
providers:
  fake: { type: fake, name: Fake }
  paid: { type: openai, name: Paid, base_url: "http://127.0.0.1:9/v1", zdr: false }
models:
  acme/small: { context_length: 100, endpoints: [ { provider: fake } ] }
  acme/large:
    context_length: 9000
    endpoints: [ { provider: paid, model: l, context_length: 9000, prices: { prompt: 1, completion: 2 } } ]
  acme/both:
    endpoints:
      - { provider: fake, context_length: 200 }
      - { provider: paid, model: l, context_length: 9000, prices: { prompt: 1, completion: 2 } }
  acme/rank: { output_modalities: [rerank], endpoints: [ { provider: fake } ] }
groups:
  openrouter/auto: [acme/small, acme/large]
  team/gifts: [ "acme/both:free" ]
  team/mixed: [acme/small, acme/rank]
"""
MODELS = ["acme/small", "acme/large", "acme/both"]  # what writes text
GROUPS = ["openrouter/auto", "team/gifts", "team/mixed"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("groups"), ROUTES) as running:
        yield running


def data(server: Server, path: str) -> Any:
    status, body = server.get(path)
    assert status == 200, body
    return body["data"]


@pytest.mark.parametrize("path", ["/api/v1/models", "/api/v1/models/user"])
def test_groups_are_listed_after_the_models_with_a_price_nobody_knows(server: Server, path: str) -> None:
    listed = {model["id"]: model for model in data(server, path)}
    assert list(listed) == [*MODELS, *GROUPS]
    auto = listed["openrouter/auto"]
    assert (auto["pricing"]["prompt"], auto["pricing"]["completion"]) == ("-1", "-1")
    assert auto["context_length"] == 9000
    assert "acme/small, acme/large" in auto["description"]
    assert data(server, "/api/v1/models/count")["count"] == len(MODELS) + len(GROUPS)


def test_who_wants_no_text_asks_for_it(server: Server) -> None:
    ranking = data(server, "/api/v1/models?output_modalities=rerank")
    assert [model["id"] for model in ranking] == ["acme/rank", "team/mixed"]
    everything = data(server, "/api/v1/models?output_modalities=all")
    assert {model["id"] for model in everything} == {*MODELS, "acme/rank", *GROUPS}
    assert data(server, "/api/v1/models/count?output_modalities=all")["count"] == len(everything)


def test_a_group_is_found_alone_in_both_forms(server: Server) -> None:
    assert data(server, "/api/v1/model/openrouter/auto")["id"] == "openrouter/auto"
    status, bare = server.get("/v1/models/openrouter/free")
    assert (status, bare["id"], bare["object"]) == (200, "openrouter/free", "model")


def test_a_groups_endpoints_are_those_of_its_members(server: Server) -> None:
    found = data(server, "/api/v1/models/openrouter/auto/endpoints")
    assert found["id"] == "openrouter/auto"
    assert [(e["model_id"], e["provider_name"]) for e in found["endpoints"]] == [
        ("acme/small", "Fake"),
        ("acme/large", "Paid"),
    ]


def test_endpoints_that_keep_nothing_are_one_flat_list(server: Server) -> None:
    assert [(e["model_id"], e["provider_name"]) for e in data(server, "/api/v1/endpoints/zdr")] == [
        ("acme/small", "Fake"),
        ("acme/both", "Fake"),
        ("acme/rank", "Fake"),
    ]


@pytest.mark.parametrize("name", ["team/gifts", "openrouter/free"])
def test_a_group_of_free_endpoints_lists_no_other(server: Server, name: str) -> None:
    endpoints = data(server, f"/api/v1/models/{name}/endpoints")["endpoints"]
    assert {e["provider_name"] for e in endpoints} == {"Fake"}
    assert ("acme/both", 200) in [(e["model_id"], e["context_length"]) for e in endpoints]
    assert data(server, f"/api/v1/model/{name}")["context_length"] < 9000


def test_a_group_of_several_kinds_serves_each_with_the_members_for_it(server: Server) -> None:
    hello = {"model": "team/mixed", "messages": [{"role": "user", "content": "Hi"}]}
    status, told = server.post("/api/v1/chat/completions", hello)
    assert (status, told["model"]) == (200, "acme/small")
    status, told = server.post("/api/v1/rerank", {"model": "team/mixed", "query": "q", "documents": ["a"]})
    assert (status, told["model"]) == (200, "acme/rank")
    status, told = server.post("/api/v1/embeddings", {"model": "team/mixed", "input": "a"})
    assert (status, told["error"]["availability"]["code"]) == (400, "wrong_endpoint")
    assert told["error"]["message"].startswith("team/mixed does not make embeddings")
