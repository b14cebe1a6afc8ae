"""Reports against a recount of the rows in plain Python; activity by day."""

from __future__ import annotations

import datetime
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, text

from ionrouter.errors import FailureClass, RequestError
from ionrouter.schema.accounts import WORKSPACE
from ionrouter.schema.variants import VARIANTS
from ionrouter.store.generation import Generation, insert
from ionrouter.store.periods import DAY_S, date_of, day_of
from ionrouter.store.question import Filter, Question, last_days
from ionrouter.store.reader import engine_over
from ionrouter.store.report import activity, answer
from ionrouter.store.report_terms import DIMENSIONS, GRANULARITIES, METRICS, QUANTITIES, UPTIME
from tests.support.databases import Place

START = 1_795_000_000.0
END = START + 40 * DAY_S
Rows = Sequence[Generation]


def generations() -> st.SearchStrategy[Generation]:
    tokens = st.integers(0, 200_000)
    seconds = st.floats(0.001, 600, allow_nan=False)
    return st.builds(
        Generation,
        id=st.uuids().map(str),
        state=st.sampled_from(["started", "finished", "finished", "failed", "cancelled", "aborted"]),
        key_hash=st.sampled_from([None, "k1", "k2"]),
        kind=st.sampled_from(["chat", "embeddings"]),
        requested_model=st.sampled_from(["a", "b", "a:free", "b:NITRO", "llama3:8b"]),
        is_stream=st.booleans(),
        started_at=st.floats(START - DAY_S, END + DAY_S, allow_nan=False),
        referer=st.sampled_from([None, "https://x.example"]),
        status=st.sampled_from([None, 200, 429, 404, 499, 502]),
        model=st.sampled_from([None, "a", "a:free"]),
        endpoint=st.sampled_from([None, "p/a", "q/a"]),
        provider=st.sampled_from([None, "P", "Q"]),
        duration_s=st.none() | seconds,
        ttft_s=st.none() | seconds,
        finish_reason=st.sampled_from([None, "stop", "length"]),
        prompt_tokens=tokens,
        completion_tokens=st.integers(0, 300),
        cached_tokens=tokens,
        reasoning_tokens=tokens,
        cost=st.floats(0, 10, allow_nan=False),
        attempts=st.lists(attempts(), max_size=3).map(json.dumps),
        queue_s=st.none() | st.just(0.0) | seconds,
        num_tool_calls=st.integers(2, 4),
        num_bad_tool_calls=st.integers(0, 2),
        source_id=st.sampled_from([None, None, "gen-1-kept"]),
    )


def attempts() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "endpoint": st.sampled_from(["p/a", "q/a"]),
            "model": st.sampled_from(["a", "a:free"]),
            "provider": st.sampled_from(["P", "Q"]),
            "failure": st.sampled_from([None, None, *(failure.value for failure in FailureClass)]),
        }
    )


KEY = (
    "INSERT INTO api_key (hash, name, label, kind, created_at, creator_user_id) VALUES (?, ?, ?, ?, ?, ?)",
    ("k1", "n", "l", "inference", 1.0, "somebody"),
)
Filled = Callable[[Rows], Connection]


@pytest.fixture
def filled(place: Place) -> Iterator[Filled]:
    """A function that makes these rows the only ones and returns a connection to ask."""
    link, driver = place.database.open(), place.database.open_to_read(60.0)
    with engine_over(place.database, driver).connect() as connection:

        def fill(rows: Rows) -> Connection:
            link.transact([("DELETE FROM generation", ()), *(insert(row) for row in rows)])
            link.transact([("DELETE FROM api_key", ()), KEY])
            return cast(Connection, connection)

        yield fill
    link.close()
    driver.close()


# What each name means, said a second time.

FAILED = ("failed", "aborted")


def _share(rows: Rows, has: Callable[[Generation], Any], of: Callable[[Generation], Any]) -> float | None:
    total = sum(of(row) for row in rows)
    return sum(has(row) for row in rows) / total if total else None


def _counted(row: Generation) -> bool:
    return row.state != "cancelled"


PLAIN: dict[str, Callable[[Rows], Any]] = {
    "request_count": len,
    "tokens_total": lambda rows: sum(r.prompt_tokens + r.completion_tokens for r in rows),
    "tokens_prompt": lambda rows: sum(r.prompt_tokens for r in rows),
    "tokens_completion": lambda rows: sum(r.completion_tokens for r in rows),
    "reasoning_tokens": lambda rows: sum(r.reasoning_tokens for r in rows),
    "cached_tokens": lambda rows: sum(r.cached_tokens for r in rows),
    "cache_hit_rate": lambda rows: _share(rows, lambda r: r.cached_tokens, lambda r: r.prompt_tokens),
    "total_usage": lambda rows: sum(r.cost for r in rows),
    "error_count": lambda rows: sum(r.state in FAILED for r in rows),
    "error_rate": lambda rows: _share(rows, lambda r: r.state in FAILED, _counted),
    "server_error_rate": lambda rows: _share(
        rows, lambda r: r.state in FAILED and (r.status is None or r.status >= 500), _counted
    ),
    "rate_limited_rate": lambda rows: _share(rows, lambda r: r.status == 429, _counted),
    "cancelled_rate": lambda rows: _share(rows, lambda r: r.state == "cancelled", lambda r: 1),
    "fallback_rate": lambda rows: _share(rows, lambda r: len(json.loads(r.attempts)) > 1, lambda r: 1),
    "tool_call_count": lambda rows: sum(r.num_tool_calls for r in rows),
    "tool_call_error_rate": lambda rows: _share(
        rows, lambda r: r.num_bad_tool_calls, lambda r: r.num_tool_calls
    ),
}


def samples(quantity: str, rows: Rows) -> list[float]:
    done = [r for r in rows if r.state == "finished"]
    if quantity == "latency":
        return sorted(r.duration_s * 1000 for r in done if r.duration_s is not None and not r.source_id)
    if quantity == "throughput":
        fast = [r.completion_tokens / r.duration_s for r in done if r.completion_tokens and r.duration_s]
        return sorted(fast, reverse=True)
    if quantity == "queue":
        served = [r for r in rows if r.state in ("finished", "cancelled")]
        return sorted(r.queue_s * 1000 for r in served if r.queue_s is not None)
    if quantity == "tpot":
        return sorted(
            (r.duration_s - r.ttft_s) * 1000 / (r.completion_tokens - 1)
            for r in done
            if r.is_stream
            and r.completion_tokens > 1
            and r.duration_s
            and r.ttft_s
            and r.duration_s > r.ttft_s
        )
    streams = [r for r in rows if r.is_stream and r.state in ("finished", "cancelled")]
    return sorted(r.ttft_s * 1000 for r in streams if r.ttft_s is not None)


def expected(name: str, rows: Rows) -> Any:
    if name in PLAIN:
        return PLAIN[name](rows)
    figure, quantity = name.split("_")
    found = samples(quantity, rows)
    if figure == "avg":
        return sum(found) / len(found) if found else None
    if len(found) < 5:
        return None
    return found[math.ceil(int(figure[1:]) * len(found) / 100 - 1e-9) - 1]


BUCKETS = ((1000, "0-1k"), (8000, "1k-8k"), (32_000, "8k-32k"), (128_000, "32k-128k"))
VALUES: dict[str, Callable[[Generation], Any]] = {
    "model": lambda r: r.model or r.requested_model,
    "variant": lambda r: {"a:free": "free", "b:NITRO": "nitro"}.get(r.requested_model, "standard"),
    "user": lambda r: "somebody" if r.key_hash == "k1" else None,
    "workspace": lambda r: WORKSPACE,
    "country": lambda r: None,
    "requested_model": lambda r: r.requested_model,
    "provider": lambda r: r.provider,
    "endpoint": lambda r: r.endpoint,
    "api_key_id": lambda r: r.key_hash,
    "origin": lambda r: r.referer,
    "app": lambda r: r.title or r.referer,
    "external_user": lambda r: r.user,
    "session_id": lambda r: r.session_id,
    "finish_reason": lambda r: r.finish_reason,
    "status": lambda r: r.status,
    "state": lambda r: r.state,
    "api_type": lambda r: r.kind,
    "streamed": lambda r: int(r.is_stream),
    "context_length_bucket": lambda r: next((n for most, n in BUCKETS if r.prompt_tokens < most), "128k+"),
    "generation_id": lambda r: r.id,
}


def date(granularity: str | None, row: Generation) -> str | None:
    if granularity is None:
        return None
    at = datetime.datetime.fromtimestamp(int(row.started_at), datetime.UTC)
    if granularity == "week":
        at -= datetime.timedelta(days=at.weekday())
    form = {"minute": "%Y-%m-%dT%H:%M:00Z", "hour": "%Y-%m-%dT%H:00:00Z", "month": "%Y-%m-01"}
    return at.strftime(form.get(granularity, "%Y-%m-%d"))


def test_the_recount_knows_every_name() -> None:
    assert {m for m in METRICS if m.split("_")[-1] not in QUANTITIES} == PLAIN.keys() | {UPTIME}
    assert DIMENSIONS.keys() == VALUES.keys()


def assert_same(found: Any, wanted: Any, name: str) -> None:
    if found is None or wanted is None:
        assert found is wanted, name
    else:
        assert found == pytest.approx(wanted, rel=1e-9, abs=1e-12), name


recounted = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
SOME_ROWS = st.lists(generations(), max_size=60, unique_by=lambda g: g.id)
SOME_DIMENSIONS = st.lists(st.sampled_from(sorted(DIMENSIONS)), max_size=2, unique=True)


@recounted
@given(
    rows=SOME_ROWS,
    dimensions=SOME_DIMENSIONS,
    granularity=st.none() | st.sampled_from(sorted(GRANULARITIES)),
)
def test_every_metric_equals_a_recount(
    filled: Filled, rows: Rows, dimensions: list[str], granularity: str | None
) -> None:
    metrics = [name for name in METRICS if name != UPTIME]  # of attempts: below
    question = Question(metrics, START, END, dimensions, granularity=granularity, limit=10_000)
    connection = filled(rows)
    report = answer(question, connection)
    groups: dict[tuple[Any, ...], list[Generation]] = defaultdict(list)
    for row in rows:
        if START <= row.started_at < END and row.state != "started":
            groups[(date(granularity, row), *(VALUES[d](row) for d in dimensions))].append(row)
    assert len(report.rows) == len(groups)
    assert not report.is_truncated
    for found in report.rows:
        mine = groups[(found.get("date"), *(found[d] for d in dimensions))]
        for name in metrics:
            assert_same(found[name], expected(name, mine), name)
        for quantity in QUANTITIES:
            assert found[f"{quantity}_samples"] == len(samples(quantity, mine))


@recounted
@given(
    rows=SOME_ROWS,
    dimensions=SOME_DIMENSIONS,
    only=st.none() | st.sampled_from([("endpoint", "p/a"), ("model", "a"), ("state", "finished")]),
)
def test_uptime_is_a_recount_of_the_attempts_where_they_were_made(
    filled: Filled, rows: Rows, dimensions: list[str], only: tuple[str, str] | None
) -> None:
    filters = [Filter(only[0], "eq", only[1])] if only else []
    question = Question(["uptime", "request_count"], START, END, dimensions, filters, limit=10_000)
    counts: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        if not (START <= row.started_at < END and row.state != "started"):
            continue
        for made in json.loads(row.attempts):
            here = {
                d: made[d] if d in made else VALUES[d](row)
                for d in (*dimensions, *dict([only or ("", 0)]))
                if d
            }
            if only and here[only[0]] != only[1]:
                continue
            worked, broke = made["failure"] is None, made["failure"] in ("transient", "domain")
            counts[tuple(here[d] for d in dimensions)][0] += worked
            counts[tuple(here[d] for d in dimensions)][1] += broke
    found = {tuple(row[d] for d in dimensions): row for row in answer(question, filled(rows)).rows}
    for group, (worked, broke) in counts.items():
        if worked + broke:
            assert found[group]["uptime_samples"] == worked + broke
    for group, row in found.items():
        worked, broke = counts[group]
        assert_same(row["uptime"], worked / (worked + broke) if worked + broke >= 5 else None, "uptime")


def test_an_endpoint_that_others_always_stand_in_for_is_down_all_the_same(filled: Filled) -> None:
    made = [{"endpoint": "p/bad", "failure": "transient"}, {"endpoint": "p/m", "failure": None}]
    connection = filled([_row(str(i), attempts=json.dumps(made)) for i in range(5)])
    question = Question(["request_count", "error_rate", "uptime", "avg_latency"], START, END, ["endpoint"])
    good, bad = answer(question, connection).rows
    assert (good["endpoint"], good["uptime"], good["request_count"]) == ("p/m", 1.0, 5)
    assert (bad["endpoint"], bad["uptime"], bad["uptime_samples"], bad["request_count"]) == (
        "p/bad",
        0.0,
        5,
        0,
    )
    assert bad["error_rate"] is bad["avg_latency"] is None


def test_the_variants_are_the_routers_own() -> None:
    assert set(re.findall(r"THEN '(\w+)'", DIMENSIONS["variant"].sql)) == set(VARIANTS)


OPERATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda value, wanted: bool(value == wanted),
    "neq": lambda value, wanted: bool(value != wanted),
    "gt": lambda value, wanted: value is not None and bool(value > wanted),
    "gte": lambda value, wanted: value is not None and bool(value >= wanted),
    "lt": lambda value, wanted: value is not None and bool(value < wanted),
    "lte": lambda value, wanted: value is not None and bool(value <= wanted),
    "in": lambda value, wanted: value is not None and value in wanted,
    "not_in": lambda value, wanted: value is not None and value not in wanted,
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(generations(), max_size=40, unique_by=lambda g: g.id),
    operator=st.sampled_from(sorted(OPERATIONS)),
    field=st.sampled_from(["status", "endpoint"]),
    includes_unset=st.booleans(),
)
def test_a_filter_keeps_what_a_recount_keeps(
    filled: Filled, rows: Rows, operator: str, field: str, includes_unset: bool
) -> None:
    wanted: Any = 429 if field == "status" else "p/a"
    takes_list = operator in ("in", "not_in")
    item = Filter(field, operator, [wanted] if takes_list else wanted, includes_unset and takes_list)
    question = Question(["request_count"], START, END, filters=[item])
    counted = [
        row
        for row in rows
        if START <= row.started_at < END
        and row.state != "started"
        and (
            OPERATIONS[operator](VALUES[field](row), item.value)
            or (item.includes_unset and VALUES[field](row) is None)
        )
    ]
    found = answer(question, filled(rows)).rows
    assert [row["request_count"] for row in found] == ([len(counted)] if counted else [])


def _row(name: str, **changes: Any) -> Generation:
    base: dict[str, Any] = {
        "state": "finished", "key_hash": "k1", "kind": "chat", "requested_model": "m", "is_stream": True,
        "started_at": START, "model": "m", "endpoint": "p/m", "provider": "P", "status": 200,
    }  # fmt: skip
    return Generation(id=name, **{**base, **changes})


def test_rows_come_as_ordered_and_limits_say_that_they_cut(filled: Filled) -> None:
    rows = [
        _row(f"{endpoint}-{day}-{i}", endpoint=endpoint, started_at=START + day * DAY_S)
        for endpoint, count in (("a", 1), ("b", 3), ("c", 2))
        for day in range(3)
        for i in range(count)
    ]
    connection = filled(rows)
    busiest = Question(["request_count"], START, END, ["endpoint"])
    assert [r["endpoint"] for r in answer(busiest, connection).rows] == ["b", "c", "a"]
    by_day = Question(["tokens_total"], START, END, ["endpoint"], granularity="day", group_limit=2, limit=5)
    report = answer(by_day, connection)
    first, second = (date_of(day_of(START) + day).isoformat() for day in (0, 1))
    assert [(r["date"], r["endpoint"]) for r in report.rows] == [
        (first, "a"), (first, "b"), (first, "c"), (second, "a"), (second, "b"),
    ]  # fmt: skip
    assert report.is_truncated
    assert "request_count" not in report.rows[0]
    cheapest = Question(["request_count"], START, END, ["endpoint"], order_by="request_count")
    assert [r["endpoint"] for r in answer(cheapest, connection).rows] == ["a", "c", "b"]


def test_activity_adds_up_whole_days_by_endpoint(filled: Filled) -> None:
    today = day_of(START)
    rows = [
        _row("a", started_at=(today - 1) * DAY_S, cost=0.5, prompt_tokens=3, cached_tokens=1),
        _row("b", started_at=today * DAY_S - 0.001, cost=0.25, completion_tokens=2, reasoning_tokens=1),
        _row("c", started_at=today * DAY_S, cost=9),  # today is not over
        _row("d", started_at=(today - 30) * DAY_S, key_hash="k2"),
        _row("e", started_at=(today - 30) * DAY_S - 0.001),  # too old
        _row("f", started_at=(today - 1) * DAY_S, state="failed", endpoint=None, model=None, provider=None),
    ]
    connection = filled(rows)
    days = last_days(today)
    assert len(days) == 30
    found = activity(connection, (min(days.values()), max(days.values()) + 1))
    assert [(r["date"], r["requests"], r["usage"]) for r in found] == [
        (max(days), 2, 0.75),
        (min(days), 1, 0.0),
    ]
    first = found[0]
    assert (first["prompt_tokens"], first["completion_tokens"]) == (3, 2)
    assert (first["reasoning_tokens"], first["cached_tokens"]) == (1, 1)
    only = activity(connection, (today - 30, today), key_hash="k2")
    assert [r["date"] for r in only] == [min(days)]
    assert activity(connection, (today - 30, today), user_id="nobody") == []


def test_activity_has_all_that_was_spent(filled: Filled) -> None:
    today = day_of(START)
    nobody = {"model": None, "endpoint": None, "provider": None}
    at = (today - 1) * DAY_S
    connection = filled(
        [
            _row("served", started_at=at, cost=0.5),
            _row("emptied", started_at=at, state="failed", status=502, cost=0.25, **nobody),
            _row("killed", started_at=at, state="aborted", cost=0.125, **nobody),
            _row("refused", started_at=at, state="failed", status=402, **nobody),
        ]
    )
    found = activity(connection, (today - 1, today))
    assert sum(row["usage"] for row in found) == 0.875
    assert [(r["model"], r["endpoint_id"], r["provider_name"], r["requests"], r["usage"]) for r in found] == [
        ("m", "", "", 2, 0.375),
        ("m", "p/m", "P", 1, 0.5),
    ]


def test_a_stretch_of_time_is_a_range_of_an_index(filled: Filled) -> None:
    connection = filled([_row(f"r{i}", started_at=START + i) for i in range(2000)])
    is_sqlite = connection.dialect.name == "sqlite"
    if not is_sqlite:
        connection.execute(text("SET default_transaction_read_only = off"))
        connection.execute(text("ANALYZE generation"))
    explain = "EXPLAIN QUERY PLAN" if is_sqlite else "EXPLAIN"
    sql = f"SELECT sum(cost) FROM generation WHERE started_at >= {START} AND started_at < {START + 9}"
    plan = connection.execute(text(f"{explain} {sql}")).fetchall()
    assert "generation_started" in str(plan)


def test_a_filter_takes_values_of_any_type_without_a_fault(filled: Filled) -> None:
    """PostgreSQL compares no text with numbers; what cannot be one is the asker's mistake."""
    connection = filled([_row("a", session_id="7"), _row("b", status=429)])

    def count(field: str, operator: str, value: Any) -> int:
        question = Question(["request_count"], START, END, filters=[Filter(field, operator, value)])
        return sum(row["request_count"] for row in answer(question, connection).rows)

    assert count("session_id", "eq", 7) == 1
    assert count("status", "eq", "429") == count("status", "in", [429.0, 1e30]) == 1
    assert count("streamed", "eq", True) == 2
    assert count("status", "neq", None) == 2
    with pytest.raises(RequestError, match="status is a number, got 'many'"):
        count("status", "gte", "many")


def test_dollars_have_no_dust_of_sums(filled: Filled) -> None:
    connection = filled([_row("one", started_at=START, cost=0.1), _row("two", started_at=START, cost=0.2)])
    (row,) = answer(Question(("total_usage",), START, END), connection).rows
    assert row["total_usage"] == 0.3  # not 0.30000000000000004
