"""Dispatch: every failure class, before and after commit, streaming and not; deadlines; leaving clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from ionrouter.balancing.circuit_breaker import BreakerState, CircuitBreaker
from ionrouter.errors import AllAttemptsFailed, AvailabilityError, FailureClass, StreamBroken
from ionrouter.providers.base import UpstreamRequest
from ionrouter.providers.fake import FakeClient
from ionrouter.routing.table import Endpoint, Expected, Provider, Timeouts
from ionrouter.schema.events import Chunk, Committed, Complete, Finished, ProviderEvent
from ionrouter.schema.request import InferenceRequest, ProviderPreferences
from tests.support.routes import Bench, Clock, endpoint, price, request, route

OK = {"text": "ok"}
MODES = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


def first(name: str, script: dict[str, Any], **more: Any) -> Endpoint:
    """An endpoint that is always tried before those made by `then`."""
    return endpoint(name, script=script, expected=Expected(ttft_s=0.01, throughput=1e6), **more)


def then(name: str, script: dict[str, Any] | None = None, **more: Any) -> Endpoint:
    """An endpoint that is a fallback: two seconds and fifty tokens a second."""
    return endpoint(name, script=script or OK, **more)


def called(bench: Bench) -> list[str]:
    return [call.endpoint.id for call in bench.client.calls]


# Failure classes before commit.


@MODES
@pytest.mark.parametrize(
    ("script", "failure"),
    [
        ({"status": 500}, FailureClass.TRANSIENT),
        ({"status": 529}, FailureClass.TRANSIENT),
        ({"failure": "transient", "code": "malformed"}, FailureClass.TRANSIENT),
        ({"status": 401}, FailureClass.DOMAIN),
        ({"status": 402}, FailureClass.DOMAIN),
        ({"status": 404}, FailureClass.DOMAIN),
        ({"status": 429}, FailureClass.CAPACITY),
    ],
)
async def test_a_fault_before_commit_moves_on_to_the_next_endpoint(
    script: dict[str, Any], failure: FailureClass, stream: bool
) -> None:
    """G47"""
    bench = Bench.of(route("m", first("a", script), then("b")))
    answer = await bench.run(request(stream=stream))
    assert answer.text == "ok"
    assert answer.committed.endpoint_id == "b" and answer.committed.attempt == 2
    assert "fallback after a" in answer.committed.reason
    assert [(a.endpoint_id, a.failure) for a in answer.finished.attempts] == [("a", failure), ("b", None)]
    assert bench.num_in_flight() == 0 == bench.client.num_open


@MODES
@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_request_that_anyone_would_refuse_stops_at_once(status: int, stream: bool) -> None:
    """G52, G60, G66"""
    refusing = {"status": status, "message": "temperature must be <= 2", "param": "temperature"}
    bench = Bench.of(route("m", first("a", refusing), then("b")), route("n", then("c")))
    for _ in range(6):
        with pytest.raises(AllAttemptsFailed) as caught:
            await bench.run(request(stream=stream, models=("n",)))
        assert (caught.value.status, caught.value.param) == (status, "temperature")
        assert caught.value.message == "temperature must be <= 2"
    assert called(bench) == ["a"] * 6  # one call each, and the endpoint is not blamed
    health = bench.router.book.of(bench.router.table.models["m"].endpoints[0])
    assert health.fail_before(health.last_started_at) == 0.02
    assert health.breaker.allows(health.last_started_at)


@MODES
async def test_a_prompt_too_long_here_goes_where_the_context_is_larger(stream: bool) -> None:
    too_long = {"failure": "endpoint_request", "status": 400, "code": "context_length_exceeded"}
    bench = Bench.of(
        route(
            "m",
            first("a", too_long, context_length=100),
            then("same", context_length=100),
            then("larger", context_length=200),
        )
    )
    answer = await bench.run(request(stream=stream))
    assert called(bench) == ["a", "larger"] and answer.text == "ok"


@MODES
async def test_a_refused_parameter_is_a_400_when_nobody_else_declares_it(stream: bool) -> None:
    refusing = {"failure": "endpoint_request", "status": 400, "param": "tools", "message": "no tools here"}
    bench = Bench.of(route("m", first("a", refusing), then("b")))
    with pytest.raises(AllAttemptsFailed, match="no tools here") as caught:
        await bench.run(request(stream=stream))
    assert (caught.value.status, called(bench)) == (400, ["a"])


@MODES
async def test_refused_content_goes_to_another_model_not_to_another_endpoint(stream: bool) -> None:
    refusing = {"failure": "content", "status": 403, "message": "flagged"}
    models = route("m", first("a", refusing), then("b"), fallbacks=("n",)), route("n", then("c"))
    bench = Bench.of(*models)
    answer = await bench.run(request(stream=stream))
    assert called(bench) == ["a", "c"] and answer.committed.model_id == "n"
    alone = Bench.of(route("m", first("a", refusing), then("b")))
    with pytest.raises(AllAttemptsFailed, match="flagged") as caught:
        await alone.run(request(stream=stream))
    assert (caught.value.status, called(alone)) == (403, ["a"])


@MODES
async def test_an_empty_filtered_answer_is_refused_content_unless_it_is_the_last(stream: bool) -> None:
    filtered = {"text": "", "finish_reason": "content_filter"}
    two = Bench.of(route("m", first("a", filtered), fallbacks=("n",)), route("n", then("c")))
    assert (await two.run(request(stream=stream))).committed.endpoint_id == "c"
    one = Bench.of(route("m", first("a", filtered)))
    answer = await one.run(request(stream=stream))
    finishes = [c.finish_reason for e in answer.events if isinstance(e, Chunk | Complete) for c in e.choices]
    assert "content_filter" in finishes and one.heard.records[0].status == 200


@MODES
@pytest.mark.parametrize(
    "empty",
    [
        {"text": "", "finish_reason": None, "role_first": False, "usage": False},
        {"text": "", "finish_reason": None, "usage": False},
        {"text": "", "finish_reason": None},
    ],
    ids=["nothing", "role only", "role and usage"],
)
async def test_an_empty_200_is_a_failure(empty: dict[str, Any], stream: bool) -> None:
    """G34"""
    with_b = Bench.of(route("m", first("a", empty), then("b")))
    assert (await with_b.run(request(stream=stream))).text == "ok"
    without = Bench.of(route("m", first("a", empty)))
    with pytest.raises(AllAttemptsFailed) as caught:
        await without.run(request(stream=stream))
    assert caught.value.status == 502


@MODES
async def test_an_answer_of_no_words_with_a_legal_finish_is_an_answer(stream: bool) -> None:
    """G34"""
    bench = Bench.of(route("m", first("a", {"text": ""}), then("b")))
    answer = await bench.run(request(stream=stream))
    assert answer.committed.endpoint_id == "a" and answer.finished.usage.completion_tokens == 0


async def test_an_error_in_a_200_keeps_its_own_class() -> None:
    """G27"""
    limited = {"status": 429, "message": "rate limited"}
    with_b = Bench.of(route("m", first("a", limited), then("b")))
    answer = await with_b.run()
    assert answer.text == "ok" and answer.finished.attempts[0].status == 429
    with pytest.raises(AllAttemptsFailed) as caught:
        await Bench.of(route("m", first("a", limited))).run()
    assert caught.value.status == 429


async def test_a_role_only_chunk_commits_nothing() -> None:
    """G38"""
    role_then_error = {"status": 429, "cut_after": 0, "message": "insufficient_quota"}
    bench = Bench.of(route("m", first("a", role_then_error), then("b")))
    answer = await bench.run(request(stream=True))
    chunks = [e for e in answer.events if isinstance(e, Chunk)]
    roles = [c for chunk in chunks for c in chunk.choices if "role" in c.delta]
    assert answer.text == "ok" and len(roles) == 1
    assert isinstance(answer.events[0], Committed)


async def test_all_failing_before_content_is_a_real_error_status() -> None:
    """G39"""
    bench = Bench.of(route("m", first("a", {"status": 503}), then("b", {"status": 503, "cut_after": 0})))
    with pytest.raises(AllAttemptsFailed) as caught:
        await bench.run(request(stream=True))
    assert (caught.value.status, [i for i, _ in caught.value.errors]) == (503, ["a", "b"])


async def test_a_flood_without_content_is_cut_off() -> None:
    padding = [{"id": f"call-{i}", "padding": "x" * 1000} for i in range(100)]
    bench = Bench.of(route("m", first("a", {"text": "", "tool_calls": padding}), then("b")))
    answer = await bench.run(request(stream=True))
    assert answer.committed.endpoint_id == "b"
    assert "64 KB" in answer.finished.attempts[0].message


@MODES
async def test_a_bug_in_a_provider_client_falls_back_and_blames_nobody(stream: bool) -> None:
    """G60"""
    bench = Bench.of(route("m", first("a", {"raises": "arguments are not JSON"}), then("b")))
    assert (await bench.run(request(stream=stream))).text == "ok"
    health = bench.router.book.of(bench.router.table.models["m"].endpoints[0])
    assert health.fail_before(health.last_started_at) == 0.02
    alone = Bench.of(route("m", first("a", {"raises": "secret detail"})))
    with pytest.raises(AllAttemptsFailed) as caught:
        await alone.run(request(stream=stream))
    assert caught.value.status == 500 and "secret detail" not in caught.value.message


# Order and limits.


async def test_fallback_models_that_name_each_other_are_each_tried_once() -> None:
    """G42"""
    down = {"status": 500}
    bench = Bench.of(
        route("x", then("a", down), fallbacks=("y", "z")),
        route("y", then("b", down), fallbacks=("z", "x")),
        route("z", then("c", down), fallbacks=("x", "y")),
    )
    with pytest.raises(AllAttemptsFailed) as caught:
        await bench.run(request("x"))
    assert called(bench) == ["a", "b", "c"] and caught.value.status == 502


async def test_attempts_are_limited() -> None:
    bench = Bench.of(route("m", *(then(f"e{i}", {"status": 500}) for i in range(9))), max_attempts=4)
    with pytest.raises(AllAttemptsFailed):
        await bench.run()
    assert len(bench.client.calls) == 4 == len(bench.heard.records[0].attempts)


async def test_no_fallbacks_means_one_attempt_and_its_error() -> None:
    bench = Bench.of(route("m", first("a", {"status": 503}), then("b")))
    with pytest.raises(AllAttemptsFailed):
        await bench.run(request(preferences=ProviderPreferences(allow_fallbacks=False)))
    assert called(bench) == ["a"]


async def test_an_account_that_is_refused_is_tried_last() -> None:
    bench = Bench.of(
        route("m", first("a", {"status": 401}, domain="acme"), then("b", domain="acme"), then("c"))
    )
    await bench.run()
    assert called(bench) == ["a", "c"]


class Rewriting(FakeClient):
    """A client that changes the body it was given, for endpoint a."""

    async def stream(self, request: UpstreamRequest) -> AsyncIterator[ProviderEvent]:
        if request.endpoint.id == "a":
            request.body["messages"][0]["content"][0]["image_url"]["url"] = "data:rewritten"
        async with aclosing(super().stream(request)) as events:
            async for event in events:
                yield event


async def test_the_body_of_each_attempt_is_built_from_the_clients() -> None:
    """G44"""
    body = {
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://h/i.png"}}]}
        ],
        "max_tokens": 5,
        "top_k": 3,
        "own": {"k": "v"},
    }
    plain = Provider(slug="b", name="B", type="fake", forward_unknown=True)
    bench = Bench.of(
        route(
            "m",
            first("a", {"status": 500}, supported_parameters=frozenset({"max_completion_tokens", "top_k"})),
            then("b", provider=plain),
        ),
        client=Rewriting(),
    )
    await bench.run(request(body=body, parameters=frozenset({"max_tokens", "top_k"})))
    sent = {call.endpoint.id: call for call in bench.client.calls}
    assert sent["a"].body["max_completion_tokens"] == 5
    assert sent["b"].body == body  # not a's rewriting, not a's names
    assert sent["b"].endpoint.upstream_model == "up-b"
    assert body["messages"][0]["content"][0]["image_url"]["url"] == "http://h/i.png"  # type: ignore[index]


async def test_using_a_fallback_changes_no_configuration() -> None:
    """G45"""
    bench = Bench.of(route("m", first("a", {"status": 500}), then("b")))
    before = repr(bench.router.table)
    for _ in range(20):
        await bench.run()
    assert repr(bench.router.table) == before
    models = {call.endpoint.upstream_model for call in bench.client.calls if call.endpoint.id == "b"}
    assert models == {"up-b"}


@MODES
async def test_what_served_is_named_never_what_was_asked_or_failed(stream: bool) -> None:
    """G49"""
    bench = Bench.of(route("m", first("a", {"status": 500}), fallbacks=("n",)), route("n", then("b")))
    answer = await bench.run(request(stream=stream))
    assert (answer.committed.model_id, answer.committed.provider_name) == ("n", "B")
    record = bench.heard.records[0]
    assert (record.requested_model, record.served_model, record.served_endpoint) == ("m", "n", "b")


async def test_parameters_that_an_endpoint_does_not_take_are_listed() -> None:
    bench = Bench.of(route("m", then("a", supported_parameters=frozenset({"seed"}))))
    asked = request(body={"messages": [], "top_k": 1, "seed": 2}, parameters=frozenset({"top_k", "seed"}))
    answer = await bench.run(asked)
    assert answer.committed.dropped == ("top_k",)
    assert bench.client.calls[0].body == {"messages": [], "seed": 2}


async def test_what_no_endpoint_can_do_is_a_400_without_any_call() -> None:
    bench = Bench.of(route("m", then("a", supported_parameters=frozenset({"seed"}))))
    asked = request(body={"messages": [], "tools": [{}]}, parameters=frozenset({"tools"}))
    with pytest.raises(Exception, match="tools") as caught:
        await bench.run(asked)
    assert (caught.value.status, caught.value.param, called(bench)) == (400, "tools", [])  # type: ignore[attr-defined]


# Limits and waiting.


async def test_nobody_waits_out_a_retry_after() -> None:
    """G55: each endpoint is tried once per request, so there is no sleep; the client is told the time."""
    bench = Bench.of(route("m", first("a", {"status": 429, "retry_after_s": 30.0}), then("b")))
    async with asyncio.timeout(10):
        assert (await bench.run()).text == "ok"
    alone = Bench.of(route("m", first("a", {"scripts": [
        {"status": 429, "retry_after_s": 1.0}, {"status": 429, "retry_after_s": 3.0}, OK
    ]})))  # fmt: skip
    for told in (1.0, 3.0):
        with pytest.raises(AllAttemptsFailed) as caught:
            await alone.run()
        assert (caught.value.status, caught.value.retry_after_s) == (429, told)
        alone.router.book.of(alone.router.table.models["m"].endpoints[0]).retry_at = 0.0  # time passes
    assert (await alone.run()).text == "ok"


async def test_when_all_are_limited_the_soonest_time_is_told_and_nobody_is_called_again() -> None:
    """G63"""
    bench = Bench.of(
        route(
            "m",
            then("a", {"status": 429, "retry_after_s": 20.0}),
            then("b", {"status": 429, "retry_after_s": 45.0}),
        )
    )
    with pytest.raises(AllAttemptsFailed) as caught:
        await bench.run()
    assert (caught.value.status, caught.value.retry_after_s) == (429, 20.0)
    with pytest.raises(AvailabilityError) as refused:
        await bench.run()
    assert refused.value.status == 429 and refused.value.headers["Retry-After"] == "20"
    assert len(bench.client.calls) == 2
    assert [r.status for r in bench.heard.records] == [429, 429]


async def test_a_refused_connection_is_tried_once_more_then_left() -> None:
    bench = Bench.of(route("m", first("a", {"refuse_connection": True, "fail_times": 1, "text": "late"})))
    answer = await bench.run()
    assert answer.text == "late" and len(answer.finished.attempts) == 1
    assert bench.client.num_calls("a") == 2
    down = Bench.of(route("m", first("a", {"refuse_connection": True}), then("b")))
    assert (await down.run()).text == "ok"
    assert down.client.num_calls("a") == 2


async def test_only_a_refused_connection_is_retried_at_the_same_endpoint() -> None:
    bench = Bench.of(route("m", first("a", {"status": 503, "fail_times": 1}), then("b")))
    await bench.run()
    assert bench.client.num_calls("a") == 1


async def test_reconnecting_stops_when_the_budget_is_used_up() -> None:
    bench = Bench.of(route("m", first("a", {"refuse_connection": True}, cooldown_s=0), then("b")))
    for _ in range(20):
        await bench.run(request(preferences=ProviderPreferences(order=("a",))))
    assert 20 < bench.client.num_calls("a") <= 20 + 3 + 2  # a reserve of 3, and a tenth of the traffic


# Health over several requests.


async def test_a_broken_endpoint_is_left_alone_after_a_few_tries_and_tested_again_later() -> None:
    """G72"""
    clock = Clock()
    bench = Bench.of(route("m", first("a", {"status": 500, "fail_times": 3}), then("b")), clock=clock)
    asked = request(preferences=ProviderPreferences(order=("a",)))
    for _ in range(20):
        assert (await bench.run(asked)).text
    assert bench.client.num_calls("a") == 3
    clock.now += 11
    await bench.run(asked)
    assert bench.client.num_calls("a") == 4
    clock.now += 1
    assert (await bench.run(asked)).committed.endpoint_id == "a"


async def test_the_log_tells_once_when_a_breaker_opens_and_when_it_closes() -> None:
    clock = Clock()
    scripts = [{"status": 500}] * 4 + [OK, {"status": 401}, OK]
    bench = Bench.of(route("m", first("a", {"scripts": scripts}), then("b")), clock=clock)
    asked = request(preferences=ProviderPreferences(order=("a",)))
    with capture_logs() as logs:
        for wait_s in (0, 0, 0, 0, 11, 10, 11, 0, 0, 11, 0):
            clock.now += wait_s  # three failures, a trial that fails, one that does not, and a refusal
            await bench.run(asked)
    told = [e for e in logs if e["event"].startswith("breaker_")]
    assert {e["endpoint"] for e in told} == {"a"}
    assert [(e["event"], e.get("for_s"), e.get("num_openings")) for e in told] == [
        ("breaker_opened", 10.0, 1),
        ("breaker_opened", 20.0, 2),
        ("breaker_closed", None, None),
        ("breaker_opened", 10.0, 1),
        ("breaker_closed", None, None),
    ]
    assert [e["cause"].split()[0] for e in told if "cause" in e] == ["it", "it", "the"]
    assert [e["log_level"] for e in told[1:3]] == ["warning", "info"]


async def test_a_zero_cooldown_never_benches() -> None:
    """G65"""
    bench = Bench.of(
        route("m", first("a", {"status": 500}, cooldown_s=0), then("b", {"status": 500}, cooldown_s=30))
    )
    asked = request(preferences=ProviderPreferences(order=("a", "b")))
    for _ in range(6):
        with pytest.raises(AllAttemptsFailed):
            await bench.run(asked)
    assert bench.client.num_calls("a") == 6 and bench.client.num_calls("b") == 3


async def test_bad_requests_take_no_healthy_endpoint_out() -> None:
    """G66"""
    bad = {"failure": "endpoint_request", "status": 400, "code": "context_length_exceeded"}
    scripts = [bad] * 5 + [{"status": 422}, OK]
    bench = Bench.of(route("m", then("a", {"scripts": scripts})))
    for _ in range(6):
        with pytest.raises(AllAttemptsFailed):
            await bench.run()
    assert (await bench.run()).text == "ok"


async def test_when_only_open_breakers_are_left_the_best_is_tried() -> None:
    bench = Bench.of(route("m", then("a", {"status": 500, "fail_times": 3})), clock=Clock())
    for _ in range(3):
        with pytest.raises(AllAttemptsFailed):
            await bench.run()
    assert (await bench.run()).committed.endpoint_id == "a"


async def test_a_refused_account_is_not_tried_again_until_its_time() -> None:
    clock = Clock()
    bench = Bench.of(route("m", then("a", {"status": 401})), clock=clock)
    with pytest.raises(AllAttemptsFailed) as caught:
        await bench.run()
    assert caught.value.status == 502
    with pytest.raises(AvailabilityError) as refused:
        await bench.run()
    assert refused.value.status == 503 and bench.client.num_calls("a") == 1
    clock.now += 11
    with pytest.raises(AllAttemptsFailed):
        await bench.run()
    assert bench.client.num_calls("a") == 2


async def test_one_half_open_trial_at_a_time() -> None:
    clock = Clock()
    scripts = [{"status": 500}] * 3 + [{"delay_s": 0.2, "text": "back"}]
    bench = Bench.of(route("m", first("a", {"scripts": scripts}), then("b")), clock=clock)
    asked = request(stream=True, preferences=ProviderPreferences(order=("a",)))
    for _ in range(3):
        await bench.run(asked)
    clock.now += 11
    answers = await asyncio.gather(*(bench.run(asked) for _ in range(5)))
    assert sorted(a.committed.endpoint_id for a in answers) == ["a", "b", "b", "b", "b"]
    assert bench.client.num_calls("a") == 4


async def test_a_whole_answer_on_its_way_does_not_count_as_waiting_for_its_first_token() -> None:
    """Ion streams also for clients that do not; its queue must not look longer than it is."""
    bench = Bench.of(route("m", then("a", {"hang_after": 2}, upstream_stream="always")))
    task = asyncio.create_task(bench.run())
    await asyncio.sleep(0.3)
    health = bench.router.book.of(bench.router.table.models["m"].endpoints[0])
    assert len(health.flights) == 1
    assert health.oldest_wait_s(health.last_started_at + 50, stream=True) == 0.0
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


# After commit.


async def test_a_stream_that_breaks_after_commit_is_not_switched() -> None:
    broken = {"text": "one two three", "cut_after": 2, "status": 502, "message": "lost", "code": "cut"}
    bench = Bench.of(route("m", first("a", broken), then("b")))
    got: list[str] = []
    with pytest.raises(StreamBroken) as caught:
        async with aclosing(bench.router.stream(request(stream=True))) as events:
            async for event in events:
                if isinstance(event, Chunk):
                    got += [c.delta.get("content") or "" for c in event.choices]
    assert "".join(got) == "one two" and called(bench) == ["a"]
    assert (caught.value.cause.message, caught.value.cause.code) == ("lost", "cut")
    record = bench.heard.records[0]
    assert record.status == 502 and record.attempts[0].after_commit
    assert record.served_endpoint == "a" and record.usage.completion_tokens == 2  # 7 characters, estimated
    health = bench.router.book.of(bench.router.table.models["m"].endpoints[0])
    assert health.fail_after(health.last_started_at) > 0.005
    assert health.fail_before(health.last_started_at) < 0.02
    assert bench.num_in_flight() == 0


async def test_an_error_in_the_stream_keeps_all_its_fields() -> None:
    """G36"""
    broken = {
        "text": "a b",
        "cut_after": 1,
        "failure": "endpoint_request",
        "message": "context too long: 9000 > 8192",
        "error_type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    bench = Bench.of(route("m", first("a", broken)))
    with pytest.raises(StreamBroken) as caught:
        await bench.run(request(stream=True))
    cause = caught.value.cause
    assert (cause.message, cause.error_type, cause.param, cause.code) == (
        "context too long: 9000 > 8192",
        "invalid_request_error",
        "messages",
        "context_length_exceeded",
    )


async def test_a_whole_answer_that_fails_half_way_falls_back_and_both_are_accounted() -> None:
    """The client has seen nothing, although the upstream streamed."""
    half = {"text": "12345678 x", "cut_after": 1, "status": 502}
    bench = Bench.of(
        route("m", first("a", half, upstream_stream="always", price=price(0, 1e6)), then("b")),
        value_of_time=1.0,
    )
    asked = request(preferences=ProviderPreferences(order=("a",)))
    answer = await bench.run(asked)
    assert answer.text == "ok"
    failed, good = answer.finished.attempts
    assert not failed.after_commit and failed.usage is not None and failed.usage.completion_tokens == 2
    assert failed.is_usage_estimated and failed.cost.total == pytest.approx(2.0)
    assert answer.finished.cost.total == pytest.approx(2.0) and good.cost.total == 0.0


# Deadlines. Short but real times; a generous timeout guards each test.

BRISK = Timeouts(first_token_s=0.3, inter_token_s=0.3)


async def test_no_first_token_in_time_falls_back() -> None:
    bench = Bench.of(route("m", first("a", {"hang_after": 0}, timeouts=BRISK), then("b")))
    async with asyncio.timeout(20):
        answer = await bench.run(request(stream=True))
    assert answer.committed.endpoint_id == "b"
    assert "first token" in answer.finished.attempts[0].message
    assert bench.client.num_open == 0


async def test_no_first_token_anywhere_is_a_504() -> None:
    bench = Bench.of(route("m", first("a", {"hang_after": 0}, timeouts=BRISK)))
    async with asyncio.timeout(20):
        with pytest.raises(AllAttemptsFailed) as caught:
            await bench.run(request(stream=True))
    assert (caught.value.status, caught.value.error_type) == (504, "timeout")


async def test_a_deadline_is_told_with_the_name_of_the_provider_that_missed_it() -> None:
    slow = Timeouts(first_token_s=0.05)
    bench = Bench.of(
        route("m", *(endpoint(name, script={"ttft_s": 60}, timeouts=slow) for name in ("a", "b")))
    )
    with pytest.raises(AllAttemptsFailed) as caught:
        await bench.run(request(stream=True))
    assert {error.provider for _, error in caught.value.errors} == {"A", "B"}


async def test_a_long_healthy_stream_is_not_killed_by_the_first_token_limit() -> None:
    """G88"""
    long = {"tokens": 15, "gap_s": 0.1}  # 1.5 s; the limits leave a busy machine room between tokens
    limits = Timeouts(first_token_s=1.0, inter_token_s=1.0)
    bench = Bench.of(route("m", first("a", long, timeouts=limits)))
    async with asyncio.timeout(20):
        answer = await bench.run(request(stream=True))
    assert answer.finished.usage.completion_tokens == 15
    assert answer.finished.attempts[0].duration_s > 1.0
    assert answer.finished.attempts[0].max_gap_s is not None


async def test_a_stall_between_tokens_ends_the_stream() -> None:
    """G90"""
    bench = Bench.of(route("m", first("a", {"hang_after": 1}, timeouts=BRISK)))

    async def one() -> None:
        with pytest.raises(StreamBroken, match="next token"):
            await bench.run(request(stream=True))

    async with asyncio.timeout(30):
        await asyncio.gather(*(one() for _ in range(50)))
    assert bench.client.num_open == 0 == bench.num_in_flight()
    assert all(r.attempts[0].failure is FailureClass.TRANSIENT for r in bench.heard.records)


async def test_waiting_for_the_first_token_is_not_idling() -> None:
    """G92: a role-only chunk comes at once, the first token after four idle limits."""
    patient = Timeouts(first_token_s=10.0, inter_token_s=0.2)
    bench = Bench.of(route("m", first("a", {"delay_s": 0.8}, timeouts=patient)))
    async with asyncio.timeout(20):
        assert (await bench.run(request(stream=True))).committed.endpoint_id == "a"


async def test_role_chunks_do_not_stretch_the_first_token_limit() -> None:
    eager = {"role_first": True, "hang_after": 0}
    bench = Bench.of(route("m", first("a", eager, timeouts=BRISK), then("b")))
    async with asyncio.timeout(20):
        assert (await bench.run(request(stream=True))).committed.endpoint_id == "b"


async def test_the_total_limit_covers_all_attempts_together() -> None:
    hanging = {"hang_after": 0}
    bench = Bench.of(route("m", *(then(n, hanging) for n in "abc")), total_timeout_s=0.4)
    async with asyncio.timeout(20):
        with pytest.raises(AllAttemptsFailed) as caught:
            await bench.run()
    assert caught.value.status == 504 and len(bench.client.calls) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_an_endpoint_whose_total_is_used_up_leaves_the_request_to_those_with_time_left(
    stream: bool,
) -> None:
    patient, short = Timeouts(total_s=30), Timeouts(connect_s=0.3, first_token_s=0.3, total_s=0.3)
    bench = Bench.of(
        route(
            "m",
            first("a", {"hang_after": 0}, timeouts=short),
            endpoint("late", script=OK, timeouts=short, expected=Expected(ttft_s=0.1, throughput=1e6)),
            then("b", timeouts=patient),
        )
    )
    async with asyncio.timeout(20):
        await bench.run(request(stream=stream))
    assert called(bench) == ["a", "b"]  # nobody is asked whose own time is over
    late = bench.router.table.models["m"].endpoints[1]
    assert bench.router.book.of(late).fail_before(0.0) == 0.02


async def test_an_endpoint_is_not_blamed_for_a_deadline_that_others_used_up() -> None:
    slow = {"hang_after": 0}
    bench = Bench.of(
        route("m", first("a", slow, timeouts=Timeouts(first_token_s=0.3)), then("b", slow)),
        total_timeout_s=1.5,
    )
    async with asyncio.timeout(20):
        with pytest.raises(AllAttemptsFailed):
            await bench.run(request(stream=True))
    a, b = (bench.router.book.of(e) for e in bench.router.table.models["m"].endpoints)
    assert len(bench.client.calls) == 2
    assert a.fail_before(a.last_started_at) > 0.02 and b.fail_before(b.last_started_at) == 0.02


async def test_the_total_limit_ends_a_stream_too() -> None:
    bench = Bench.of(route("m", then("a", {"tokens": 1000, "gap_s": 0.05})), total_timeout_s=0.4)
    async with asyncio.timeout(20):
        with pytest.raises(StreamBroken, match="whole answer"):
            await bench.run(request(stream=True))


async def test_a_whole_answer_may_take_longer_than_a_first_token() -> None:
    bench = Bench.of(route("m", then("a", {"delay_s": 0.6}, timeouts=BRISK)))
    async with asyncio.timeout(20):
        assert (await bench.run()).committed.endpoint_id == "a"


# The client leaves.


async def leave(bench: Bench, asked: InferenceRequest, *, after: int = 0, within_s: float = 0.2) -> None:
    """Read `after` events, then cancel while waiting for the next."""

    async def read() -> None:
        num = 0
        async with aclosing(bench.router.stream(asked)) as events:
            async for _ in events:
                num += 1
                if num == after:
                    await asyncio.sleep(60)

    task = asyncio.create_task(read())
    for _ in range(5):  # the first steps, however slow this machine is
        await asyncio.sleep(0)
    await asyncio.sleep(within_s)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


STAGES = [
    pytest.param({"hang_after": 0}, True, 0, id="before the first token"),
    pytest.param({"hang_after": 2}, True, 0, id="between tokens"),
    pytest.param({"text": "a b c"}, True, 1, id="not reading after commit"),
    pytest.param({"hang_after": 0}, False, 0, id="waiting for a whole answer"),
    pytest.param({"refuse_connection": True}, True, 0, id="while reconnecting"),
]


@pytest.mark.parametrize(("script", "stream", "after"), STAGES)
async def test_a_client_that_leaves_frees_everything(
    script: dict[str, Any], stream: bool, after: int
) -> None:
    """G68, G161"""
    within_s = 0.0 if script.get("refuse_connection") else 0.2  # reconnecting waits for 0 to 0.25 s
    bench = Bench.of(route("m", then("a", {"tokens": 5, **script})))
    for _ in range(3):
        await leave(bench, request(stream=stream), after=after, within_s=within_s)
    assert bench.client.num_open == 0 == bench.num_in_flight()
    health = bench.router.book.of(bench.router.table.models["m"].endpoints[0])
    assert health.breaker.allows(health.last_started_at)
    assert health.fail_before(health.last_started_at) <= 0.02
    records = bench.heard.records
    assert [(r.status, r.is_cancelled) for r in records] == [(499, True)] * 3
    assert [a.failure for r in records for a in r.attempts] == [FailureClass.CLIENT_LEFT] * 3


async def test_impatient_clients_do_not_bench_a_slow_endpoint() -> None:
    """G68"""
    bench = Bench.of(route("m", then("a", {"delay_s": 0.5, "text": "patience"})))
    await asyncio.gather(*(leave(bench, request(), within_s=0.05) for _ in range(10)))
    assert (await bench.run()).text == "patience"


def breaker_of(bench: Bench) -> CircuitBreaker:
    return bench.router.book.of(bench.router.table.models["m"].endpoints[0]).breaker


async def test_an_abandoned_trial_is_handed_back() -> None:
    clock = Clock()
    scripts = [{"status": 500}] * 3 + [{"hang_after": 0}, OK]
    bench = Bench.of(route("m", then("a", {"scripts": scripts})), clock=clock)
    for _ in range(3):
        with pytest.raises(AllAttemptsFailed):
            await bench.run()
    clock.now += 11
    await leave(bench, request(stream=True))
    assert breaker_of(bench).allows(clock.now)
    answer = await bench.run(request(stream=True))
    assert answer.text == "ok" and bench.client.num_calls("a") == 5


@pytest.mark.parametrize("verdict", [{"status": 400}, {"status": 429, "retry_after_s": 0.0}])
async def test_a_trial_that_says_nothing_about_health_is_handed_back(verdict: dict[str, Any]) -> None:
    clock = Clock()
    bench = Bench.of(route("m", then("a", {"scripts": [{"status": 500}] * 3 + [verdict, OK]})), clock=clock)
    for _ in range(3):
        with pytest.raises(AllAttemptsFailed):
            await bench.run()
    clock.now += 11
    with pytest.raises(AllAttemptsFailed):
        await bench.run()
    assert breaker_of(bench).allows(clock.now)
    assert (await bench.run()).text == "ok"
    assert breaker_of(bench).state(clock.now) is BreakerState.CLOSED


async def test_a_client_that_leaves_mid_stream_leaves_a_partial_bill() -> None:
    expensive = {"text": "12345678 12345678 never", "hang_after": 2}
    bench = Bench.of(route("m", then("a", expensive, price=price(1e6, 1e6))))
    await leave(bench, request(stream=True), within_s=1.0)
    record = bench.heard.records[0]
    assert record.usage.completion_tokens == 5  # 17 characters
    assert record.is_usage_estimated and record.cost.total == pytest.approx(10 + 5)
    assert record.ttft_s is not None and record.served_endpoint == "a"


async def test_closing_the_iterator_early_is_leaving_too() -> None:
    bench = Bench.of(route("m", then("a", {"tokens": 50})))
    async with aclosing(bench.router.stream(request(stream=True))) as events:
        await anext(events)
    assert bench.client.num_open == 0 == bench.num_in_flight()
    assert bench.heard.records[0].status == 499


async def test_an_upstream_that_cannot_even_be_closed_leaks_nothing() -> None:
    """G87"""
    broken = {"tokens": 3, "cut_after": 1, "status": 502, "close_raises": True}
    bench = Bench.of(route("m", first("a", broken, cooldown_s=0), then("b")))
    asked = request(stream=True, preferences=ProviderPreferences(order=("a",)))
    for _ in range(20):
        with pytest.raises(StreamBroken):
            await bench.run(asked)
    assert bench.num_in_flight() == 0 == bench.client.num_open
    # The other way round: a good answer stays one although closing fails after it.
    good = Bench.of(route("m", then("a", {"hang_after": 1, "close_raises": True})))
    await leave(good, request(stream=True))
    assert good.num_in_flight() == 0 and good.heard.records[0].status == 499


# Usage and shapes.


@MODES
async def test_zero_reported_tokens_are_believed(stream: bool) -> None:
    """G111"""
    zero = {"text": "hello world", "usage": {"prompt_tokens": 0, "completion_tokens": 0}}
    bench = Bench.of(route("m", then("a", zero, price=price(2, 8))))
    finished = (await bench.run(request(stream=stream))).finished
    assert finished.usage.total_tokens == 0 and finished.cost.total == 0.0
    assert not finished.is_usage_estimated


@MODES
async def test_missing_usage_is_estimated_and_flagged(stream: bool) -> None:
    bench = Bench.of(route("m", then("a", {"text": "12345678", "usage": False}, price=price(1e6, 1e6))))
    finished = (await bench.run(request(stream=stream))).finished
    assert finished.usage.prompt_tokens == 10 and finished.usage.completion_tokens == 2
    assert finished.is_usage_estimated and finished.cost.total == pytest.approx(12.0)


@MODES
async def test_cached_tokens_are_billed_at_their_price(stream: bool) -> None:
    """G107, G112, G117"""
    usage = {"prompt_tokens": 1000, "cached_tokens": 800, "completion_tokens": 100, "reasoning_tokens": 60}
    for cached, usd in ((None, 0.0028), (0.0, 0.0012), (0.5, 0.0016)):
        bench = Bench.of(
            route("m", then("a", {"text": "x", "usage": usage}, price=price(2, 8, cache_read=cached)))
        )
        finished = (await bench.run(request(stream=stream))).finished
        assert finished.cost.total == pytest.approx(usd)


async def test_a_free_endpoint_costs_exactly_nothing() -> None:
    """G83"""
    bench = Bench.of(route("m", then("a")))
    assert (await bench.run()).finished.cost.total == 0.0


async def test_a_whole_answer_is_put_together_from_an_upstream_that_streams() -> None:
    calls = [{"id": "t1", "function": {"name": "f", "arguments": "{}"}}]
    script = {"text": "a b c", "reasoning": "hm", "tool_calls": calls}
    bench = Bench.of(route("m", then("a", script, upstream_stream="always")))
    answer = await bench.run()
    whole = next(e for e in answer.events if isinstance(e, Complete))
    message = whole.choices[0].message
    assert (message["content"], message["reasoning"]) == ("a b c", "hm")
    assert message["tool_calls"] == [{"type": "function", **calls[0]}]
    assert answer.finished.attempts[0].ttft_s is not None  # measured, since it streamed
    as_asked = Bench.of(route("m", then("a", script)))
    assert (await as_asked.run()).finished.attempts[0].ttft_s is None  # not guessed


@MODES
async def test_an_attempt_says_how_long_it_waited_in_a_queue_and_nobody_guesses(stream: bool) -> None:
    failing = {"queue_s": 0.002, "status": 500}
    bench = Bench.of(route("m", first("a", failing), first("b", {"queue_s": 0.001}), then("c")))
    made = {a.endpoint_id: a.queue_s for a in (await bench.run(request(stream=stream))).finished.attempts}
    assert made.pop("a", 0.002) == 0.002
    assert made == {"b": 0.001}
    plain = Bench.of(route("m", then("c")))
    assert (await plain.run(request(stream=stream))).finished.attempts[0].queue_s is None


@MODES
async def test_tool_calls_that_no_client_can_use_are_counted(stream: bool) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    said = ['{"a": 1}', "", '{"a": ', "[1]", "[" * 100_000]
    calls = [{"id": f"t{i}", "function": {"name": "f", "arguments": text}} for i, text in enumerate(said)]
    calls.append({"id": "t9", "function": {"name": "unheard_of", "arguments": "{}"}})
    bench = Bench.of(route("m", then("a", {"tool_calls": calls})))
    body = {"messages": [], "tools": tools}
    (made,) = (await bench.run(request(stream=stream, body=body))).finished.attempts
    assert (made.num_tool_calls, made.num_bad_tool_calls) == (6, 4)
    (unnamed,) = (await bench.run(request(stream=stream))).finished.attempts  # nothing to hold names to
    assert (unnamed.num_tool_calls, unnamed.num_bad_tool_calls) == (6, 3)
    (without,) = (await Bench.of(route("m", then("a"))).run(request(stream=stream))).finished.attempts
    assert (without.num_tool_calls, without.num_bad_tool_calls) == (0, 0)


async def test_embeddings_commit_on_their_data() -> None:
    bench = Bench.of(route("m", then("a"), output_modalities=("embeddings",)))
    answer = await bench.run(request(kind="embeddings", body={"input": "x"}))
    whole = next(e for e in answer.events if isinstance(e, Complete))
    assert whole.data[0]["object"] == "embedding"


@MODES
async def test_events_come_in_order(stream: bool) -> None:
    bench = Bench.of(route("m", then("a", {"tokens": 3})))
    answer = await bench.run(request(stream=stream))
    assert isinstance(answer.events[0], Committed) and isinstance(answer.events[-1], Finished)
    middle = answer.events[1:-1]
    assert all(isinstance(e, Chunk if stream else Complete) for e in middle)
    assert stream or len(middle) == 1
    assert answer.finished.ttft_s is not None


async def test_a_provider_type_without_a_client_is_passed_over() -> None:
    absent = endpoint(
        "x", provider=Provider(slug="x", name="X", type="litellm"), expected=Expected(0.01, 1e6)
    )
    bench = Bench.of(route("m", absent, then("b")))
    answer = await bench.run(request(preferences=ProviderPreferences(order=("x",))))
    assert answer.committed.endpoint_id == "b" and "litellm" in answer.finished.attempts[0].message


async def test_priority_options_and_tenant_reach_the_provider() -> None:
    bench = Bench.of(route("m", then("a")))
    prefs = ProviderPreferences(options={"a": {"tokens": 2, "text": None}})
    await bench.run(request(service_tier="flex", key_id="key-1", preferences=prefs))
    call = bench.client.calls[0]
    assert (call.priority, call.tenant, dict(call.options)) == (-1, "key-1", {"tokens": 2, "text": None})
