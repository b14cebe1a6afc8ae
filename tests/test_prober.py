"""Active health checks: who is asked, when, for how little, and what it teaches."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest

from ionrouter.balancing.circuit_breaker import BreakerState
from ionrouter.errors import AllAttemptsFailed
from ionrouter.prober import MAX_RUNNING, OPEN_EVERY_S
from ionrouter.providers.fake import FakeClient
from ionrouter.router import Router
from ionrouter.routing.table import ModelRoute
from ionrouter.schema.events import AttemptRecord
from ionrouter.schema.load import EngineLoad
from tests.support.routes import Bench, Clock, Heard, endpoint, route, table

OK = {"text": "pong"}


class Probed:
    """A router under a clock that is a number; `after` lets time pass and probes run."""

    def __init__(self, *routes: ModelRoute, **more: Any) -> None:
        self.client, self.heard, self.seen, self.clock = FakeClient(), Heard(), list[AttemptRecord](), Clock()
        self.may = True
        router = Router(
            table(*routes),
            {"fake": self.client},
            observers=[self.heard],
            witnesses=[self.seen.append],
            may_measure=lambda: self.may,
            clock=self.clock,
            rng=random.Random(7),
            **more,
        )
        self.bench = Bench(router, self.client, self.heard)

    async def after(self, seconds: float, step_s: float = 1.0) -> None:
        for _ in range(int(seconds / step_s)):
            self.clock.now += step_s
            self.bench.router.prober.tick()
            for _ in range(20):
                await asyncio.sleep(0)

    def health(self, index: int = 0) -> Any:
        return self.bench.router.book.of(self.bench.router.table.models["m"].endpoints[index])


def probed(script: dict[str, Any] | None = None, *, every: float = 60.0, **more: Any) -> ModelRoute:
    return route("m", endpoint("a", script=script or OK, probe_s=every, **more))


async def test_an_idle_endpoint_is_asked_for_one_token_now_and_then() -> None:
    world = Probed(probed())
    await world.after(610)
    assert 7 <= world.client.num_calls("a") <= 13  # every minute, a fifth more or less
    call = world.client.calls[0]
    assert call.body["max_tokens"] == 1 and call.stream and call.priority == -1
    assert {a.role for a in world.seen} == {"probe"} and len(world.seen) == world.client.num_calls("a")
    assert not world.heard.records  # nobody asked for it, and nobody pays
    assert world.bench.num_in_flight() == 0


async def test_waits_differ_from_one_another() -> None:
    world, moments = Probed(probed()), list[float]()
    while len(world.client.calls) < 12:
        before = len(world.client.calls)
        await world.after(1)
        moments += [world.clock.now] * (len(world.client.calls) - before)
    gaps = {round(b - a) for a, b in itertools.pairwise(moments)}
    assert len(gaps) > 3 and all(47 <= gap <= 74 for gap in gaps)


async def test_a_busy_endpoint_needs_no_probe_and_an_unasked_for_one_gets_none() -> None:
    busy = Probed(probed())
    for _ in range(60):
        await busy.bench.run()
        await busy.after(10)
    assert {call.request_id for call in busy.client.calls} == {"gen-1-x"}
    silent = Probed(route("m", endpoint("a", script=OK)))
    await silent.after(2000, 10)
    assert not silent.client.calls


async def test_a_probe_closes_an_open_breaker_before_a_caller_is_the_trial() -> None:
    world = Probed(probed({"scripts": [{"status": 500}] * 3 + [OK]}, cooldown_s=1000.0))
    for _ in range(3):
        with pytest.raises(AllAttemptsFailed):
            await world.bench.run()
    assert world.health().breaker.state(world.clock.now) is BreakerState.OPEN
    await world.after(OPEN_EVERY_S * 1.3)
    assert world.health().breaker.state(world.clock.now) is BreakerState.CLOSED
    assert [a.failure for a in world.seen] == [None]


async def test_a_probe_that_fails_early_does_not_prolong_an_open_breaker() -> None:
    world = Probed(probed({"status": 500}, cooldown_s=200.0))
    for _ in range(3):
        with pytest.raises(AllAttemptsFailed):
            await world.bench.run()
    until = world.health().breaker.until
    await world.after(150)
    assert len(world.seen) >= 3 and world.health().breaker.until == until


async def test_an_upstream_that_refuses_so_small_a_request_is_alive() -> None:
    """G70: a 400 to the probe blames nobody, and callers' answers count whatever probes got."""
    refused = {"status": 400, "message": "output limit too small"}
    world = Probed(probed({"scripts": [refused] * 20}))
    await world.after(610)
    assert len(world.seen) >= 5 and {a.status for a in world.seen} == {400}
    health = world.health()
    assert health.breaker.state(world.clock.now) is BreakerState.CLOSED
    assert health.fail_before(world.clock.now) == pytest.approx(0.02)
    broken = Probed(probed({"scripts": [{"status": 500}] * 3 + [refused, OK]}, cooldown_s=20.0))
    for _ in range(3):
        with pytest.raises(AllAttemptsFailed):
            await broken.bench.run()
    while not broken.seen:
        await broken.after(1)
    broken.clock.now += 60
    await broken.bench.run()  # the trial that the refused probe handed back
    assert broken.health().breaker.state(broken.clock.now) is BreakerState.CLOSED


async def test_after_its_time_the_probe_is_the_trial_and_a_failure_opens_for_longer() -> None:
    world = Probed(probed({"status": 500}, cooldown_s=5.0))
    for _ in range(3):
        with pytest.raises(AllAttemptsFailed):
            await world.bench.run()
    await world.after(40)
    breaker = world.health().breaker
    assert breaker.num_openings == 2 and not breaker._has_trial


async def test_one_probe_at_a_time_per_endpoint_and_few_in_all() -> None:
    hanging = {"hang_after": 0}
    world = Probed(probed(hanging, every=2.0))
    await world.after(30)
    assert world.client.num_open == 1 == world.bench.router.aside.num_running
    await world.bench.router.aside.close()
    assert world.client.num_open == 0
    names = [f"e{number}" for number in range(20)]
    many = Probed(route("m", *(endpoint(n, script=hanging, probe_s=2.0) for n in names)))
    await many.after(5)
    assert many.client.num_open == MAX_RUNNING
    await many.bench.router.aside.close()


async def test_a_retry_after_a_drain_and_a_cold_model_are_left_alone() -> None:
    limited = Probed(probed({"scripts": [{"status": 429, "retry_after_s": 500.0}, OK]}))
    with pytest.raises(AllAttemptsFailed):
        await limited.bench.run()
    await limited.after(490)
    assert not limited.seen
    draining = Probed(probed())
    draining.may = False
    await draining.after(300)
    assert not draining.client.calls
    cold = EngineLoad(ready=False, reason=None, load_s=9.0)
    sleeping = Probed(probed(), engine_load=lambda _: cold)
    await sleeping.after(300)
    assert not sleeping.client.calls


async def test_a_probe_measures_health_and_not_the_speed_of_real_answers() -> None:
    world = Probed(probed())
    await world.after(900)
    health = world.health()
    assert health.fail_before(world.clock.now) < 0.02 and health.is_measured(True)
    assert not health.recent(world.clock.now, True).sketches
    assert world.bench.router.book.expected_num_out("m", True, world.clock.now) == 300


async def test_models_of_vectors_are_asked_for_one_vector_and_those_of_pictures_not_at_all() -> None:
    vectors = route("m", endpoint("a", probe_s=60.0), output_modalities=("embeddings",))
    world = Probed(vectors)
    await world.after(80)
    assert [call.kind for call in world.client.calls] == ["embeddings"]
    pictures = Probed(route("m", endpoint("a", probe_s=60.0), output_modalities=("image",)))
    await pictures.after(200)
    assert not pictures.client.calls


async def test_endpoints_that_a_reload_takes_away_are_forgotten() -> None:
    world = Probed(probed())
    await world.after(10)
    world.bench.router.table = table(route("m", endpoint("b", script=OK, probe_s=30.0)))
    await world.after(40)
    assert [call.endpoint.id for call in world.client.calls] == ["b"]


async def test_the_loop_ticks_until_it_is_cancelled() -> None:
    world = Probed(probed(every=0.001))
    world.bench.router.prober._probed_at["a"] = 0.0
    task = asyncio.create_task(world.bench.router.prober.run())
    async with asyncio.timeout(20):
        while not world.seen:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert world.seen[0].ok
