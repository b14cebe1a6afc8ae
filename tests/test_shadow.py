"""Shadows: copies of a share of requests, whose answers nobody sees, nobody waits for and nobody pays."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from ionrouter.errors import FailureClass
from ionrouter.providers.fake import FakeClient
from ionrouter.router import Router
from ionrouter.routing.table import Endpoint, ModelRoute, Provider, Shadow
from ionrouter.schema.events import AttemptRecord
from ionrouter.schema.request import ProviderPreferences
from tests.support.routes import Bench, Heard, endpoint, price, request, route, table

MODES = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


def shadowed(
    script: dict[str, Any] | None = None, *, share: float = 1.0, most: int = 4, **more: Any
) -> ModelRoute:
    copy = endpoint("s", script=script or {"text": "copied"}, price=price(1e6, 1e6), **more)
    real = endpoint("a", script={"text": "real"}, price=price(1, 1))
    return route("m", real, shadow=Shadow(copy, share, most))


class Watched:
    """A bench whose shadows' records are kept."""

    def __init__(self, *routes: ModelRoute) -> None:
        self.client, self.heard, self.seen = FakeClient(), Heard(), list[AttemptRecord]()
        self.is_draining = False
        router = Router(
            table(*routes),
            {"fake": self.client},
            observers=[self.heard],
            witnesses=[self.seen.append],
            may_measure=lambda: not self.is_draining,
            rng=random.Random(7),
        )
        self.bench = Bench(router, self.client, self.heard)

    @property
    def router(self) -> Router:
        return self.bench.router

    async def settled(self) -> None:
        async with asyncio.timeout(20):
            while self.router.aside.num_running:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def test_a_copy_counts_for_the_model_that_answers_it() -> None:
    long = {"text": "word " * 500}
    other = endpoint("s", model_id="other", script=long, price=price(1, 1))
    real = endpoint("a", script={"text": "real"}, price=price(1, 1))
    watched = Watched(route("m", real, shadow=Shadow(other, 1.0, 4)), route("other", other))
    book = watched.router.book
    before = book.expected_num_out("m", True, watched.router._parts.clock())
    for _ in range(30):
        await watched.bench.run(request(stream=True))
        await watched.settled()
    assert {record.model_id for record in watched.seen} == {"other"}
    now = watched.router._parts.clock()
    assert book.expected_num_out("m", True, now) < before < book.expected_num_out("other", True, now)


@MODES
async def test_a_copy_is_recorded_apart_and_costs_the_caller_nothing(stream: bool) -> None:
    watched = Watched(shadowed())
    answer = await watched.bench.run(request(stream=stream))
    await watched.settled()
    assert answer.text == "real" and [a.role for a in answer.finished.attempts] == ["main"]
    (record,) = watched.heard.records
    assert [a.endpoint_id for a in record.attempts] == ["a"] and record.cost.total < 1
    (copy,) = watched.seen
    assert (copy.role, copy.endpoint_id, copy.failure, copy.stream) == ("shadow", "s", None, stream)
    assert copy.usage is not None and copy.cost.total >= 10
    bodies = {call.endpoint.id: call.body for call in watched.client.calls}
    assert bodies["s"] == bodies["a"]
    assert watched.bench.num_in_flight() == 0 == watched.client.num_open


@pytest.mark.parametrize(
    "script", [{"status": 500}, {"status": 401}, {"tokens": 3, "cut_after": 1}, {"raises": "a bug"}]
)
async def test_a_failing_shadow_fails_no_request(script: dict[str, Any]) -> None:
    watched = Watched(shadowed(script))
    assert (await watched.bench.run(request(stream=True))).text == "real"
    await watched.settled()
    assert watched.seen[0].failure is not None and watched.heard.records[0].status == 200


async def test_a_hanging_shadow_delays_nothing_and_ends_with_the_router() -> None:
    watched = Watched(shadowed({"hang_after": 1}))
    async with asyncio.timeout(20):
        assert (await watched.bench.run(request(stream=True))).text == "real"
    assert watched.router.aside.num_running == 1
    await watched.router.aside.close()
    assert watched.router.aside.num_running == 0 == watched.client.num_open
    assert [a.failure for a in watched.seen] == [FailureClass.STOPPED]
    assert watched.bench.num_in_flight() == 0


async def test_a_copy_that_never_began_leaves_nothing_claimed() -> None:
    watched = Watched(shadowed())
    events = watched.router.stream(request(stream=True))
    await anext(events)
    await watched.router.aside.close()
    await events.aclose()
    assert watched.router.aside.num_running == 0 == watched.client.num_open


async def test_its_share_and_its_number_at_once_are_bounded() -> None:
    watched = Watched(shadowed(share=0.2))
    for _ in range(200):
        await watched.bench.run()
    await watched.settled()
    assert 20 <= len(watched.seen) <= 60
    busy = Watched(shadowed({"hang_after": 0}, most=3))
    for _ in range(10):
        await busy.bench.run(request(stream=True))
    assert busy.router.aside.num_running == 3
    assert (busy.router.shadows.started["s"], busy.router.shadows.skipped["s"]) == (3, 7)
    await busy.router.aside.close()


def public(**more: Any) -> Endpoint:
    return endpoint("s", script={"text": "copied"}, **more)


@pytest.mark.parametrize(
    "wish",
    [
        {"data_collection": "deny"},
        {"zdr": True},
        {"only": ("a",)},
        {"ignore": ("s",)},
        {"max_price": {"prompt": 1.0}},
        {"quantizations": ("fp8",)},
    ],
)
async def test_a_copy_goes_only_where_the_request_itself_might(wish: dict[str, Any]) -> None:
    real = endpoint(
        "a",
        script={"text": "real"},
        provider=Provider("a", "A", "fake", data_collection="deny", zdr=True),
        quantization="fp8",
    )
    watched = Watched(route("m", real, shadow=Shadow(public(price=price(9, 9)), 1.0)))
    await watched.bench.run(request(preferences=ProviderPreferences(**wish)))
    await watched.settled()
    assert watched.client.num_calls("s") == 0 and watched.router.shadows.skipped["s"] == 1
    await watched.bench.run(request())
    await watched.settled()
    assert watched.client.num_calls("s") == 1


async def test_an_open_breaker_a_full_context_and_a_drain_stop_copies() -> None:
    watched = Watched(shadowed({"status": 500}))
    for _ in range(6):
        await watched.bench.run()
        await watched.settled()
    assert watched.client.num_calls("s") == 3
    small = Watched(shadowed(context_length=5))
    await small.bench.run()
    assert small.client.num_calls("s") == 0
    drained = Watched(shadowed())
    drained.is_draining = True
    await drained.bench.run()
    assert drained.router.aside.num_running == 0 == drained.client.num_calls("s")


async def test_the_endpoint_that_serves_is_not_asked_twice() -> None:
    only = endpoint("a", script={"text": "real"})
    watched = Watched(route("m", only, shadow=Shadow(only, 1.0)))
    await watched.bench.run()
    await watched.settled()
    assert watched.client.num_calls("a") == 1


async def test_no_model_is_copied_unasked() -> None:
    watched = Watched(route("m", endpoint("a", script={"text": "real"}), endpoint("b")))
    for _ in range(20):
        await watched.bench.run()
    assert not watched.seen and len(watched.client.calls) == 20
