"""From names to tiers of routes: groups, free models, suffixes, and what is said of a wrong name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ionrouter.errors import AvailabilityError
from ionrouter.routing.naming import routes_of
from ionrouter.routing.table import ModelRoute, RoutingTable
from tests.support.routes import endpoint, price, request, route, table

DEAR, GIFT = endpoint("dear", price=price(1, 2)), endpoint("gift")
STRANGER = endpoint("stranger", price_source="unknown")
SMALL, LARGE = endpoint("small", context_length=1000), endpoint("large", context_length=9000)


def found(name: str, *routes: ModelRoute, **groups: tuple[str, ...]) -> list[tuple[str, list[str]]]:
    return [
        (r.id, [e.id for e in r.endpoints]) for r in routes_of(in_groups(routes, groups), name, request())
    ]


def in_groups(routes: tuple[ModelRoute, ...], groups: dict[str, tuple[str, ...]]) -> RoutingTable:
    return replace(table(*routes), groups={name.replace("_", "/"): names for name, names in groups.items()})


def test_a_group_is_all_of_its_models_as_one_tier() -> None:
    routes = (route("a", DEAR), route("b", GIFT), route("c", LARGE))
    asked = request("openrouter/auto")
    members = routes_of(in_groups(routes, {"openrouter_auto": ("b", "a")}), "openrouter/auto", asked)
    assert [(m.id, m.group) for m in members] == [("b", "openrouter/auto"), ("a", "openrouter/auto")]


def test_a_groups_suffix_is_each_models_and_members_may_have_their_own() -> None:
    routes = (route("a", DEAR, GIFT), route("b", SMALL, LARGE))
    assert found("g:free", *routes, g=("a", "b")) == [("a", ["gift"]), ("b", ["small", "large"])]
    assert found("g", *routes, g=("a", "b:extended")) == [("a", ["dear", "gift"]), ("b", ["large"])]


def test_free_is_what_is_known_to_cost_nothing() -> None:
    assert found("m:free", route("m", DEAR, GIFT, STRANGER)) == [("m", ["gift"])]


def test_the_free_router_is_every_model_with_a_free_endpoint() -> None:
    routes = (route("a", DEAR), route("b", DEAR, GIFT), route("c", STRANGER))
    assert found("openrouter/free", *routes) == [("b", ["gift"])]
    assert found("openrouter/free", *routes, openrouter_free=("a",)) == [("a", ["dear"])]


def test_suffixes_are_stacked() -> None:
    priced = endpoint("priced", context_length=9000, price=price(1, 1))
    assert found("m:extended:free", route("m", SMALL, LARGE, priced)) == [("m", ["large"])]
    (only,) = routes_of(table(route("m", SMALL, LARGE)), "m:extended:nitro", request("m:extended:nitro"))
    assert only.variants == ("extended", "nitro")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("m:turbo", "m:turbo is not a valid model ID: unknown suffix ':turbo', known are :nitro, :floor"),
        ("m:turbo:nitro", "unknown suffix ':turbo'"),
        ("n:turbo", "^n:turbo is not a valid model ID$"),
        ("m:online", "':online' needs the web plugin"),
        ("openrouter/free", "openrouter/free is not a valid model ID"),
    ],
)
def test_a_wrong_name_is_told_what_is_wrong(name: str, message: str) -> None:
    with pytest.raises(AvailabilityError, match=message) as caught:
        routes_of(table(route("m", DEAR)), name, request(name))
    assert caught.value.status == 400 and caught.value.param == "model"
    assert caught.value.availability["code"] == "model_not_found"


def test_a_group_for_the_other_kind_is_refused_and_else_leaves_out_what_does_not_fit() -> None:
    routes = (route("t", DEAR), route("v", GIFT, output_modalities=("embeddings",)))
    assert found("g", *routes, g=("t",)) == [("t", ["dear"])]
    with pytest.raises(AvailabilityError, match="only makes embeddings"):
        found("g", *routes, g=("v",))
