"""Hedging: a rival for a slow attempt, within its budget; faults, leaving clients and bills in either leg."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

import pytest

from ionrouter.balancing.circuit_breaker import BreakerState
from ionrouter.errors import AllAttemptsFailed, FailureClass, StreamBroken
from ionrouter.providers.base import UpstreamRequest
from ionrouter.providers.fake import FakeClient
from ionrouter.routing.table import Endpoint, Expected, Hedge, ModelRoute, Provider, Timeouts
from ionrouter.schema.events import AttemptRecord, ProviderEvent
from ionrouter.schema.request import ProviderPreferences
from tests.support.routes import Bench, Clock, endpoint, price, request, route

MODES = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
SOON = Hedge(after_s=0.03, floor_s=0.01, budget=1.0)
SILENT = {"hang_after": 0}
OK = {"text": "ok"}


def first(name: str, script: dict[str, Any], **more: Any) -> Endpoint:
    """An endpoint that is always tried before those made by `then`."""
    return endpoint(name, script=script, expected=Expected(ttft_s=0.01, throughput=1e6), **more)


def then(name: str, script: dict[str, Any] | None = None, **more: Any) -> Endpoint:
    return endpoint(name, script=script or OK, **more)


def hedged(*endpoints: Endpoint, hedge: Hedge = SOON, **more: Any) -> ModelRoute:
    return route("m", *endpoints, hedge=hedge, **more)


def told(attempts: tuple[AttemptRecord, ...]) -> list[tuple[str, str, FailureClass | None]]:
    return [(a.endpoint_id, a.role, a.failure) for a in attempts]


def health(bench: Bench, index: int = 0) -> Any:
    return bench.router.book.of(bench.router.table.models["m"].endpoints[index])


def is_clean(bench: Bench) -> bool:
    return bench.client.num_open == 0 == bench.num_in_flight()


@MODES
async def test_a_silent_endpoint_gets_a_rival_and_the_first_to_answer_serves(stream: bool) -> None:
    bench = Bench.of(hedged(first("a", SILENT), then("b")))
    async with asyncio.timeout(20):
        answer = await bench.run(request(stream=stream))
    assert answer.text == "ok"
    assert (answer.committed.endpoint_id, answer.committed.attempt) == ("b", 2)
    assert answer.committed.reason == "hedge: a had not answered after 0.03 s"
    expected = [("a", "main", FailureClass.LOST_RACE), ("b", "hedge", None)]
    assert told(answer.finished.attempts) == expected == told(bench.heard.records[0].attempts)
    assert bench.heard.records[0].status == 200 and is_clean(bench)


@MODES
async def test_the_first_may_win_against_its_rival(stream: bool) -> None:
    bench = Bench.of(hedged(first("a", {"text": "first", "delay_s": 0.2}), then("b", SILENT)))
    async with asyncio.timeout(20):
        answer = await bench.run(request(stream=stream))
    assert answer.text == "first" and answer.committed.endpoint_id == "a"
    assert told(answer.finished.attempts) == [("b", "hedge", FailureClass.LOST_RACE), ("a", "main", None)]
    assert is_clean(bench)


@MODES
async def test_a_quick_answer_needs_no_rival(stream: bool) -> None:
    bench = Bench.of(hedged(first("a", OK), then("b"), hedge=Hedge(after_s=30.0)))
    answer = await bench.run(request(stream=stream))
    assert told(answer.finished.attempts) == [("a", "main", None)]


async def test_no_model_is_hedged_unasked() -> None:
    bench = Bench.of(route("m", first("a", {"text": "late", "delay_s": 0.15}), then("b")))
    assert (await bench.run(request(stream=True))).text == "late"
    assert bench.client.num_calls("b") == 0


async def test_the_loser_is_no_failure_and_its_age_bounds_its_time() -> None:
    bench = Bench.of(hedged(first("a", SILENT), then("b"), hedge=Hedge(after_s=0.2)))
    async with asyncio.timeout(20):
        await bench.run(request(stream=True))
    lost = health(bench)
    now = lost.last_started_at
    assert lost.fail_before(now) == 0.02 and lost.breaker.state(now) is BreakerState.CLOSED
    assert lost.speeds[True].ttft_s.value >= 0.2
    assert lost.recent(now + 1, stream=True).sketches["ttft_s"].count == 1
    assert not lost.has_outage(now)


async def test_the_bill_holds_what_the_loser_wrote() -> None:
    """A whole answer is asked of an upstream that streams: it has written when the other one is done."""
    wordy = {"text": "12345678 1234567", "hang_after": 2}
    slow = first("a", wordy, upstream_stream="always", price=price(0, 1e6))
    bench = Bench.of(hedged(slow, then("b", {"delay_s": 0.2, "text": "ok"}, price=price(0, 1e6))))
    health(bench).speeds[True].ttft_s.observe(0.01, 0.0)

    async def answered() -> Any:
        async with asyncio.timeout(20):
            return await bench.run(request())

    # The first token came at once, so no rival is due: a has until its deadline.
    task = asyncio.create_task(answered())
    await asyncio.sleep(0.3)
    assert bench.client.num_calls("b") == 0
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert bench.heard.records[0].cost.total == pytest.approx(4)


async def test_a_loser_that_had_answered_in_part_is_paid_for() -> None:
    role_then_text = {"text": "12345678", "hang_after": 1, "delay_s": 0.15}
    slow = first("a", role_then_text, upstream_stream="always", price=price(0, 1e6))
    bench = Bench.of(hedged(slow, then("b", {"delay_s": 0.4, "text": "ok"}, price=price(0, 1e6))))
    async with asyncio.timeout(20):
        answer = await bench.run(request())
    lost, won = answer.finished.attempts
    assert (lost.failure, won.endpoint_id) == (FailureClass.LOST_RACE, "b")
    assert lost.cost.total == pytest.approx(2) and lost.is_usage_estimated
    assert answer.finished.cost.total == pytest.approx(2 + won.cost.total)
    assert answer.finished.usage == won.usage


@MODES
async def test_a_fault_of_the_first_leaves_the_rival_to_answer(stream: bool) -> None:
    failing = {"status": 500, "delay_s": 0.15}
    bench = Bench.of(hedged(first("a", failing), then("b", {"text": "ok", "delay_s": 0.3}), then("c")))
    async with asyncio.timeout(20):
        answer = await bench.run(request(stream=stream))
    assert told(answer.finished.attempts) == [("a", "main", FailureClass.TRANSIENT), ("b", "hedge", None)]
    assert health(bench).fail_before(health(bench).last_failed_at) > 0.02 and is_clean(bench)


@MODES
async def test_a_fault_of_the_rival_leaves_the_first_to_answer(stream: bool) -> None:
    bench = Bench.of(hedged(first("a", {"text": "late", "delay_s": 0.3}), then("b", {"status": 503})))
    async with asyncio.timeout(20):
        answer = await bench.run(request(stream=stream))
    assert answer.text == "late"
    assert told(answer.finished.attempts) == [("b", "hedge", FailureClass.TRANSIENT), ("a", "main", None)]
    assert is_clean(bench)


@MODES
async def test_when_both_fail_the_walk_goes_on(stream: bool) -> None:
    a, b = (
        first("a", {"status": 500, "delay_s": 0.15}),
        then("b", {"status": 503, "delay_s": 0.05}, price=price(1)),
    )
    bench = Bench.of(hedged(a, b, then("c", price=price(9, 9))))
    async with asyncio.timeout(20):
        answer = await bench.run(request(stream=stream))
    assert [e for e, _, _ in told(answer.finished.attempts)] == ["b", "a", "c"]
    assert answer.committed.endpoint_id == "c" and answer.committed.attempt == 3
    assert answer.committed.reason == "fallback after a: 500" and is_clean(bench)


async def test_when_all_fail_every_leg_is_told() -> None:
    bench = Bench.of(hedged(first("a", {"status": 500, "delay_s": 0.15}), then("b", {"status": 503})))
    async with asyncio.timeout(20):
        with pytest.raises(AllAttemptsFailed) as caught:
            await bench.run(request(stream=True))
    assert [name for name, _ in caught.value.errors] == ["b", "a"] and is_clean(bench)


@MODES
async def test_a_request_that_anyone_would_refuse_ends_the_other_leg(stream: bool) -> None:
    refusing = {"status": 400, "message": "bad temperature", "delay_s": 0.1}
    bench = Bench.of(hedged(first("a", refusing), then("b", SILENT), then("c")))
    async with asyncio.timeout(20):
        with pytest.raises(AllAttemptsFailed, match="bad temperature") as caught:
            await bench.run(request(stream=stream))
    assert caught.value.status == 400 and bench.client.num_calls("c") == 0
    roles = told(bench.heard.records[0].attempts)
    assert roles == [("a", "main", FailureClass.REQUEST), ("b", "hedge", FailureClass.LOST_RACE)]
    assert is_clean(bench)


async def test_a_break_after_the_commit_is_not_mended_by_the_loser() -> None:
    cut = {"tokens": 5, "cut_after": 2, "status": 502}
    bench = Bench.of(hedged(first("a", SILENT), then("b", cut), then("c")))
    async with asyncio.timeout(20):
        with pytest.raises(StreamBroken):
            await bench.run(request(stream=True))
    attempts = bench.heard.records[0].attempts
    assert told(attempts)[-1] == ("b", "hedge", FailureClass.TRANSIENT) and attempts[-1].after_commit
    assert bench.client.num_calls("c") == 0 and is_clean(bench)


@MODES
async def test_a_client_that_leaves_ends_both_legs(stream: bool) -> None:
    bench = Bench.of(hedged(first("a", SILENT), then("b", SILENT)))
    task = asyncio.create_task(bench.run(request(stream=stream)))
    async with asyncio.timeout(20):
        while bench.client.num_open < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert is_clean(bench) and bench.heard.records[0].status == 499
    assert {(e, f) for e, _, f in told(bench.heard.records[0].attempts)} == {
        ("a", FailureClass.CLIENT_LEFT),
        ("b", FailureClass.CLIENT_LEFT),
    }


async def test_a_client_that_leaves_before_a_leg_began_keeps_no_trial() -> None:
    """The leg's task is cancelled before its first step: its breaker's leave must come back all the same."""
    clock = Clock()
    bench = Bench.of(hedged(then("a", {"scripts": [{"status": 500}] * 3 + [OK]}), then("b")), clock=clock)
    only_a = request(stream=True, preferences=ProviderPreferences(only=("a",)))
    for _ in range(3):
        with pytest.raises(AllAttemptsFailed):
            await bench.run(only_a)
    clock.now += 11
    events = bench.router.stream(request(stream=True, preferences=ProviderPreferences(order=("a", "b"))))
    task = asyncio.create_task(anext(events))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert health(bench).breaker.allows(clock.now) and is_clean(bench)


@MODES
async def test_a_client_may_leave_at_any_step_of_the_loop(stream: bool) -> None:
    """Also while the winner has committed and nobody has heard of it yet."""
    for num_steps in range(40):
        bench = Bench.of(hedged(first("a", OK), then("b")))
        task = asyncio.create_task(bench.run(request(stream=stream)))
        for _ in range(num_steps):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        recorded = [a.endpoint_id for record in bench.heard.records for a in record.attempts]
        assert recorded == [call.endpoint.id for call in bench.client.calls] and is_clean(bench)


class SlowToClose(FakeClient):
    """Upstreams that take their time to let go."""

    async def stream(self, request: UpstreamRequest) -> AsyncIterator[ProviderEvent]:
        try:
            async with aclosing(super().stream(request)) as events:  # type: ignore[type-var]
                async for event in events:
                    yield event
        finally:
            await asyncio.sleep(0.1)


async def test_a_client_that_is_cancelled_twice_leaves_both_legs_in_the_books() -> None:
    """The second time while the legs are still being closed."""
    bench = Bench.of(hedged(first("a", SILENT), then("b", SILENT)), client=SlowToClose())
    task = asyncio.create_task(bench.run(request(stream=True)))
    async with asyncio.timeout(20):
        while bench.client.num_open < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.sleep(0.02)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    with suppress(asyncio.CancelledError):
        await task
    (record,) = bench.heard.records
    assert sorted(a.endpoint_id for a in record.attempts) == ["a", "b"]
    async with asyncio.timeout(20):
        while not is_clean(bench):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_the_loser_is_let_go_while_the_winner_still_writes() -> None:
    bench = Bench.of(hedged(first("a", SILENT), then("b", {"tokens": 3, "hang_after": 2})))
    async with asyncio.timeout(20), aclosing(bench.router.stream(request(stream=True))) as events:
        async for _ in events:
            break
        while bench.client.num_open > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert health(bench).flights == [] and len(health(bench, 1).flights) == 1
    assert is_clean(bench)


async def test_a_trial_that_loses_is_handed_back() -> None:
    clock = Clock()
    scripts = [{"status": 500}] * 3 + [SILENT]
    bench = Bench.of(hedged(first("a", {"scripts": scripts}), then("b")), clock=clock)
    ordered = request(stream=True, preferences=ProviderPreferences(order=("a", "b")))
    for _ in range(3):
        await bench.run(ordered)
    clock.now += 11
    async with asyncio.timeout(20):
        answer = await bench.run(ordered)
    assert told(answer.finished.attempts)[0] == ("a", "main", FailureClass.LOST_RACE)
    breaker = health(bench).breaker
    assert breaker.state(clock.now) is BreakerState.HALF_OPEN and breaker.allows(clock.now)


async def test_an_endpoint_whose_breaker_is_open_is_no_rival() -> None:
    bench = Bench.of(hedged(first("a", {"text": "late", "delay_s": 0.2}), then("b", {"status": 500})))
    only_b = request(stream=True, preferences=ProviderPreferences(only=("b",)))
    for _ in range(3):
        with pytest.raises(AllAttemptsFailed):
            await bench.run(only_b)
    answer = await bench.run(request(stream=True))
    assert told(answer.finished.attempts) == [("a", "main", None)] and bench.client.num_calls("b") == 3


@pytest.mark.parametrize(
    "wish",
    [
        {"only": ("a",)},
        {"ignore": ("b",)},
        {"data_collection": "deny"},
        {"order": ("a",), "allow_fallbacks": False},
        {"allow_fallbacks": False},
    ],
)
async def test_a_rival_passes_the_requests_own_filters(wish: dict[str, Any]) -> None:
    quiet = Provider(slug="a", name="A", type="fake", data_collection="deny")
    a = first("a", {"text": "late", "delay_s": 0.15}, provider=quiet)
    bench = Bench.of(hedged(a, then("b")))
    answer = await bench.run(request(stream=True, preferences=ProviderPreferences(**wish)))
    assert answer.text == "late" and bench.client.num_calls("b") == 0


async def test_another_model_is_no_rival() -> None:
    late = {"text": "late", "delay_s": 0.15}
    bench = Bench.of(hedged(first("a", late), fallbacks=("n",)), route("n", then("c")))
    answer = await bench.run(request(stream=True))
    assert answer.committed.model_id == "m" and bench.client.num_calls("c") == 0


async def test_the_same_upstream_twice_is_no_rival() -> None:
    late = first("a", {"text": "late", "delay_s": 0.15}, identity="same")
    bench = Bench.of(hedged(late, then("b", identity="same")))
    assert (await bench.run(request(stream=True))).text == "late"
    assert bench.client.num_calls("b") == 0


async def test_the_deadline_of_the_request_holds_for_both_legs() -> None:
    bench = Bench.of(hedged(first("a", SILENT), then("b", SILENT)), total_timeout_s=0.3)
    async with asyncio.timeout(20):
        with pytest.raises(AllAttemptsFailed) as caught:
            await bench.run(request(stream=True))
    assert caught.value.status == 504 and is_clean(bench)


async def test_each_leg_has_its_own_first_token_deadline() -> None:
    brisk = Timeouts(first_token_s=0.15)
    bench = Bench.of(hedged(first("a", SILENT, timeouts=brisk), then("b", SILENT, timeouts=brisk), then("c")))
    async with asyncio.timeout(20):
        answer = await bench.run(request(stream=True))
    assert [(e, f) for e, _, f in told(answer.finished.attempts)] == [
        ("a", FailureClass.TRANSIENT),
        ("b", FailureClass.TRANSIENT),
        ("c", None),
    ]


# The budget, and when.


async def test_the_budget_bounds_rivals_as_a_share_of_requests() -> None:
    slow = first("a", {"text": "late", "delay_s": 0.03})
    bench = Bench.of(hedged(slow, then("b", SILENT), hedge=Hedge(after_s=0.01, floor_s=0.01, budget=0.1)))
    ordered = request(stream=True, preferences=ProviderPreferences(order=("a",)))
    for _ in range(40):
        await bench.run(ordered)
    assert bench.client.num_calls("b") == 1 + 4  # the one that every model has, and a tenth
    (counts,) = bench.router.hedge_counts().values()
    assert counts == (5, 35)


async def test_the_budgets_share_is_of_requests_not_of_attempts() -> None:
    failing, slow = first("a", {"status": 500}, cooldown_s=0), {"text": "late", "delay_s": 0.2}
    hedge = Hedge(after_s=0.01, floor_s=0.01, budget=0.1)
    bench = Bench.of(hedged(failing, then("b", slow), then("c", SILENT), hedge=hedge))
    for _ in range(20):
        await bench.run(request(stream=True, preferences=ProviderPreferences(order=("a", "b"))))
    assert bench.client.num_calls("b") == 20 and bench.client.num_calls("c") == 1 + 2


async def test_a_budget_of_zero_leaves_no_rival_at_all() -> None:
    slow = first("a", {"text": "late", "delay_s": 0.03})
    bench = Bench.of(hedged(slow, then("b", SILENT), hedge=Hedge(after_s=0.01, floor_s=0.01, budget=0.0)))
    for _ in range(5):
        await bench.run(request(stream=True, preferences=ProviderPreferences(order=("a",))))
    assert bench.client.num_calls("b") == 0


@MODES
async def test_the_p95_is_measured_per_endpoint_and_unmeasured_ones_get_no_rival(stream: bool) -> None:
    scripts = [{"text": "quick"}] * 25 + [SILENT]
    hedge = Hedge(after_s=None, floor_s=0.02, budget=1.0)
    early = Bench.of(hedged(first("a", {"text": "x", "delay_s": 0.1}), then("b"), hedge=hedge))
    ordered = request(stream=stream, preferences=ProviderPreferences(order=("a",)))
    assert told((await early.run(ordered)).finished.attempts) == [("a", "main", None)]
    bench = Bench.of(hedged(first("a", {"scripts": scripts}), then("b"), hedge=hedge))
    for _ in range(25):
        assert (await bench.run(ordered)).committed.endpoint_id == "a"
    async with asyncio.timeout(20):
        answer = await bench.run(ordered)
    assert answer.committed.endpoint_id == "b"
    assert told(answer.finished.attempts)[0] == ("a", "main", FailureClass.LOST_RACE)


async def test_nothing_leaks_whatever_happens_in_either_leg() -> None:
    """A storm of faults, delays and leaving clients: every attempt is accounted once, nothing stays open."""
    rng = random.Random(11)
    kinds: list[dict[str, Any]] = [
        {"text": "ok", "delay_s": 0.0},
        {"text": "ok", "delay_s": 0.02},
        {"text": "ok", "delay_s": 0.05},
        {"status": 500, "delay_s": 0.02},
        {"status": 429, "retry_after_s": 0.0},
        {"tokens": 4, "cut_after": 2, "status": 502},
        SILENT,
    ]
    names = ["a", "b", "c"]
    endpoints = [
        endpoint(n, script={"scripts": [rng.choice(kinds) for _ in range(400)]}, cooldown_s=0.01)
        for n in names
    ]
    bench = Bench.of(
        hedged(*endpoints, hedge=Hedge(after_s=0.01, floor_s=0.005, budget=1.0)), total_timeout_s=2.0
    )

    async def one(number: int) -> None:
        asked = request(id=f"gen-{number}", stream=number % 2 == 0)
        async with aclosing(bench.router.stream(asked)) as events:
            async for _ in events:
                if number % 7 == 0:
                    return

    async def impatient(number: int) -> None:
        with suppress(Exception):
            await asyncio.wait_for(one(number), 0.03 if number % 5 == 0 else 10)

    async with asyncio.timeout(60):
        await asyncio.gather(*(impatient(number) for number in range(150)))
    assert is_clean(bench)
    assert sorted(r.id for r in bench.heard.records) == sorted(f"gen-{n}" for n in range(150))
    for record in bench.heard.records:
        started = [call.endpoint.id for call in bench.client.calls if call.request_id == record.id]
        assert sorted(a.endpoint_id for a in record.attempts) == sorted(started)
        assert len({a.endpoint_id for a in record.attempts}) == len(record.attempts)
        assert sum(a.failure is None for a in record.attempts) <= 1
    assert all(not h._has_trial for h in (health(bench, i).breaker for i in range(3)))
