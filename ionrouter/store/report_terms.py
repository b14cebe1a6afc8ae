"""What a report counts and groups by: metrics, dimensions, operators and granularities as SQL. No queries.

A request that was cancelled counts for time to first token only; one that failed for no duration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Format = Literal["number", "currency", "percent", "latency", "throughput"]

# What percentiles are taken of: milliseconds, and tokens per second with waiting included. NULL: no sample.
QUANTITIES: Mapping[str, str] = {
    "latency": "CASE WHEN state = 'finished' THEN duration_s * 1000 END",
    "ttft": "CASE WHEN is_stream AND state IN ('finished', 'cancelled') THEN ttft_s * 1000 END",
    "throughput": "CASE WHEN state = 'finished' AND completion_tokens > 0 AND duration_s > 0 "
    "THEN completion_tokens / duration_s END",
}
DESCENDING = frozenset({"throughput"})  # p90: nine in ten were at least this fast
PERCENTS = (50, 75, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure. Either `sql`, an aggregate, or `percent` of a `quantity`."""

    name: str
    label: str
    format: Format
    sql: str | None = None
    is_rate: bool = False
    quantity: str | None = None
    percent: int | None = None


def _share(condition: str, of: str = "1") -> str:
    return f"CAST(sum({condition}) AS REAL) / nullif(sum({of}), 0)"


_FAILED = "state IN ('failed', 'aborted')"
_STATED = "state != 'cancelled'"  # cancelled says nothing about success
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
    Metric("error_count", "Failed requests", "number", f"sum({_FAILED})"),
    Metric("error_rate", "Failed share", "percent", _share(_FAILED, _STATED), is_rate=True),
    Metric(
        "server_error_rate", "Share failed by us or upstream", "percent",
        _share(f"{_FAILED} AND coalesce(status, 500) >= 500", _STATED), is_rate=True,
    ),
    Metric(
        "rate_limited_rate", "Rate-limited share", "percent",
        _share("coalesce(status, 0) = 429", _STATED), is_rate=True,
    ),
    Metric("cancelled_rate", "Cancelled share", "percent", _share("state = 'cancelled'"), is_rate=True),
    Metric(
        "fallback_rate", "Share with more than one attempt", "percent",
        _share("json_array_length(attempts) > 1"), is_rate=True,
    ),
)  # fmt: skip
_LABELS = {"latency": "Latency", "ttft": "Time to first token", "throughput": "Throughput"}


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
    name: str
    label: str
    sql: str


_BUCKETS = (
    "CASE WHEN prompt_tokens < 1000 THEN '0-1k' WHEN prompt_tokens < 8000 THEN '1k-8k' "
    "WHEN prompt_tokens < 32000 THEN '8k-32k' WHEN prompt_tokens < 128000 THEN '32k-128k' ELSE '128k+' END"
)
DIMENSIONS: Mapping[str, Dimension] = {
    dimension.name: dimension
    for dimension in (
        Dimension("model", "Model", "coalesce(model, requested_model)"),
        Dimension("requested_model", "Model as asked for", "requested_model"),
        Dimension("provider", "Provider", "provider"),
        Dimension("endpoint", "Endpoint", "endpoint"),
        Dimension("api_key_id", "API key", "key_hash"),
        Dimension("origin", "Origin", "referer"),
        Dimension("app", "App", "coalesce(title, referer)"),
        Dimension("external_user", "End user", "user"),
        Dimension("session_id", "Session", "session_id"),
        Dimension("finish_reason", "Finish reason", "finish_reason"),
        Dimension("status", "Status", "status"),
        Dimension("state", "Outcome", "state"),
        Dimension("api_type", "Kind of request", "kind"),
        Dimension("streamed", "Streamed", "is_stream"),
        Dimension("context_length_bucket", "Prompt length", _BUCKETS),
        Dimension("generation_id", "Generation", "id"),
    )
}

# Name -> (SQL, whether it takes a list). neq counts rows that have no value, as a reader expects.
OPERATORS: Mapping[str, tuple[str, bool]] = {
    "eq": ("IS", False),
    "neq": ("IS NOT", False),
    "gt": (">", False),
    "gte": (">=", False),
    "lt": ("<", False),
    "lte": ("<=", False),
    "in": ("IN", True),
    "not_in": ("NOT IN", True),
}

_SECOND = "CAST(started_at AS INTEGER), 'unixepoch'"
GRANULARITIES: Mapping[str, str] = {
    "minute": f"strftime('%Y-%m-%dT%H:%M:00Z', {_SECOND})",
    "hour": f"strftime('%Y-%m-%dT%H:00:00Z', {_SECOND})",
    "day": f"strftime('%Y-%m-%d', {_SECOND})",
    "week": f"strftime('%Y-%m-%d', {_SECOND}, 'weekday 0', '-6 days')",  # its Monday
    "month": f"strftime('%Y-%m-01', {_SECOND})",
}
