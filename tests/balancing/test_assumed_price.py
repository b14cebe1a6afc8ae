"""Endpoints of unknown price: what choosing takes them to cost, what the bill says, who is told."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from ionrouter.balancing.assumed_price import DEFAULT, as_weighed
from ionrouter.errors import AvailabilityError
from ionrouter.metrics import Metrics
from ionrouter.routing.table import Endpoint
from ionrouter.schema.request import ProviderPreferences
from tests.support.routes import Bench, endpoint, price, request, route

OK = {"text": "ok"}


def unpriced(name: str, **changes: object) -> Endpoint:
    return endpoint(name, script=OK, price_source="unknown", **changes)


def charged(name: str, prompt: float, completion: float, **changes: object) -> Endpoint:
    return endpoint(name, script=OK, price=price(prompt, completion), **changes)


def test_an_unknown_price_is_the_dearest_known_one_of_the_model_part_by_part() -> None:
    peers = [unpriced("x"), charged("a", 1, 9), charged("b", 4, 2)]
    assert as_weighed(peers[0], peers).price == price(4, 9)


def test_a_half_that_is_written_stays_if_it_is_dearer() -> None:
    half = unpriced("x", price=price(7, 0))
    assert as_weighed(half, [half, charged("a", 1, 9)]).price == price(7, 9)


def test_without_a_charged_peer_it_is_the_default() -> None:
    free = endpoint("free", price=price(0, 0))
    assert as_weighed(unpriced("x"), [unpriced("x"), free]).price == DEFAULT == price(5, 5)


@pytest.mark.parametrize("source", ["routes.yaml", "local", "litellm", "upstream"])
def test_a_written_zero_and_the_machines_own_models_stay_free(source: str) -> None:
    known = endpoint("x", price_source=source)
    assert as_weighed(known, [known, charged("a", 1, 9)]) is known


async def test_an_unpriced_endpoint_no_longer_wins_and_is_billed_as_zero_with_one_warning_and_a_count() -> (
    None
):
    bench = Bench.of(route("m", unpriced("x"), charged("a", 1, 1), charged("b", 3, 3)))
    plan = bench.router.select(request())
    shares = {c.endpoint.id: c.share for c in plan.candidates}
    assert shares["a"] == 1.0, "the dearest known price is not within the spread of the cheapest"

    bench = Bench.of(route("m", unpriced("x")))
    with capture_logs() as logs:
        for _ in range(3):
            answer = await bench.run()
            assert answer.finished.cost.total == 0
    assert [e["endpoint"] for e in logs if e["event"] == "endpoint_unpriced"] == ["x"]
    metrics = Metrics()
    for record in bench.heard.records:
        metrics.observe(record)
    assert b'ionrouter_unpriced_requests_total{endpoint="x"} 3.0' in metrics.render()


async def test_a_free_endpoint_is_neither_counted_nor_warned_of() -> None:
    bench = Bench.of(route("m", endpoint("x", script=OK)))
    with capture_logs() as logs:
        await bench.run()
    assert not [e for e in logs if e["event"] == "endpoint_unpriced"]
    metrics = Metrics()
    metrics.observe(bench.heard.records[0])
    assert b"ionrouter_unpriced_requests_total{" not in metrics.render()


@pytest.mark.parametrize("sort", ["price", None])
def test_cheapest_first_puts_it_beside_the_dearest(sort: str | None) -> None:
    bench = Bench.of(
        route("m", unpriced("x"), charged("a", 1, 1), charged("b", 3, 3)),
        strategy="expected-cost" if sort else "price",
    )
    preferences = ProviderPreferences(sort="price" if sort else None)
    plan = bench.router.select(request(preferences=preferences))
    prices = {c.endpoint.id: c.outlook.price for c in plan.candidates}
    assert prices["x"] == prices["b"] > prices["a"]


async def test_max_price_and_the_free_variant_leave_it_out() -> None:
    bench = Bench.of(route("m", unpriced("x")))
    capped = request(preferences=ProviderPreferences(max_price={"prompt": 1.0}))
    assert [e.filter for e in bench.router.select(capped).exclusions] == ["max_price"]
    with pytest.raises(AvailabilityError):
        await bench.run(request("m:free"))
