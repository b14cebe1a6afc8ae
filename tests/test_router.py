"""Router: resolve, select, dispatch together over the fake provider."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from ionrouter.balancing.explain import Explanation
from ionrouter.errors import AllAttemptsFailed, AvailabilityError, StreamBroken
from ionrouter.routing.table import Endpoint, Expected, ModelRoute, Pattern, RoutingTable
from ionrouter.schema.events import Committed, Finished, RequestRecord
from ionrouter.schema.request import ProviderPreferences
from ionrouter.stats.book import StatsBook
from tests.support.routes import Bench, endpoint, price, request, route, table

OK = {"text": "ok"}


async def test_a_request_is_answered_streaming_and_not() -> None:
    bench = Bench.of(route("m", endpoint("a", script={"text": "hello there"})))
    streamed = await bench.run(request(stream=True))
    whole = await bench.run(request())
    assert streamed.text == whole.text == "hello there"
    assert [type(e).__name__ for e in whole.events] == ["Committed", "Complete", "Finished"]
    assert [r.status for r in bench.heard.records] == [200, 200]


# Resolve.

M, N, P = (route(name, endpoint(f"{name}-e")) for name in "mnp")


def tiers(bench: Bench, **asked: Any) -> list[str]:
    return [r.id for r in bench.router.resolve(request(**asked))]


def test_tiers_are_the_model_then_the_callers_then_the_tables_each_once() -> None:
    bench = Bench.of(replace(M, fallbacks=("p", "n", "gone")), N, P)
    assert tiers(bench) == ["m", "p", "n"]
    assert tiers(bench, models=("n",)) == ["m", "n", "p"]
    assert tiers(bench, model="n", models=("m", "n", "p")) == ["n", "m", "p"]


def test_a_name_is_resolved_anew_in_a_new_table() -> None:
    bench = Bench.of(replace(M, fallbacks=("n",)), N, P)
    assert tiers(bench) == tiers(bench) == ["m", "n"]
    bench.router.table = table(replace(M, fallbacks=("p",)), N, P)
    assert tiers(bench) == ["m", "p"]
    bench.router.table = table(N)
    with pytest.raises(AvailabilityError):
        tiers(bench)


def test_an_alias_resolves_to_its_model() -> None:
    bench = Bench.of(M)
    bench.router.table = replace(bench.router.table, aliases={"gpt": "m"})
    assert tiers(bench, model="gpt") == ["m"]


@pytest.mark.parametrize(
    ("asked", "param", "bad"),
    [
        ({"model": "nope"}, "model", "nope"),
        ({"model": "m", "models": ("x/y",)}, "models", "x/y"),
        ({"model": "nope:thinking"}, "model", "nope:thinking"),
    ],
)
async def test_an_unknown_model_is_a_400_in_openrouters_words(
    asked: dict[str, Any], param: str, bad: str
) -> None:
    bench = Bench.of(M)
    with pytest.raises(AvailabilityError, match=f"^{bad} is not a valid model ID$") as caught:
        await bench.run(request(**asked))
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.availability["code"] == "model_not_found"
    assert bench.heard.records[0].status == 400 and bench.heard.records[0].attempts == ()


def fast(name: str, ttft_s: float, throughput: float, usd: float) -> Endpoint:
    return endpoint(name, expected=Expected(ttft_s, throughput), price=price(usd, usd))


@pytest.mark.parametrize(("variant", "first"), [("nitro", "talker"), ("floor", "cheap"), ("free", "gift")])
def test_variants_set_the_order_unless_the_caller_sorts(variant: str, first: str) -> None:
    ends = [fast("talker", 5, 500, 9), fast("cheap", 5, 20, 1), fast("quick", 0.1, 20, 9)]
    gift = [fast("gift", 60, 1, 0)] if variant == "free" else []
    bench = Bench.of(route("m", *ends, *gift))
    plan = bench.router.select(request(f"m:{variant}", stream=True))
    assert plan.candidates[0].endpoint.id == first
    if variant == "free":
        assert [c.endpoint.id for c in plan.candidates] == ["gift"]
        return
    sorting = request(f"m:{variant}", stream=True, preferences=ProviderPreferences(sort="latency"))
    assert bench.router.select(sorting).candidates[0].endpoint.id == "quick"


async def test_a_model_without_free_endpoints_has_no_free_variant() -> None:
    bench = Bench.of(route("m", fast("paid", 1, 1, 1)))
    with pytest.raises(AvailabilityError) as caught:
        await bench.run(request("m:free"))
    assert (caught.value.status, caught.value.availability["code"]) == (404, "no_endpoints")


async def test_a_name_that_only_a_pattern_fits_is_served() -> None:
    template = replace(endpoint("p", script=OK), upstream_model="up/{name}", identity="hash")
    bench = Bench.of(M)
    bench.router.table = replace(bench.router.table, patterns=(Pattern("acme/*", template),))
    answer = await bench.run(request("acme/x"))
    assert answer.committed.model_id == "acme/x"
    assert bench.client.calls[0].endpoint.upstream_model == "up/x"


# Explain.


async def test_explain_tells_every_endpoint_with_its_figures_or_the_filter_that_removed_it() -> None:
    bench = Bench.of(
        route(
            "m",
            endpoint("a", expected=Expected(1.0, 100), price=price(2, 8)),
            endpoint("b", expected=Expected(1.0, 90), price=price(2, 8)),
            endpoint("off", disabled="OFF_KEY is unset"),
            fallbacks=("n",),
        ),
        route("n", endpoint("c")),
        explore=0.01,
    )
    told = bench.router.explain(request(stream=True))
    assert [c.order for c in told.candidates] == [1, 2, 3]
    by_id = {c.endpoint_id: c for c in told.candidates}
    assert by_id["a"].expected_s == pytest.approx(4.0)
    assert by_id["a"].prompt_price == pytest.approx(2.0)
    assert by_id["a"].success_rate == pytest.approx(0.98 * 0.995)
    assert by_id["a"].score == pytest.approx(by_id["a"].good + by_id["a"].waste + by_id["a"].broken)
    assert sum(c.share for c in told.candidates) == pytest.approx(1.0)
    assert by_id["c"].share == 0.0 and by_id["c"].tier == 1
    assert [(e.endpoint_id, e.filter, e.reason) for e in told.excluded] == [
        ("off", "disabled", "disabled: OFF_KEY is unset")
    ]
    assert bench.client.calls == [] and bench.heard.records == []


async def test_explain_tells_what_the_next_request_draws() -> None:
    ends = [endpoint(name, script=OK, price=price(10 + 0.1 * i, 10)) for i, name in enumerate("abcd")]
    bench = Bench.of(route("m", *ends))
    picks = Counter[str]()
    for _ in range(40):
        told = [bench.router.explain(request()).candidates[0].endpoint_id for _ in range(3)]
        served = (await bench.run(request())).committed.endpoint_id
        assert told == [served] * 3
        picks[served] += 1
    assert len(picks) == 4  # it is a draw all the same


async def test_a_request_tells_the_plan_that_it_follows() -> None:
    bench = Bench.of(route("m", *(endpoint(name, script=OK) for name in "abcd")))
    for _ in range(40):
        told: list[Explanation] = []
        events = [e async for b in bench.router.batches(request(), None, told.append) for e in b]
        (committed,) = (event for event in events if isinstance(event, Committed))
        assert [plan.candidates[0].endpoint_id for plan in told] == [committed.endpoint_id]
        assert told[0].reason in committed.reason


async def test_the_shares_that_explain_tells_are_the_shares_of_first_picks() -> None:
    ends = [endpoint(n, expected=Expected(t, 1e6), script=OK) for n, t in (("a", 10.0), ("b", 11.0))]
    bench = Bench.of(route("m", *ends))
    told = {c.endpoint_id: c.share for c in bench.router.explain(request()).candidates}
    picks = Counter(bench.router.select(request()).candidates[0].endpoint.id for _ in range(1500))
    assert {name: picks[name] / 1500 for name in told} == pytest.approx(told, abs=0.04)


# Records and observers.


async def test_every_ending_leaves_one_record() -> None:
    bench = Bench.of(
        route("m", endpoint("a", script={"text": "12345678", "usage": False}, price=price(1e6, 2e6)))
    )
    await bench.run(request(stream=True, key_id="key-1", session_id="s-1"))
    record = bench.heard.records[0]
    assert (record.id, record.kind, record.stream, record.status) == ("gen-1-x", "chat", True, 200)
    assert (record.served_model, record.served_endpoint, record.served_provider) == ("m", "a", "A")
    assert (record.key_id, record.session_id) == ("key-1", "s-1")
    assert record.usage.completion_tokens == 2 and record.cost.total == pytest.approx(10 + 4)
    assert record.ttft_s is not None and 0 <= record.ttft_s <= record.duration_s
    assert record.error is None and not record.is_cancelled


async def test_the_record_comes_before_the_last_event() -> None:
    """A generation can be looked up as soon as its answer is complete."""
    bench = Bench.of(route("m", endpoint("a", script=OK)))
    async with aclosing(bench.router.stream(request())) as events:
        async for event in events:
            if isinstance(event, Finished):
                assert len(bench.heard.records) == 1
    assert len(bench.heard.records) == 1


async def test_an_observer_that_fails_harms_neither_the_answer_nor_the_next_observer() -> None:
    """G87"""

    class Failing:
        def observe(self, record: RequestRecord) -> None:
            raise KeyError("gone")

    bench = Bench.of(route("m", endpoint("a", script=OK)))
    bench.router._observers = (Failing(), bench.heard)
    with capture_logs() as logs:
        assert (await bench.run()).text == "ok"
    assert len(bench.heard.records) == 1 and bench.num_in_flight() == 0
    assert [e["event"] for e in logs if e["log_level"] == "error"] == ["observer_failed"]


async def test_one_request_finished_event_without_a_prompt_or_a_key() -> None:
    secret = {"messages": [{"role": "user", "content": "my secret prompt"}]}
    bench = Bench.of(route("m", endpoint("a", script={"status": 500, "fail_times": 1, "text": "sly words"})))
    with capture_logs() as logs, suppress(AllAttemptsFailed):
        await bench.run(request(body=secret, key_id="key-hash"))
    with capture_logs() as more:
        await bench.run(request(body=secret))
    finished = [e for e in logs + more if e["event"] == "request_finished"]
    assert [e["status"] for e in finished] == [502, 200]
    assert finished[0]["attempts"] == [("a", "transient")] and finished[1]["endpoint"] == "a"
    assert {"ttft_s", "completion_tokens", "cost", "route"} <= set(finished[1])
    for hidden in ("secret", "sly", "key-hash"):
        assert hidden not in repr(logs + more)


async def test_statistics_hear_of_every_attempt() -> None:
    bench = Bench.of(
        route(
            "m",
            endpoint("a", script={"status": 500}, expected=Expected(0.01, 1e6), cooldown_s=0),
            endpoint("b"),
        )
    )
    stats = StatsBook()
    bench.router._observers = (stats,)
    for _ in range(5):
        await bench.run(request(stream=True, preferences=ProviderPreferences(order=("a",))))
    now = bench.router._parts.wall()
    assert stats.window("a", 300, now).uptime == 0.0
    b = stats.window("b", 300, now)
    assert b.uptime == 100.0 and b.ttft_ms is not None and b.ttft_ms.n == 5


async def test_every_odd_ending_leaves_nothing_behind() -> None:
    """G161"""
    scripts: dict[str, dict[str, Any]] = {
        "success": OK,
        "reset": {"cut_after": 1, "status": 502},
        "refused": {"status": 400},
        "limited": {"status": 429, "retry_after_s": 0},
        "bug": {"raises": "x"},
        "hang": {"hang_after": 0},
    }
    models = [route(name, endpoint(name, script=script, cooldown_s=0)) for name, script in scripts.items()]
    bench = Bench.of(*models)

    async def one(name: str) -> None:
        with suppress(AllAttemptsFailed, StreamBroken, AvailabilityError, TimeoutError):
            async with asyncio.timeout(0.5 if name == "hang" else 60):
                await bench.run(request(name, stream=True))

    with capture_logs():  # a hundred tracebacks take longer to print than the test
        await asyncio.gather(*(one(name) for name in scripts for _ in range(100)))
    assert bench.num_in_flight() == 0 == bench.client.num_open
    assert len(bench.heard.records) == 600
    assert Counter(r.status for r in bench.heard.records)[499] == 100
    assert len(asyncio.all_tasks()) == 1


# Reload.


def with_table(bench: Bench, *routes: ModelRoute) -> RoutingTable:
    return replace(table(*routes), settings=bench.router.table.settings)


async def test_a_request_keeps_the_table_it_began_with() -> None:
    """G154"""
    slow = endpoint("a", script={"status": 500, "delay_s": 0.3}, expected=Expected(0.01, 1e6))
    bench = Bench.of(route("m", slow, endpoint("b", script=OK, price=price(1e6, 1e6))))
    running = asyncio.create_task(bench.run(request(preferences=ProviderPreferences(order=("a",)))))
    await asyncio.sleep(0.1)
    bench.router.table = with_table(bench, route("m", endpoint("c", script={"text": "new"})))
    answer = await running
    assert answer.committed.endpoint_id == "b" and answer.finished.cost.total == pytest.approx(10 + 1)
    assert (await bench.run()).committed.endpoint_id == "c"


async def test_reloading_under_load_fails_no_request() -> None:
    """G154"""
    first, second = (route("m", endpoint(n, script={"tokens": 3, "gap_s": 0.01})) for n in "ab")
    bench = Bench.of(first)

    async def reload() -> None:
        for i in range(50):
            bench.router.table = with_table(bench, second if i % 2 else first)
            await asyncio.sleep(0.002)

    reloading = asyncio.create_task(reload())
    answers = await asyncio.gather(*(bench.run(request(stream=True)) for _ in range(200)))
    await reloading
    assert len(answers) == 200 and all(a.finished.usage.completion_tokens == 3 for a in answers)


async def test_a_late_result_of_a_removed_endpoint_is_dropped_quietly() -> None:
    """G158"""
    failing = {"status": 500, "delay_s": 0.3}
    bench = Bench.of(route("m", endpoint("a", identity="old", script=failing), endpoint("kept", script=OK)))
    kept, gone = (bench.router.book.of(endpoint(name, identity=name)) for name in ("kept", "old"))
    asked = request(preferences=ProviderPreferences(order=("a",), allow_fallbacks=False))
    running = [asyncio.create_task(bench.run(asked)) for _ in range(20)]
    await asyncio.sleep(0.1)
    back = endpoint("a", identity="new", script=OK)
    bench.router.table = with_table(bench, route("m", back, endpoint("kept", script=OK)))
    with capture_logs() as logs:
        results = await asyncio.gather(*running, return_exceptions=True)
    assert all(isinstance(r, AllAttemptsFailed) for r in results)
    assert not [e for e in logs if e["log_level"] in ("error", "warning")]
    health = bench.router.book.of(back)
    assert health.breaker.allows(0.0) and health.flights == [] and health.fail_before(1e9) == 0.02
    assert bench.router.book.of(endpoint("kept")) is kept
    assert bench.router.book.of(endpoint("a", identity="old")) is not gone
    assert (await bench.run(asked)).text == "ok"
