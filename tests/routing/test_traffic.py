"""Hedges, shadows, canaries, splits, breakers, probes from routes.yaml to the table; mistakes with paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from ionrouter.errors import ConfigError
from ionrouter.routing import catalog, graph
from ionrouter.routing.naming import routes_of
from ionrouter.routing.prices import PriceBook
from ionrouter.routing.table import BreakerRules, Hedge, RoutingTable
from tests.support.routes import request

PROVIDERS = """
providers:
  a: { type: openai, base_url: "http://127.0.0.1:1/v1" }
  b: { type: openai, base_url: "http://127.0.0.1:2/v1" }
  c: { type: openai, base_url: "http://127.0.0.1:3/v1" }
"""
ENDPOINTS = "endpoints: [{provider: a}, {provider: b}, {provider: c}]"


def table(text: str) -> RoutingTable:
    return graph.compile_table(catalog.loads(text, Path("/x/routes.yaml"), {}, PriceBook()), {})


def model(fields: str) -> RoutingTable:
    return table(f"{PROVIDERS}\nmodels:\n  m:\n    {ENDPOINTS}\n    {fields}\n")


def problems(fields: str, more: str = "") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        table(f"{PROVIDERS}\n{more}\nmodels:\n  m:\n    {ENDPOINTS}\n    {fields}\n")
    return [f"{problem.path}: {problem.message}" for problem in caught.value.problems]


def test_a_hedge_has_defaults_and_takes_seconds_or_p95() -> None:
    assert model("hedge: {}").models["m"].hedge == Hedge(after_s=None, floor_s=0.2, budget=0.05)
    assert model("hedge: {after: p95, floor: 1}").models["m"].hedge == Hedge(None, 1.0, 0.05)
    assert model("hedge: {after: 2, budget: 0.5}").models["m"].hedge == Hedge(2.0, 0.2, 0.5)
    assert model("name: M").models["m"].hedge is None


def test_a_canary_is_a_split_between_it_and_the_others() -> None:
    split = model("canary: {endpoint: b, percent: 5}").models["m"].split
    assert split is not None
    assert [(arm.percent, sorted(arm.members)) for arm in split.arms] == [(5, ["b/m"]), (95, ["a/m", "c/m"])]
    assert str(split) == "canary of m: 5% b, 95% the others"


def test_a_split_names_endpoints_by_provider_tag_or_id() -> None:
    split = model("split: {a: 70, b/m: 30}").models["m"].split
    assert split is not None and [arm.members for arm in split.arms] == [{"a/m"}, {"b/m"}]


def test_a_shadow_may_be_another_models_endpoint() -> None:
    text = (
        f"{PROVIDERS}\nmodels:\n  n: {{ {ENDPOINTS} }}\n  m:\n    endpoints: [{{provider: a}}]\n    shadow: "
    )
    shadow = table(text + "{endpoint: c/n, share: 0.5}").models["m"].shadow
    assert shadow is not None and (shadow.endpoint.id, shadow.share, shadow.max_running) == ("c/n", 0.5, 4)
    own = table(text + "{endpoint: a}").models["m"].shadow
    assert own is not None and own.endpoint.id == "a/m"


def test_splits_of_models_are_groups_with_percentages() -> None:
    text = PROVIDERS + "models: {m: {endpoints: [{provider: a}]}, n: {endpoints: [{provider: b}]}}\n"
    compiled = table(text + "splits: {chat: {m: 80, n: 20}}")
    assert compiled.groups["chat"] == ("m", "n")
    assert [(arm.name, arm.percent) for arm in compiled.splits["chat"].arms] == [("m", 80), ("n", 20)]


def test_a_splits_routes_know_their_arm_by_the_name_that_the_split_has() -> None:
    text = PROVIDERS + "models: {m: {endpoints: [{provider: a}]}, n: {endpoints: [{provider: b}]}}\n"
    compiled = table(text + "aliases: {short: n}\nsplits: {chat: {'m:nitro': 80, short: 20}}")
    routes = routes_of(compiled, "chat", request("chat"))
    assert [(route.id, route.group_arm, route.variants) for route in routes] == [
        ("m", "m:nitro", ("nitro",)),
        ("n", "short", ()),
    ]
    split = compiled.splits["chat"]
    assert all(route.group == "chat" and route.group_split is split for route in routes)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("split: {a: 70, b: 20}", "models.m.split: percentages must add up to 100, not 90"),
        (
            "split: {a: 70, nobody: 30}",
            "models.m.split.nobody: no endpoint of this model is 'nobody'; it has a/m, b/m, c/m",
        ),
        ("split: {a: 70, a/m: 30}", "models.m.split.a/m: a/m is in 'a' already; name endpoints by their ids"),
        (
            "canary: {endpoint: z, percent: 5}",
            "models.m.canary.endpoint: no endpoint of this model is 'z'; it has a/m, b/m, c/m",
        ),
        ("canary: {endpoint: a, percent: 101}", "models.m.canary.percent: must be at most 100"),
        ("canary: {endpoint: a, percent: 0}", "models.m.canary.percent: must be more than 0"),
        (
            "shadow: {endpoint: z/z}",
            "models.m.shadow.endpoint: no endpoint of this model, and no endpoint's id, is 'z/z'; "
            "it has a/m, b/m, c/m",
        ),
        ("shadow: {endpoint: a, share: 2}", "models.m.shadow.share: must be at most 1"),
        ("hedge: {after: p50}", "models.m.hedge.after: seconds, or p95"),
        ("hedge: {after: 0}", "models.m.hedge.after: must be more than 0"),
        ("hedge: {budget: 1.5}", "models.m.hedge.budget: must be at most 1"),
        ("hedge: {afterwards: 1}", "models.m.hedge.afterwards: unknown field; did you mean 'after'?"),
    ],
)
def test_mistakes_are_told_with_their_path(fields: str, expected: str) -> None:
    assert problems(fields) == [expected]


def test_both_a_canary_and_a_split_are_one_too_many() -> None:
    told = problems("canary: {endpoint: a, percent: 5}\n    split: {a: 50, b: 50}")
    assert told == ["models.m.canary: give either canary or split"]


def test_a_canary_needs_others_beside_it() -> None:
    text = (
        f"{PROVIDERS}\nmodels: {{m: {{endpoints: [{{provider: a}}], canary: {{endpoint: a, percent: 5}}}}}}"
    )
    with pytest.raises(ConfigError, match="leaves no other endpoint"):
        table(text)


def test_splits_of_models_need_known_models_and_a_name_of_their_own() -> None:
    told = problems("name: M", "splits: {m: {m: 50, n: 40}}\ngroups: {m: [m]}")
    assert set(told) == {
        "splits.m: is a model or an alias already",
        "groups.m: is a model or an alias already",
        "splits.m: is a group already",
        "splits.m.n: no model, alias or pattern is 'n'",
        "splits.m: percentages must add up to 100, not 90",
    }


def test_breaker_rules_come_from_the_nearest_level() -> None:
    text = """
defaults: {breaker: {failures: 9, error_rate: 0.9, cooldown: 90, max_cooldown: 900}}
providers:
  a: { type: openai, base_url: "http://127.0.0.1:1/v1", breaker: {failures: 5, cooldown: 50} }
models:
  m: { endpoints: [{provider: a, breaker: {failures: 2}}] }
  n: { endpoints: [{provider: a, cooldown: 0}] }
"""
    m, n = (table(text).models[name].endpoints[0].breaker for name in ("m", "n"))
    assert m == BreakerRules(2, 0.9, 50.0, 900.0)
    assert n == BreakerRules(5, 0.9, 0.0, 900.0)


def test_cooldown_is_said_once_and_under_its_maximum() -> None:
    text = PROVIDERS + "models: {m: {endpoints: [{provider: a, cooldown: 3, breaker: {cooldown: 4}}]}}"
    with pytest.raises(ConfigError, match=r"models.m.endpoints\[0\].cooldown: give either cooldown or"):
        table(text)
    text = PROVIDERS + "models: {m: {endpoints: [{provider: a, breaker: {cooldown: 4, max_cooldown: 2}}]}}"
    with pytest.raises(ConfigError, match=r"breaker: cooldown \(4 s\) is longer than max_cooldown \(2 s\)"):
        table(text)


@pytest.mark.parametrize(
    ("provider", "offer", "expected"),
    [
        ("", "", 300.0),  # a server nearby, free
        ("", "prices: {prompt: 1, completion: 1}", 0.0),
        ("", "prices: {prompt: 0, completion: 0}", 300.0),
        ("", "probe: false", 0.0),
        ("", "probe: 20, prices: {prompt: 1, completion: 1}", 20.0),
        ("probe: true", "prices: {prompt: 1, completion: 1}", 300.0),
        ("probe: true", "probe: false", 0.0),
        ("keys: [K]", "", 0.0),  # nobody said what it costs
    ],
)
def test_only_free_endpoints_are_probed_unasked(provider: str, offer: str, expected: float) -> None:
    text = f"""
providers:
  a: {{ type: openai, base_url: "http://127.0.0.1:1/v1", {provider} }}
models:
  m: {{ endpoints: [{{provider: a, {offer}}}] }}
"""
    assert table(text).models["m"].endpoints[0].probe_s == expected
