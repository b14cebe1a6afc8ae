"""Groups, suffixes, service tiers, distillation and compression, as the router plans them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from ionrouter.balancing.affinity import Affinity, conversation_of
from ionrouter.routing.table import Expected
from ionrouter.schema.request import InferenceRequest, ProviderPreferences
from ionrouter.schema.usage import Usage
from tests.support.routes import Bench, endpoint, price, request, route

OK = {"text": "ok"}
USUAL = endpoint("usual", price=price(2, 2), expected=Expected(1.0, 50))
FLEX = endpoint("openai/flex", price=price(1, 1), service_tier="flex", expected=Expected(9.0, 5))
QUICK = endpoint("openai/priority", price=price(9, 9), service_tier="priority", expected=Expected(0.1, 500))


def order_of(bench: Bench, asked: InferenceRequest) -> list[str]:
    return [c.endpoint.id for c in bench.router.select(asked).candidates]


def preferring(asked: InferenceRequest, **wishes: Any) -> InferenceRequest:
    return structs.replace(asked, preferences=ProviderPreferences(**wishes))


@pytest.mark.parametrize(
    ("model", "tier", "expected"),
    [
        ("m", None, ["usual"]),
        ("m", "default", ["usual"]),
        ("m", "priority", ["openai/priority", "usual"]),
        ("m", "fast", ["openai/priority", "usual"]),
        ("m", "flex", ["openai/flex"]),
        ("m:nitro", None, ["openai/priority", "usual"]),
        ("m:floor", None, ["openai/flex", "usual"]),
    ],
)
def test_another_tier_is_used_where_it_is_asked_for(
    model: str, tier: str | None, expected: list[str]
) -> None:
    bench = Bench.of(route("m", FLEX, USUAL, QUICK))
    assert order_of(bench, request(model, service_tier=tier, stream=True)) == expected


def test_a_tier_that_the_model_does_not_have_is_served_as_usual() -> None:
    bench = Bench.of(route("m", USUAL, replace(FLEX, disabled="FLEX_KEY is unset")))
    assert order_of(bench, request(service_tier="flex")) == ["usual"]
    assert order_of(bench, request(service_tier="priority")) == ["usual"]


def test_a_tier_endpoint_is_named_by_its_full_tag_only() -> None:
    bench = Bench.of(route("m", USUAL, FLEX))
    assert order_of(bench, preferring(request(), order=("openai/flex",))) == ["openai/flex", "usual"]
    plan = bench.router.select(preferring(request(), only=("OPENAI",)))
    assert plan.candidates == () and {e.filter for e in plan.exclusions} == {"allowed_providers"}


async def test_a_tier_endpoint_is_asked_for_its_tier() -> None:
    bench = Bench.of(route("m", replace(FLEX, options=OK)))
    await bench.run(request(service_tier="flex"))
    assert bench.client.calls[0].body["service_tier"] == "flex"


async def test_the_models_of_a_group_compete_and_the_answer_names_the_one_that_served() -> None:
    slow = route("slow", endpoint("s", expected=Expected(9.0, 5), script=OK))
    quick = route("quick", endpoint("q", expected=Expected(0.1, 500), script=OK))
    bench = Bench.of(slow, quick)
    bench.router.table = replace(bench.router.table, groups={"openrouter/auto": ("slow", "quick")})
    plan = bench.router.select(request("openrouter/auto"))
    assert [(c.endpoint.id, c.tier) for c in plan.candidates] == [("q", 0), ("s", 0)]
    answer = await bench.run(request("openrouter/auto"))
    assert answer.committed.model_id == "quick"
    behind = request("slow", models=("openrouter/auto",))
    assert [c.tier for c in bench.router.select(behind).candidates] == [0, 1]


def test_a_suffix_belongs_to_the_model_it_is_written_at() -> None:
    cheap, quick = endpoint("cheap", price=price(1, 1)), endpoint("quick", expected=Expected(0.1, 900))
    dear = replace(quick, price=price(900, 900))
    bench = Bench.of(route("a", cheap, dear), route("b", replace(cheap, id="c2"), replace(dear, id="q2")))
    assert order_of(bench, request("a", models=("b:nitro",), stream=True)) == ["cheap", "quick", "q2", "c2"]
    merged = preferring(request("a", models=("b",)), sort="throughput", sort_partition="none")
    assert order_of(bench, merged)[:2] in (["quick", "q2"], ["q2", "quick"])


async def test_thinking_turns_reasoning_on() -> None:
    bench = Bench.of(route("m", endpoint("e", script=OK)))
    await bench.run(request("m:thinking"))
    assert bench.client.calls[0].body["reasoning"] == {"enabled": True}


def test_only_models_that_allow_it_may_be_distilled() -> None:
    bench = Bench.of(
        route("yes", endpoint("y"), is_distillable=True),
        route("no", endpoint("n"), is_distillable=False),
        route("silent", endpoint("s")),
    )
    asked = preferring(request("silent", models=("no", "yes")), enforce_distillable_text=True)
    plan = bench.router.select(asked)
    assert [c.endpoint.id for c in plan.candidates] == ["y"]
    assert {e.filter for e in plan.exclusions} == {"distillable"}


def talk(num_turns: int, **changes: Any) -> InferenceRequest:
    body = {"messages": [{"role": "user", "content": "x" * 400} for _ in range(num_turns)]}
    return request(body=body, prompt_tokens=num_turns * 100, **changes)


MIDDLE_OUT = {"plugins": [{"id": "context-compression"}]}


async def test_a_prompt_that_fits_nowhere_is_shortened_for_the_longest_context_if_asked() -> None:
    ends = (
        endpoint("small", context_length=300, script=OK),
        endpoint("large", context_length=1000, script=OK),
    )
    bench = Bench.of(route("m", *ends))
    assert bench.router.select(talk(20)).candidates == ()
    answer = await bench.run(talk(20, gateway_fields=MIDDLE_OUT))
    (call,) = bench.client.calls
    assert call.endpoint.id == "large" and len(call.body["messages"]) == 9
    assert answer.committed.notes == ("context-compression: 11 messages left out, 0 shortened",)


async def test_a_prompt_that_fits_somewhere_is_not_shortened() -> None:
    ends = (
        endpoint("small", context_length=300, script=OK),
        endpoint("large", context_length=3000, script=OK),
    )
    bench = Bench.of(route("m", *ends))
    answer = await bench.run(talk(20, gateway_fields=MIDDLE_OUT))
    assert len(bench.client.calls[0].body["messages"]) == 20 and answer.committed.notes == ()


CACHED = {"price": price(2, 8, cache_read=0.2)}
HIT, MISS = Usage(prompt_tokens=9, cached_tokens=8), Usage(prompt_tokens=9)


def turn(*texts: str, **changes: Any) -> InferenceRequest:
    told = [{"role": "user", "content": text} for text in texts]
    return request(body={"messages": [{"role": "system", "content": "S"}, *told]}, **changes)


def test_a_conversation_that_nobody_named_begins_with_a_cache_hit() -> None:
    affinity, end = Affinity(), endpoint("a", **CACHED)
    affinity.remember(turn("one"), end, 0.0, MISS)
    assert affinity.find(turn("one"), 1.0) is None
    affinity.remember(turn("one"), end, 1.0, HIT)
    assert affinity.find(turn("one", "two"), 2.0) == "a"
    affinity.remember(turn("one", "two"), end, 500.0, MISS)  # known: a miss does not end it
    assert affinity.find(turn("one"), 1000.0) == "a"
    assert affinity.find(turn("other"), 2.0) is None
    assert affinity.find(turn("one", key_id="k"), 2.0) is None
    assert affinity.find(turn("one", session_id="named"), 2.0) is None


def test_a_conversation_is_its_first_instruction_and_first_other_message() -> None:
    def name(*pairs: tuple[str, str]) -> str | None:
        return conversation_of({"messages": [{"role": role, "content": text} for role, text in pairs]})

    assert name(("system", "S"), ("user", "a")) == name(("developer", "S"), ("user", "a"), ("user", "b"))
    assert name(("system", "S"), ("user", "a")) != name(("system", "T"), ("user", "a"))
    assert name(("user", "a")) != name(("user", "b"))
    assert name(("system", "S")) is None and conversation_of({"prompt": "x"}) is None
