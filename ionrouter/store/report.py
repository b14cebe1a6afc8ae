"""Adds up generations: any metrics by up to two dimensions over time, and the daily activity. SQL, no HTTP.

Percentiles are exact (nearest rank) over the rows themselves, null under five samples. Imports SQLAlchemy:
load it in a reader's thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Text,
    case,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
)

from ionrouter.errors import DOWN, RequestError
from ionrouter.store.periods import DAY_S
from ionrouter.store.question import COUNT, DATE, Filter, Question, Report, Row
from ionrouter.store.report_terms import (
    ATTEMPTS,
    DESCENDING,
    DIMENSIONS,
    METRICS,
    OPERATORS,
    QUANTITIES,
    UPTIME,
    in_dialect,
)
from ionrouter.store.spending import DIGITS
from ionrouter.store.tables import api_key, generation

MIN_SAMPLES = 5
MAX_GROUPS = 100_000  # more than anybody reads; grouping by generation could make millions


def answer(question: Question, connection: Connection) -> Report:
    """Run a question; the reader's thread may take its time."""
    rows = _totals(question, connection)
    if UPTIME in question.metrics:
        _add_uptime(question, rows, connection)
    for quantity in QUANTITIES:
        asked = [m for m in question.metrics if METRICS[m].quantity == quantity]
        if asked:
            _add_percentiles(question, quantity, asked, rows, connection)
    ordered = _ordered(question, list(rows.values()))
    kept = _limited_groups(question, ordered)[: question.limit]
    is_truncated = len(kept) < len(ordered) or len(rows) >= MAX_GROUPS
    return Report([_shown(question, row) for row in kept], is_truncated)


def _term(sql: str, connection: Connection) -> ColumnElement[Any]:
    return literal_column(f"({in_dialect(sql, connection.dialect.name)})")


def _groups(
    question: Question, connection: Connection, *, of_attempts: bool = False
) -> list[ColumnElement[Any]]:
    """The columns g0, g1, ...: the date, where one is asked for, and the dimensions."""
    dates = [question.granularity] if question.granularity else []
    terms = [*dates, *(_sql(name, of_attempts) for name in question.dimensions)]
    return [_term(sql, connection).label(f"g{i}") for i, sql in enumerate(terms)]


def _sql(dimension: str, of_attempts: bool) -> str:
    found = DIMENSIONS[dimension]
    return found.attempt if of_attempts and found.attempt is not None else found.sql


def _where(
    question: Question, connection: Connection, *, of_attempts: bool = False
) -> list[ColumnElement[bool]]:
    at = generation.c.started_at
    within = [generation.c.state != "started", at >= question.start, at < question.end]
    filters = [
        (item, in_dialect(_sql(item.field, of_attempts), connection.dialect.name))
        for item in question.filters
    ]
    return [*within, *(_condition(item, sql) for item, sql in filters)]


def _condition(item: Filter, sql: str) -> ColumnElement[bool]:
    operator, takes_list = OPERATORS[item.operator]
    column = literal_column(f"({sql})", None if _is_number(item) else Text)
    value = [_value(item, v) for v in item.value] if takes_list else _value(item, item.value)
    found: ColumnElement[bool] = getattr(column, operator)(value)
    return or_(found, column.is_(None)) if item.includes_unset else found


def _is_number(item: Filter) -> bool:
    return DIMENSIONS[item.field].is_number


def _value(item: Filter, value: Any) -> Any:
    """Bring a value to the type of its column: PostgreSQL does not compare text with numbers."""
    if value is None:
        return None
    if not _is_number(item):
        return str(value)
    try:
        return literal(float(value))
    except (TypeError, ValueError, OverflowError):
        raise RequestError(f"filters: {item.field} is a number, got {value!r}", param="filters") from None


def _grouped(query: Select[Any], num_groups: int) -> Select[Any]:
    names: list[ColumnElement[Any]] = [literal_column(f"g{i}") for i in range(num_groups)]
    return query.group_by(*names).order_by(*names).limit(MAX_GROUPS) if names else query


def _totals(question: Question, connection: Connection) -> dict[tuple[Any, ...], Row]:
    """Everything that one aggregate answers, by group; and the count, which rows may be ordered by."""
    plain = [name for name in question.metrics if METRICS[name].sql is not None]
    columns = _groups(question, connection)
    figures = [_term(METRICS[name].sql or "", connection) for name in (*plain, COUNT)]
    query = select(*columns, *figures).select_from(generation).where(*_where(question, connection))
    rows: dict[tuple[Any, ...], Row] = {}
    num_groups, names = len(columns), [*question.groups, *plain, COUNT]
    for found in connection.execute(_grouped(query, num_groups)):
        values = tuple(found)
        row = dict(zip(names, values, strict=True))
        if row[COUNT]:  # without groups there is a row even of nothing
            rows[values[:num_groups]] = row
    return rows


def _add_uptime(question: Question, rows: dict[tuple[Any, ...], Row], connection: Connection) -> None:
    """Count attempts that did and did not work, under the endpoint, provider and model that each was made at.

    A group that was tried and never served has no row yet; it gets one, without requests.
    """
    for row in rows.values():
        row |= {UPTIME: None, f"{UPTIME}_samples": 0}
    columns = _groups(question, connection, of_attempts=True)
    failure = _term("$attempt.failure", connection)
    worked = func.sum(case((failure.is_(None), 1), else_=0))
    broke = func.sum(case((failure.in_(sorted(DOWN)), 1), else_=0))
    attempts = text(in_dialect(ATTEMPTS, connection.dialect.name))
    query = select(*columns, worked, broke).select_from(generation, attempts)
    query = query.where(*_where(question, connection, of_attempts=True))
    for found in connection.execute(_grouped(query, len(columns))):
        *group, num_ok, num_failed = found
        if (total := (num_ok or 0) + (num_failed or 0)) == 0:
            continue
        row = rows.setdefault(tuple(group), _empty(question, group))
        row |= {UPTIME: num_ok / total if total >= MIN_SAMPLES else None, f"{UPTIME}_samples": total}


def _empty(question: Question, group: Sequence[Any]) -> Row:
    """A row of no requests: sums are 0, rates unknown."""
    plain = {name: None if METRICS[name].is_rate else 0 for name in question.metrics if METRICS[name].sql}
    return {**dict(zip(question.groups, group, strict=True)), **plain, COUNT: 0}


def _add_percentiles(
    question: Question,
    quantity: str,
    metrics: Sequence[str],
    rows: Mapping[tuple[Any, ...], Row],
    connection: Connection,
) -> None:
    """Rank the samples of every group inside the database and pick those at the percents."""
    columns = _groups(question, connection)
    for row in rows.values():
        row |= {name: None for name in metrics} | {f"{quantity}_samples": 0}
    value = _term(QUANTITIES[quantity], connection).label("v")
    samples = (
        select(*columns, value).select_from(generation).where(*_where(question, connection)).cte("samples")
    )
    groups = [samples.c[f"g{i}"] for i in range(len(columns))]
    order = samples.c.v.desc() if quantity in DESCENDING else samples.c.v.asc()
    rank = func.row_number().over(partition_by=groups or None, order_by=order).label("k")
    count = func.count().over(partition_by=groups or None).label("n")
    ranked = select(*groups, samples.c.v, rank, count).where(samples.c.v.is_not(None)).cte("ranked")
    kept = [ranked.c[group.name] for group in groups]
    # Nearest rank: the smallest k with 100 k >= percent n, in integers.
    picks: list[ColumnElement[Any]] = [
        literal_column(f"max(CASE WHEN k = ({METRICS[m].percent} * n + 99) / 100 THEN v END)")
        for m in metrics
    ]
    query = select(*kept, func.max(ranked.c.n), *picks).select_from(ranked)
    if kept:
        query = query.group_by(*kept).order_by(*kept).limit(MAX_GROUPS)
    for found in connection.execute(query):
        line = tuple(found)
        row_found = rows.get(line[: len(kept)])
        num_samples, *picked = line[len(kept) :]
        if row_found is None or not num_samples:
            continue
        row_found[f"{quantity}_samples"] = num_samples
        if num_samples >= MIN_SAMPLES:
            row_found |= dict(zip(metrics, picked, strict=True))


def _ordered(question: Question, rows: list[Row]) -> list[Row]:
    """As asked; else by date, or the busiest first. What has no value comes last, ties by the groups."""
    name, is_descending = question.order_by, question.is_descending
    if name is None:
        name, is_descending = (DATE, False) if question.granularity else (COUNT, True)
    ties = question.groups
    rows.sort(key=lambda row: tuple((row[t] is None, str(row[t])) for t in ties))
    valued = [row for row in rows if row[name] is not None]
    valued.sort(key=lambda row: row[name], reverse=is_descending)
    return valued + [row for row in rows if row[name] is None]


def _limited_groups(question: Question, rows: list[Row]) -> list[Row]:
    """Keep so many rows of each combination of dimensions."""
    if question.group_limit is None or not question.dimensions:
        return rows
    seen: Counter[tuple[Any, ...]] = Counter()
    kept = []
    for row in rows:
        group = tuple(row[name] for name in question.dimensions)
        seen[group] += 1
        if seen[group] <= question.group_limit:
            kept.append(row)
    return kept


def _shown(question: Question, row: Row) -> Row:
    """As callers get it: dollars without the dust of sums."""
    for name in _DOLLARS:
        if row.get(name) is not None:
            row[name] = round(row[name], DIGITS)
    return row if COUNT in question.metrics else {k: v for k, v in row.items() if k != COUNT}


_DOLLARS = tuple(metric.name for metric in METRICS.values() if metric.format == "currency")
_SUMS = ("cost", "prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens")
_ACTIVITY_NAMES = (
    "date", "model", "endpoint_id", "provider_name", "requests", "usage", "prompt_tokens",
    "completion_tokens", "reasoning_tokens", "cached_tokens",
)  # fmt: skip


def activity(
    connection: Connection,
    days: tuple[int, int],
    *,
    key_hash: str | None = None,
    user_id: str | None = None,
) -> list[Row]:
    """Add up the UTC days from the first to before the last by day, model and endpoint; newest first.

    What nobody served is left out, unless it did cost something: so the sums are those of keys and credits.
    """
    row = generation.c
    day = _term("day", connection).label("day")
    model = _term(DIMENSIONS["model"].sql, connection).label("served_model")
    # Texts, as clients require.
    served = [func.coalesce(column, literal_column("''")) for column in (row.endpoint, row.provider)]
    query = (
        select(day, model, *served, func.count(), *(func.sum(row[name]) for name in _SUMS))
        .where(or_(row.endpoint.is_not(None), row.cost > 0), row.state != "started")
        .where(row.started_at >= days[0] * DAY_S, row.started_at < days[1] * DAY_S)
        .group_by(day, model, *served)
    )
    if key_hash is not None:
        query = query.where(row.key_hash == key_hash)
    if user_id is not None:
        query = query.where(
            row.key_hash.in_(select(api_key.c.hash).where(api_key.c.creator_user_id == user_id))
        )
    found = [dict(zip(_ACTIVITY_NAMES, line, strict=True)) for line in connection.execute(query)]
    found.sort(key=lambda line: [line[name] or "" for name in _ACTIVITY_NAMES[1:4]])
    found.sort(key=lambda line: line["date"], reverse=True)
    return found
