"""What a report counts and groups by: metrics, dimensions, operators and granularities as SQL. No queries.

SQL here is what SQLite and PostgreSQL both take; where they differ it is by dialect, at the end.

A request that was cancelled counts for time to first token and for the queue; one that failed for neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ionrouter.schema.accounts import WORKSPACE
from ionrouter.schema.variants import VARIANTS

NUM_ATTEMPTS = "$num_attempts"  # see `in_dialect`
ATTEMPTS = "$attempts"  # a table of the attempts of each generation
Format = Literal["number", "currency", "percent", "latency", "throughput"]

# What percentiles are taken of: milliseconds, and tokens per second with waiting included. NULL: no sample,
# as a kept answer is none: nobody was asked.
QUANTITIES: Mapping[str, str] = {
    "latency": "CASE WHEN state = 'finished' AND source_id IS NULL THEN duration_s * 1000 END",
    "ttft": "CASE WHEN is_stream = 1 AND state IN ('finished', 'cancelled') THEN ttft_s * 1000 END",
    "throughput": "CASE WHEN state = 'finished' AND completion_tokens > 0 AND duration_s > 0 "
    "THEN completion_tokens / duration_s END",
    "tpot": "CASE WHEN is_stream = 1 AND state = 'finished' AND completion_tokens > 1 "
    "AND duration_s > ttft_s THEN (duration_s - ttft_s) * 1000 / (completion_tokens - 1) END",
    "queue": "CASE WHEN state IN ('finished', 'cancelled') THEN queue_s * 1000 END",
}
DESCENDING = frozenset({"throughput"})  # p90: nine in ten were at least this fast
PERCENTS = (50, 75, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure. Either `sql`, an aggregate, or `percent` of a `quantity`; uptime is neither."""

    name: str
    label: str
    format: Format
    sql: str | None = None
    is_rate: bool = False
    quantity: str | None = None
    percent: int | None = None


def _share(part: str, of: str = "1") -> str:
    return f"CAST(sum({part}) AS DOUBLE PRECISION) / nullif(sum({of}), 0)"


def _one_if(condition: str) -> str:
    return f"CASE WHEN {condition} THEN 1 ELSE 0 END"


UPTIME = "uptime"  # of attempts, not requests: one that a fallback saved was down all the same
_FAILED = "state IN ('failed', 'aborted')"
_STATED = _one_if("state != 'cancelled'")  # cancelled says nothing about success
_PLAIN = (
    Metric("request_count", "Requests", "number", "count(*)"),
    Metric("tokens_total", "Tokens", "number", "sum(prompt_tokens + completion_tokens)"),
    Metric("tokens_prompt", "Prompt tokens", "number", "sum(prompt_tokens)"),
    Metric("tokens_completion", "Completion tokens", "number", "sum(completion_tokens)"),
    Metric("reasoning_tokens", "Reasoning tokens", "number", "sum(reasoning_tokens)"),
    Metric("cached_tokens", "Cached tokens", "number", "sum(cached_tokens)"),
    Metric(
        "cache_hit_rate", "Cached share of prompts", "percent",
        _share("cached_tokens", "prompt_tokens"), is_rate=True,
    ),
    Metric("total_usage", "Spend", "currency", "sum(cost)"),
    Metric("error_count", "Failed requests", "number", f"sum({_one_if(_FAILED)})"),
    Metric("error_rate", "Failed share", "percent", _share(_one_if(_FAILED), _STATED), is_rate=True),
    Metric(
        "server_error_rate", "Share failed by us or upstream", "percent",
        _share(_one_if(f"{_FAILED} AND coalesce(status, 500) >= 500"), _STATED), is_rate=True,
    ),
    Metric(
        "rate_limited_rate", "Rate-limited share", "percent",
        _share(_one_if("coalesce(status, 0) = 429"), _STATED), is_rate=True,
    ),
    Metric(
        "cancelled_rate", "Cancelled share", "percent", _share(_one_if("state = 'cancelled'")), is_rate=True,
    ),
    Metric(
        "fallback_rate", "Share with more than one attempt", "percent",
        _share(_one_if(f"{NUM_ATTEMPTS} > 1")), is_rate=True,
    ),
    Metric("tool_call_count", "Tool calls", "number", "sum(num_tool_calls)"),
    Metric(
        "tool_call_error_rate", "Share of tool calls that cannot be used", "percent",
        _share("num_bad_tool_calls", "num_tool_calls"), is_rate=True,
    ),
    Metric(UPTIME, "Uptime of endpoints", "percent", is_rate=True),
)  # fmt: skip
_LABELS = {
    "latency": "Latency",
    "ttft": "Time to first token",
    "throughput": "Throughput",
    "tpot": "Time per output token",
    "queue": "Time in the queue",
}


def _speeds(quantity: str) -> list[Metric]:
    unit: Format = "throughput" if quantity == "throughput" else "latency"
    label, value = _LABELS[quantity], QUANTITIES[quantity]
    average = Metric(f"avg_{quantity}", f"{label}, average", unit, f"avg({value})", is_rate=True)
    percentiles = [
        Metric(f"p{p}_{quantity}", f"{label}, p{p}", unit, None, True, quantity, p) for p in PERCENTS
    ]
    return [average, *percentiles]


METRICS: Mapping[str, Metric] = {
    metric.name: metric for metric in (*_PLAIN, *(m for quantity in QUANTITIES for m in _speeds(quantity)))
}


@dataclass(frozen=True, slots=True)
class Dimension:
    """What rows are told apart by. `attempt`: of one attempt, where that may differ from its request's."""

    name: str
    label: str
    sql: str
    is_number: bool = False
    attempt: str | None = None


_BUCKETS = (
    "CASE WHEN prompt_tokens < 1000 THEN '0-1k' WHEN prompt_tokens < 8000 THEN '1k-8k' "
    "WHEN prompt_tokens < 32000 THEN '8k-32k' WHEN prompt_tokens < 128000 THEN '32k-128k' ELSE '128k+' END"
)
_VARIANT = " ".join(f"WHEN lower(requested_model) LIKE '%:{name}' THEN '{name}'" for name in VARIANTS)
_USER = "SELECT creator_user_id FROM api_key WHERE hash = key_hash"
DIMENSIONS: Mapping[str, Dimension] = {
    dimension.name: dimension
    for dimension in (
        Dimension("model", "Model", "coalesce(model, requested_model)", attempt="$attempt.model"),
        Dimension("variant", "Variant", f"CASE {_VARIANT} ELSE 'standard' END"),
        Dimension("requested_model", "Model as asked for", "requested_model"),
        Dimension("provider", "Provider", "provider", attempt="$attempt.provider"),
        Dimension("endpoint", "Endpoint", "endpoint", attempt="$attempt.endpoint"),
        Dimension("api_key_id", "API key", "key_hash"),
        Dimension("user", "User", _USER),
        Dimension("workspace", "Workspace", f"CAST('{WORKSPACE}' AS TEXT)"),
        Dimension("country", "Country", "CAST(NULL AS TEXT)"),  # nobody here knows where callers are
        Dimension("origin", "Origin", "referer"),
        Dimension("app", "App", "coalesce(title, referer)"),
        Dimension("external_user", "End user", '"user"'),
        Dimension("session_id", "Session", "session_id"),
        Dimension("finish_reason", "Finish reason", "finish_reason"),
        Dimension("status", "Status", "status", is_number=True),
        Dimension("state", "Outcome", "state"),
        Dimension("api_type", "Kind of request", "kind"),
        Dimension("streamed", "Streamed", "is_stream", is_number=True),
        Dimension("context_length_bucket", "Prompt length", _BUCKETS),
        Dimension("generation_id", "Generation", "generation.id"),
    )
}

# Name -> (SQLAlchemy's, whether it takes a list). neq counts rows that have no value, as a reader expects.
OPERATORS: Mapping[str, tuple[str, bool]] = {
    "eq": ("is_not_distinct_from", False),
    "neq": ("is_distinct_from", False),
    "gt": ("__gt__", False),
    "gte": ("__ge__", False),
    "lt": ("__lt__", False),
    "lte": ("__le__", False),
    "in": ("in_", True),
    "not_in": ("not_in", True),
}

_SECOND = "CAST(started_at AS INTEGER), 'unixepoch'"
_UTC = "to_timestamp(floor(started_at)) AT TIME ZONE 'UTC'"
_SQLITE = {
    "minute": f"strftime('%Y-%m-%dT%H:%M:00Z', {_SECOND})",
    "hour": f"strftime('%Y-%m-%dT%H:00:00Z', {_SECOND})",
    "day": f"strftime('%Y-%m-%d', {_SECOND})",
    "week": f"strftime('%Y-%m-%d', {_SECOND}, 'weekday 0', '-6 days')",  # its Monday
    "month": f"strftime('%Y-%m-01', {_SECOND})",
    NUM_ATTEMPTS: "json_array_length(attempts)",
    ATTEMPTS: "json_each(generation.attempts) AS attempt",
}
_POSTGRESQL = {
    "minute": f"""to_char({_UTC}, 'YYYY-MM-DD"T"HH24:MI:00"Z"')""",
    "hour": f"""to_char({_UTC}, 'YYYY-MM-DD"T"HH24:00:00"Z"')""",
    "day": f"to_char({_UTC}, 'YYYY-MM-DD')",
    "week": f"to_char(date_trunc('week', {_UTC}), 'YYYY-MM-DD')",
    "month": f"to_char({_UTC}, 'YYYY-MM-01')",
    NUM_ATTEMPTS: "json_array_length(CAST(attempts AS json))",
    ATTEMPTS: "json_array_elements(CAST(generation.attempts AS json)) AS attempt(value)",
}
BY_DIALECT: Mapping[str, Mapping[str, str]] = {"sqlite": _SQLITE, "postgresql": _POSTGRESQL}
_OF_ATTEMPT = "$attempt."  # and a name in the JSON of one attempt
GRANULARITIES = ("minute", "hour", "day", "week", "month")


def in_dialect(sql: str, dialect: str) -> str:
    """Fill in what the two databases say differently; a granularity's name stands for its SQL."""
    terms = BY_DIALECT[dialect]
    if sql.startswith(_OF_ATTEMPT):
        name = sql.removeprefix(_OF_ATTEMPT)
        return (
            f"json_extract(attempt.value, '$.{name}')"
            if dialect == "sqlite"
            else f"attempt.value ->> '{name}'"
        )
    return terms.get(sql) or sql.replace(NUM_ATTEMPTS, terms[NUM_ATTEMPTS])
