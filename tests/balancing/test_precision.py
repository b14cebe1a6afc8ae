"""Fallbacks of fewer bits come last, unless the caller set the order, and the answer says so."""

from __future__ import annotations

import random
from typing import Any, get_args

import pytest

from ionrouter.balancing.health import HealthBook
from ionrouter.balancing.plan import Plan
from ionrouter.balancing.precision import BITS
from ionrouter.balancing.select import Scene, select
from ionrouter.routing.spec_values import Quantization
from ionrouter.routing.table import Endpoint, ModelRoute, RoutingSettings
from ionrouter.schema.request import Overrides, ProviderPreferences
from tests.support.routes import Bench, endpoint, price, request, route


def stored(name: str, quantization: str, usd: float, **more: Any) -> Endpoint:
    return endpoint(name, price=price(usd, usd), quantization=quantization, **more)


CHEAP_INT4 = stored("four", "int4", 20)
FIRST = stored("eight", "fp8", 10)
DEAR_BF16 = stored("sixteen", "bf16", 30)


def order_of(*ends: Endpoint | ModelRoute, sticky: str | None = None, **changes: Any) -> Plan:
    own = [e for e in ends if isinstance(e, Endpoint)]
    routes = (route("m", *own), *(e for e in ends if isinstance(e, ModelRoute)))
    scene = Scene(HealthBook(), RoutingSettings(explore=0.0, spread=1.0), 1000.0, sticky=sticky)
    return select(routes, request(**changes), scene, random.Random(7))


def ids(plan: Plan) -> list[str]:
    return [c.endpoint.id for c in plan.candidates]


def test_every_quantization_but_unknown_has_its_bits() -> None:
    assert BITS.keys() == set(get_args(Quantization)) - {"unknown"}


def test_a_fallback_of_fewer_bits_than_the_first_pick_comes_last_however_cheap() -> None:
    plan = order_of(CHEAP_INT4, FIRST, DEAR_BF16)
    assert ids(plan) == ["eight", "sixteen", "four"]
    assert [c.steps_down_from for c in plan.candidates] == [None, None, "fp8"]


def test_it_is_used_when_nothing_else_is_left() -> None:
    assert ids(order_of(CHEAP_INT4, FIRST)) == ["eight", "four"]


def test_names_of_the_same_bits_and_unknown_ones_keep_their_place() -> None:
    ends = [FIRST, stored("a", "int8", 12), stored("b", "unknown", 14), stored("c", "mxfp8", 16), DEAR_BF16]
    assert ids(order_of(*ends)) == ["eight", "a", "b", "c", "sixteen"]


def test_a_first_pick_that_declares_nothing_moves_nobody() -> None:
    assert ids(order_of(CHEAP_INT4, stored("x", "unknown", 10), DEAR_BF16)) == ["x", "four", "sixteen"]


def test_the_session_s_endpoint_sets_the_measure() -> None:
    plan = order_of(CHEAP_INT4, FIRST, stored("sixteen", "bf16", 11), sticky="sixteen")
    assert ids(plan) == ["sixteen", "eight", "four"]
    assert [c.steps_down_from for c in plan.candidates] == [None, "bf16", "bf16"]


def test_other_models_are_not_compared_and_stay_behind() -> None:
    other = route("o", stored("o4", "int4", 1))
    assert ids(order_of(CHEAP_INT4, FIRST, DEAR_BF16, other)) == ["eight", "sixteen", "four", "o4"]


def test_losing_a_parameter_is_worse_than_losing_bits() -> None:
    dear = stored("sixteen", "bf16", 30, supported_parameters=frozenset({"max_tokens"}))
    takes = frozenset({"seed", "max_tokens"})
    ends = [stored(n, q, p, supported_parameters=takes) for n, q, p in (("e", "fp8", 10), ("f", "int4", 20))]
    plan = order_of(*ends, dear, parameters=frozenset({"seed"}), body={"messages": [], "seed": 1})
    assert ids(plan) == ["e", "f", "sixteen"]


@pytest.mark.parametrize(
    "preferences",
    [
        ProviderPreferences(order=("eight",)),
        ProviderPreferences(sort="price"),
        ProviderPreferences(quantizations=("fp8", "int4", "bf16")),
    ],
)
def test_a_caller_who_set_the_order_or_the_precisions_gets_them(preferences: ProviderPreferences) -> None:
    plan = order_of(CHEAP_INT4, FIRST, DEAR_BF16, preferences=preferences)
    assert ids(plan) == ["eight", "four", "sixteen"]
    assert {c.steps_down_from for c in plan.candidates} == {None}


@pytest.mark.parametrize("name", ["price", "latency", "least-busy"])
def test_it_holds_under_every_strategy(name: str) -> None:
    plan = order_of(CHEAP_INT4, FIRST, DEAR_BF16, overrides=Overrides(strategy=name))
    bits = [BITS[c.endpoint.quantization] for c in plan.candidates]
    lower = [own < bits[0] for own in bits]
    assert lower == sorted(lower)


async def test_an_answer_of_fewer_bits_says_so() -> None:
    down = {"status": 503}
    ends = [
        stored("eight", "fp8", 10, script=down),
        stored("sixteen", "bf16", 30, script=down),
        stored("four", "int4", 20, script={"text": "hi"}),
    ]
    answer = await Bench.of(route("m", *ends)).run()
    assert answer.committed.endpoint_id == "four"
    assert answer.committed.reason == "fallback after sixteen: 503; int4 instead of fp8"
    kept = await Bench.of(route("m", *ends[:1], stored("sixteen", "bf16", 30))).run()
    assert kept.committed.reason == "fallback after eight: 503"
