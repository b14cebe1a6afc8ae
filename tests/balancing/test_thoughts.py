"""Signed and encrypted reasoning goes back to whoever made it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ionrouter.balancing import thoughts
from ionrouter.balancing.thoughts import Makers
from ionrouter.routing.table import Provider
from ionrouter.schema.events import Choice, ChoiceDelta, Chunk, Complete
from ionrouter.schema.request import InferenceRequest, ProviderPreferences
from tests.support.routes import Bench, endpoint, price, request, route

SIGNED = {"type": "reasoning.text", "text": "hm", "signature": "sig-a", "format": "anthropic-claude-v1"}
ENCRYPTED = {"type": "reasoning.encrypted", "data": "blob-b"}


def carrying(*details: dict[str, Any], **changes: Any) -> InferenceRequest:
    told = {"role": "assistant", "content": "x", "reasoning_details": list(details)}
    return request(body={"messages": [{"role": "user", "content": "hi"}, told]}, **changes)


def test_the_maker_of_a_seal_is_found_by_key_streamed_or_whole() -> None:
    makers, asked = Makers(), request(key_id="k")
    makers.hear(asked, Chunk((ChoiceDelta(0, {"reasoning_details": [SIGNED]}),)), "a")
    makers.hear(asked, Complete((Choice(0, {"reasoning_details": [ENCRYPTED]}, "stop"),)), "b")
    assert makers.find(carrying(SIGNED, key_id="k")) == "a"
    assert makers.find(carrying(ENCRYPTED, key_id="k")) == "b"
    assert makers.find(carrying(SIGNED, ENCRYPTED, key_id="k")) == "b"  # the latest
    assert makers.find(carrying(SIGNED, key_id="other")) is None


def test_without_knowledge_the_last_endpoint_of_the_model_counts_as_the_maker() -> None:
    makers = Makers()
    makers.served(request(key_id="k"), "c")
    assert makers.find(carrying(SIGNED, key_id="k")) == "c"
    assert makers.find(carrying(SIGNED, key_id="k", model="n")) is None
    plain = {"type": "reasoning.text", "text": "hm", "signature": None}
    assert makers.find(carrying(plain, key_id="k")) is None
    assert makers.find(request(key_id="k")) is None


@pytest.mark.parametrize("details", [None, "x", [7], [{"signature": 7}], {"signature": "s"}])
def test_odd_details_are_no_seals(details: Any) -> None:
    body = {"messages": [{"role": "assistant", "reasoning_details": details}, "odd"]}
    assert list(thoughts.sealed(body)) == []
    assert list(thoughts.sealed({"prompt": "x"})) == []


def test_seals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thoughts, "MAX_SEALS", 2)
    makers = Makers()
    for number in range(3):
        detail = {**SIGNED, "signature": f"s{number}"}
        makers.hear(request(), Chunk((ChoiceDelta(0, {"reasoning_details": [detail]}),)), "a")
    assert makers.find(carrying({**SIGNED, "signature": "s0"})) is None
    assert makers.find(carrying({**SIGNED, "signature": "s2"})) == "a"


def bench_with_thoughts(**changes: Any) -> Bench:
    claude = Provider("claude", "Claude", "fake")
    return Bench.of(
        route(
            "m",
            endpoint("cheap", price=price(1, 1), script={"text": "ok"}),
            endpoint("maker", price=price(50, 50), provider=claude, script={"text": "ok", **changes}),
            endpoint("peer", price=price(60, 60), provider=claude, script={"text": "ok"}),
        )
    )


async def test_a_request_with_its_thoughts_stays_at_the_makers_provider_whatever_it_costs() -> None:
    bench = bench_with_thoughts()
    bench.router.makers.hear(request(), Chunk((ChoiceDelta(0, {"reasoning_details": [SIGNED]}),)), "maker")
    plan = bench.router.select(carrying(SIGNED))
    assert [c.endpoint.id for c in plan.candidates] == ["maker", "peer"]
    ordered = replace(carrying(SIGNED), preferences=ProviderPreferences(order=("cheap",)))
    assert [c.endpoint.id for c in bench.router.select(ordered).candidates] == ["maker", "peer"]
    assert bench.router.select(request()).candidates[0].endpoint.id == "cheap"


async def test_a_maker_that_a_filter_removed_holds_nobody() -> None:
    bench = bench_with_thoughts()
    bench.router.makers.served(request(), "maker")
    without = replace(carrying(SIGNED), preferences=ProviderPreferences(ignore=("claude",)))
    assert [c.endpoint.id for c in bench.router.select(without).candidates] == ["cheap"]


async def test_an_answer_teaches_the_router_where_the_model_was_served() -> None:
    bench = bench_with_thoughts()
    await bench.run(replace(request(), preferences=ProviderPreferences(only=("claude",))))
    assert bench.router.select(carrying(SIGNED)).candidates[0].endpoint.id == "maker"
