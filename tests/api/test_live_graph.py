"""GET routing/graph: a real router's table and health, as nodes and edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.commands.test_widths import in_terminal
from tests.support.accounts import bank
from tests.support.server import CHAT, running_server

ROUTES = """
routing: { explore: 0 }
providers:
  fake: { type: fake, name: Fake }
  twin: { type: fake, name: Twin }
  gone: { type: fake, name: Gone, options: { status: 503 } }
  far: { type: openai, name: Far, base_url: "https://api.example.com/v1", keys: [ELSEWHERE_API_KEY] }
defaults: { breaker: { failures: 1, cooldown: 60 } }
models:
  acme/one:
    name: Acme One
    strategy: price
    endpoints:
      - { provider: fake, model: one, prices: { prompt: 1, completion: 2 } }
      - { provider: twin, model: one, prices: { prompt: 1, completion: 2 } }
      - { provider: far, model: one }
    fallbacks: [acme/two]
  acme/two: { endpoints: [{ provider: gone, model: two }] }
  acme/split: { split: { fake: 70, twin: 30 }, endpoints: [{ provider: fake }, { provider: twin }] }
  acme/canary:
    canary: { endpoint: twin, percent: 5 }
    endpoints: [{ provider: fake }, { provider: twin }, { provider: twin, model: new }]
    shadow: { endpoint: fake/acme/split, share: 0.07 }
    hedge: {}
    fallbacks: [any-other]
  acme/vectors: { output_modalities: [embeddings], endpoints: [{ provider: fake, model: v }] }
aliases: { one: acme/one }
groups: { acme/best: [one, "acme/two:free"] }
splits: { acme/both: { acme/one: 90.5, acme/two: 9.5 } }
presets: { coder: { model: acme/both, temperature: 0.2 }, plain: { seed: 1 } }
patterns: { "any-*": { provider: fake } }
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The graph as an inference key sees it, after one request that failed."""
    with bank(tmp_path_factory.mktemp("graph"), ROUTES) as keys:
        assert keys.server.get("/api/v1/routing/graph")[0] == 401
        assert keys.chat(model="acme/two")[0] == 503
        return keys.ask("/routing/graph")["data"]


def _nodes(data: Any) -> dict[str, Any]:
    return {node["id"]: node for node in data["nodes"]}


def test_every_name_is_a_node_and_every_reference_an_edge(data: Any) -> None:
    assert len(_nodes(data)) == len(data["nodes"])
    kinds = [node["kind"] for node in data["nodes"]]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "preset": 2, "group": 2, "alias": 1, "pattern": 1, "model": 6, "endpoint": 11, "provider": 4,
        "domain": 4,
    }  # fmt: skip
    edges = {(edge["source"], edge["target"], edge["is_fallback"]) for edge in data["edges"]}
    assert ("alias:one", "model:acme/one", False) in edges
    assert ("model:acme/one", "model:acme/two", True) in edges
    assert ("endpoint:far/acme/one", "provider:far", False) in edges
    assert {end for edge in edges for end in edge[:2]} == set(_nodes(data)) - {"preset:plain"}


def test_endpoints_tell_price_share_and_score_of_the_example(data: Any) -> None:
    nodes = _nodes(data)
    fake, twin = nodes["endpoint:fake/acme/one"], nodes["endpoint:twin/acme/one"]
    assert (fake["share"], twin["share"]) == (0.5, 0.5)  # the strategy is price: equal prices share equally
    assert (fake["prompt_price"], fake["completion_price"]) == (1.0, 2.0)
    assert fake["expected_price"] == pytest.approx((1000 * 1 + 300 * 2) / 1e6)
    assert (fake["model"], fake["provider"], fake["upstream_model"]) == ("acme/one", "fake", "one")
    assert (fake["status"], fake["breaker"], fake["left_out"], fake["disabled"]) == (0, "closed", None, None)
    assert nodes["model:acme/one"]["strategy"] == "price"
    assert nodes["endpoint:fake/acme/vectors"]["share"] == 1.0


def test_the_shares_of_a_split_are_its_percentages_whatever_the_next_draw(data: Any) -> None:
    shares = {name: node["share"] for name, node in _nodes(data).items() if "share" in node}
    assert shares["endpoint:fake/acme/split"] == pytest.approx(0.7)
    assert shares["endpoint:twin/acme/split"] == pytest.approx(0.3)
    canary = [share for name, share in shares.items() if "canary" in name]
    assert shares["endpoint:fake/acme/canary"] == pytest.approx(0.95)
    assert sorted(canary) == pytest.approx([0.025, 0.025, 0.95])


def test_a_price_that_nobody_said_is_null_and_not_nothing(tmp_path: Path) -> None:
    with running_server(tmp_path, ROUTES, env={"ELSEWHERE_API_KEY": "far-key-1234567"}) as server:
        node = _nodes(server.get("/api/v1/routing/graph")[1]["data"])["endpoint:far/acme/one"]
        assert (node["disabled"], node["prompt_price"], node["completion_price"]) == (None, None, None)
        told = server.post("/api/v1/routing/explain", {**CHAT, "model": "one"})[1]["data"]["candidates"]
        prices = {row["endpoint_id"]: (row["prompt_price"], row["completion_price"]) for row in told}
        assert (prices["far/acme/one"], prices["fake/acme/one"]) == ((None, None), (1.0, 2.0))
        out = in_terminal(120, tmp_path, "explain", "one", "--url", server.url)
        row = next(line for line in out if line.startswith("far/acme/one")).split()
        assert row[1:3] == ["?", "?"]


def test_what_cannot_serve_says_why_and_has_no_share(data: Any) -> None:
    far, gone = _nodes(data)["endpoint:far/acme/one"], _nodes(data)["endpoint:gone/acme/two"]
    assert (far["disabled"], far["status"], far["share"]) == ("ELSEWHERE_API_KEY is unset", None, None)
    assert (gone["breaker"], gone["status"]) == ("open", -5)


def _edges(data: Any, source: str) -> dict[str, Any]:
    return {
        edge["target"]: {name: value for name, value in edge.items() if name not in ("source", "target")}
        for edge in data["edges"]
        if edge["source"] == source and not edge["is_fallback"]
    }


def test_a_canary_and_a_shadow_are_told_with_their_percentages(data: Any) -> None:
    node = _nodes(data)["model:acme/canary"]
    assert node["split"] == {"name": "canary of acme/canary", "percents": {"twin": 5, "the others": 95}}
    assert node["hedge"].startswith("after p95") and node["shadow"].startswith("7% of requests to ")
    found = _edges(data, "model:acme/canary")
    told = {target.removeprefix("endpoint:"): (e["percent"], e["arm"]) for target, e in found.items()}
    assert told == {
        "fake/acme/canary": (95, "the others"),
        "twin/acme/canary": (5, "twin"),
        "twin/acme/canary#2": (5, "twin"),
        "fake/acme/split": (7, None),
    }
    assert [target for target, e in found.items() if e["is_shadow"]] == ["endpoint:fake/acme/split"]
    assert _nodes(data)["model:acme/one"]["split"] is None
    assert {(e["percent"], e["arm"]) for e in _edges(data, "model:acme/one").values()} == {(None, None)}


def test_groups_and_presets_lead_to_what_they_stand_for(data: Any) -> None:
    nodes = _nodes(data)
    assert nodes["group:acme/best"]["members"] == ["one", "acme/two:free"]
    assert nodes["group:acme/best"]["split"] is None
    best = _edges(data, "group:acme/best")
    assert [(name, e["position"], e["percent"]) for name, e in best.items()] == [
        ("model:acme/one", 1, None),
        ("model:acme/two", 2, None),
    ]
    assert nodes["group:acme/both"]["split"]["percents"] == {"acme/one": 90.5, "acme/two": 9.5}
    assert [e["percent"] for e in _edges(data, "group:acme/both").values()] == [90.5, 9.5]
    coder, plain = nodes["preset:coder"], nodes["preset:plain"]
    assert (coder["title"], coder["fields"]) == ("@preset/coder", ["model", "temperature"])
    assert list(_edges(data, "preset:coder")) == ["group:acme/both"]
    assert (plain["fields"], _edges(data, "preset:plain")) == (["seed"], {})


def test_a_fallback_that_a_pattern_serves_has_its_endpoint_and_its_chances(data: Any) -> None:
    assert _nodes(data)["model:any-other"]["output_modalities"] == ["text"]
    assert list(_edges(data, "model:any-other")) == ["endpoint:fake/any-other"]
    assert _nodes(data)["endpoint:fake/any-other"]["share"] == 1.0
