"""GET /activity, POST /analytics/query and GET /analytics/meta: history of our own traffic, for operators."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from aiohttp import web

from ionrouter.api.body import read_json
from ionrouter.api.responses import json_response
from ionrouter.api.state import EDGE
from ionrouter.errors import RequestError
from ionrouter.schema.accounts import WORKSPACE
from ionrouter.schema.analytics import AnalyticsQuery, FilterObject, TimeRange
from ionrouter.schema.validation import validated
from ionrouter.store.periods import DAY_S, day_of
from ionrouter.store.question import COUNT, DATE, Filter, Question, Report, Row, last_days
from ionrouter.store.reader import Reader, unavailable
from ionrouter.store.report_terms import DIMENSIONS, GRANULARITIES, METRICS, OPERATORS

DEFAULT_RANGE_S = 7 * DAY_S


async def get_activity(request: web.Request) -> web.Response:
    """The last 30 completed UTC days, by day, model and endpoint."""
    query = request.query
    days = last_days(day_of(time.time()))
    first, last = min(days.values()), max(days.values()) + 1
    if (date := query.get("date")) is not None:
        if date not in days:
            raise RequestError(
                f"date: should be one of the last 30 completed UTC days, {min(days)} to {max(days)}",
                param="date",
            )
        first, last = days[date], days[date] + 1
    by_workspace = query.get("group_by") == "workspace"
    if "group_by" in query and not by_workspace:
        raise RequestError("group_by: should be 'workspace'", param="group_by")
    if query.get("workspace_id", WORKSPACE) != WORKSPACE:
        return json_response({"data": []})
    read = partial(
        _activity, days=(first, last), key_hash=query.get("api_key_hash"), user_id=query.get("user_id")
    )
    rows = await _reader(request).run(read)
    extra = {"workspace_id": WORKSPACE} if by_workspace else {}
    data = [
        {**row, "model_permaslug": row["model"], "byok_usage_inference": 0, "usage": round(row["usage"], 12)}
        | extra
        for row in rows
    ]
    return json_response({"data": data})


async def query_analytics(request: web.Request) -> web.Response:
    """Any metrics by up to two dimensions over time."""
    body = await read_json(request, request.app[EDGE].settings.max_body_bytes)
    question = _question(validated(AnalyticsQuery, body), time.time())
    begun = time.perf_counter()
    report = await _reader(request).run(partial(_answer, question))
    metadata = {
        "query_time_ms": round((time.perf_counter() - begun) * 1000, 3),
        "row_count": len(report.rows),
        "truncated": report.is_truncated,
    }
    return json_response({"data": {"data": list(report.rows), "metadata": metadata}})


async def get_meta(_request: web.Request) -> web.Response:
    """Every name that a query may use."""
    metrics = [
        {"name": m.name, "display_label": m.label, "is_rate": m.is_rate, "display_format": m.format}
        for m in METRICS.values()
    ]
    operators = [
        {"name": name, "value_type": "array" if takes_list else "scalar"}
        for name, (_, takes_list) in OPERATORS.items()
    ]
    data = {
        "metrics": metrics,
        "dimensions": [{"name": d.name, "display_label": d.label} for d in DIMENSIONS.values()],
        "operators": operators,
        "granularities": [{"name": g, "display_label": g.capitalize()} for g in GRANULARITIES],
    }
    return json_response({"data": data})


def _activity(connection: Any, days: tuple[int, int], key_hash: str | None, user_id: str | None) -> list[Row]:
    from ionrouter.store.report import activity  # in the reader's thread: it loads SQLAlchemy

    return activity(connection, days, key_hash=key_hash, user_id=user_id)


def _answer(question: Question, connection: Any) -> Report:
    from ionrouter.store.report import answer

    return answer(question, connection)


def _question(query: AnalyticsQuery, now: float) -> Question:
    for i, name in enumerate(query.metrics):
        _check(name, METRICS, f"metrics[{i}]")
    for i, name in enumerate(query.dimensions):
        _check(name, DIMENSIONS, f"dimensions[{i}]")
    if query.granularity is not None:
        _check(query.granularity, GRANULARITIES, "granularity")
    if query.order_by is not None:
        dates = [DATE] if query.granularity else []
        _check(query.order_by.field, [*query.metrics, COUNT, *query.dimensions, *dates], "order_by.field")
    start, end = _times(query.time_range, now)
    return Question(
        metrics=tuple(dict.fromkeys(query.metrics)),
        start=start,
        end=end,
        dimensions=tuple(dict.fromkeys(query.dimensions)),
        filters=[_filter(item, f"filters[{i}]") for i, item in enumerate(query.filters)],
        granularity=query.granularity,
        order_by=query.order_by.field if query.order_by else None,
        is_descending=query.order_by is not None and query.order_by.direction == "desc",
        limit=query.limit,
        group_limit=query.group_limit,
    )


def _filter(item: FilterObject, path: str) -> Filter:
    _check(item.field, DIMENSIONS, f"{path}.field")
    _check(item.operator, OPERATORS, f"{path}.operator")
    takes_list = OPERATORS[item.operator][1]
    if isinstance(item.value, list) != takes_list:
        wanted = "an array" if takes_list else "a string or a number"
        raise RequestError(f"{path}.value: '{item.operator}' takes {wanted}", param=f"{path}.value")
    if item.include_unset and not takes_list:
        raise RequestError(
            f"{path}.include_unset: applies to in and not_in only", param=f"{path}.include_unset"
        )
    return Filter(item.field, item.operator, item.value, item.include_unset)


def _times(given: TimeRange | None, now: float) -> tuple[float, float]:
    if given is None:
        return now - DEFAULT_RANGE_S, now + 1
    start, end = _moment(given.start), _moment(given.end)
    if start >= end:
        raise RequestError("time_range: start should be before end", param="time_range")
    return start, end


def _moment(value: datetime.datetime) -> float:
    """A time without a zone is UTC, as everything here."""
    return (value if value.tzinfo else value.replace(tzinfo=datetime.UTC)).timestamp()


def _check(name: str, known: Iterable[str], path: str) -> None:
    names = list(known)
    if name not in names:
        raise RequestError(f"{path}: '{name[:100]}' is unknown; known: {', '.join(names)}", param=path)


def _reader(request: web.Request) -> Reader:
    accounts = request.app[EDGE].accounts
    if accounts is None or accounts.ledger.reader is None:
        raise unavailable("the state folder could not be opened at start")
    return accounts.ledger.reader
