"""Adds up generations: any metrics by up to two dimensions over time, and the daily activity. SQL, no HTTP.

Percentiles are exact (nearest rank) over the rows themselves, null under five samples.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ionrouter.store.periods import DAY_S, date_of
from ionrouter.store.report_terms import DESCENDING, DIMENSIONS, GRANULARITIES, METRICS, OPERATORS, QUANTITIES

MIN_SAMPLES = 5
MAX_GROUPS = 100_000  # more than anybody reads; grouping by generation could make millions
DATE, COUNT = "date", "request_count"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Filter:
    """`field` and `operator` are names of the tables in report_terms; `value` a list where one is taken."""

    field: str
    operator: str
    value: Any
    includes_unset: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """What to add up. Names are checked by whoever asks; times are wall clock, `end` is not included."""

    metrics: Sequence[str]
    start: float
    end: float
    dimensions: Sequence[str] = ()
    filters: Sequence[Filter] = ()
    granularity: str | None = None
    order_by: str | None = None
    is_descending: bool = False
    limit: int = 1000
    group_limit: int | None = None

    @property
    def groups(self) -> list[tuple[str, str]]:
        """Name and SQL of every column that rows are told apart by."""
        dates = [(DATE, GRANULARITIES[self.granularity])] if self.granularity else []
        return [*dates, *((name, DIMENSIONS[name].sql) for name in self.dimensions)]


@dataclass(frozen=True, slots=True)
class Report:
    rows: Sequence[Row]
    is_truncated: bool


def answer(question: Question, connection: sqlite3.Connection) -> Report:
    """Run a question; the reader's thread may take its time."""
    rows = _totals(question, connection)
    for quantity in QUANTITIES:
        asked = [m for m in question.metrics if METRICS[m].quantity == quantity]
        if asked:
            _add_percentiles(question, quantity, asked, rows, connection)
    ordered = _ordered(question, list(rows.values()))
    kept = _limited_groups(question, ordered)[: question.limit]
    is_truncated = len(kept) < len(ordered) or len(rows) >= MAX_GROUPS
    return Report([_shown(question, row) for row in kept], is_truncated)


def _where(question: Question) -> tuple[str, list[Any]]:
    clauses, values = (
        ["state != 'started'", "started_at >= ?", "started_at < ?"],
        [question.start, question.end],
    )
    for item in question.filters:
        sql, takes_list = OPERATORS[item.operator]
        column = DIMENSIONS[item.field].sql
        marks = f"({', '.join('?' * len(item.value))})" if takes_list else "?"
        clause = f"({column}) {sql} {marks}"
        if item.includes_unset:
            clause = f"({clause} OR ({column}) IS NULL)"
        clauses.append(clause)
        values.extend(item.value if takes_list else [item.value])
    return " AND ".join(clauses), values


def _grouping(question: Question) -> tuple[str, str]:
    """The columns g0, g1, ... by name, and the clause that groups by them."""
    names = ", ".join(f"g{i}" for i in range(len(question.groups)))
    return names, f"GROUP BY {names} ORDER BY {names} LIMIT {MAX_GROUPS}" if names else ""


def _totals(question: Question, connection: sqlite3.Connection) -> dict[tuple[Any, ...], Row]:
    """Everything that one aggregate answers, by group; and the count, which rows may be ordered by."""
    plain = [name for name in question.metrics if METRICS[name].sql is not None]
    columns = [f"{sql} AS g{i}" for i, (_, sql) in enumerate(question.groups)]
    figures = [f"{METRICS[name].sql}" for name in (*plain, COUNT)]
    where, values = _where(question)
    _, grouping = _grouping(question)
    found = connection.execute(
        f"SELECT {', '.join([*columns, *figures])} FROM generation WHERE {where} {grouping}", values
    )
    rows: dict[tuple[Any, ...], Row] = {}
    num_groups, names = len(columns), [*(name for name, _ in question.groups), *plain, COUNT]
    for values_found in found:
        row = dict(zip(names, values_found, strict=True))
        if row[COUNT]:  # without groups there is a row even of nothing
            rows[tuple(values_found[:num_groups])] = row
    return rows


def _add_percentiles(
    question: Question,
    quantity: str,
    metrics: Sequence[str],
    rows: Mapping[tuple[Any, ...], Row],
    connection: sqlite3.Connection,
) -> None:
    """Rank the samples of every group inside SQLite and pick those at the percents."""
    columns = "".join(f"{sql} AS g{i}, " for i, (_, sql) in enumerate(question.groups))
    names, grouping = _grouping(question)
    comma, partition = (f"{names}, ", f"PARTITION BY {names}") if names else ("", "")
    direction = "DESC" if quantity in DESCENDING else "ASC"
    # Nearest rank: the smallest k with 100 k >= percent n, in integers.
    picks = [f"max(CASE WHEN k = ({METRICS[m].percent} * n + 99) / 100 THEN v END)" for m in metrics]
    where, values = _where(question)
    found = connection.execute(
        f"WITH samples AS (SELECT {columns}{QUANTITIES[quantity]} AS v FROM generation WHERE {where}), "
        f"ranked AS (SELECT {comma}v, row_number() OVER ({partition} ORDER BY v {direction}) AS k, "
        f"count(*) OVER ({partition}) AS n FROM samples WHERE v IS NOT NULL) "
        f"SELECT {comma}n, {', '.join(picks)} FROM ranked {grouping}",
        values,
    )
    for row in rows.values():
        row |= {name: None for name in metrics} | {f"{quantity}_samples": 0}
    num_groups = len(question.groups)
    for line in found:
        row_found = rows.get(tuple(line[:num_groups]))
        num_samples, *picked = line[num_groups:]
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
    ties = [group for group, _ in question.groups]
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
    return row if COUNT in question.metrics else {k: v for k, v in row.items() if k != COUNT}


_ACTIVITY = f"""
    SELECT {GRANULARITIES["day"]} AS day, model, endpoint, provider, sum(cost), count(*), sum(prompt_tokens),
        sum(completion_tokens), sum(reasoning_tokens), sum(cached_tokens)
    FROM generation WHERE endpoint IS NOT NULL AND state != 'started' AND started_at >= ? AND started_at < ?
"""
_ACTIVITY_NAMES = (
    "date", "model", "endpoint_id", "provider_name", "usage", "requests", "prompt_tokens",
    "completion_tokens", "reasoning_tokens", "cached_tokens",
)  # fmt: skip


def activity(
    connection: sqlite3.Connection,
    days: tuple[int, int],
    *,
    key_hash: str | None = None,
    user_id: str | None = None,
) -> list[Row]:
    """Add up the UTC days from the first to before the last by day, model and endpoint; newest first."""
    sql = _ACTIVITY
    values: list[float | str] = [days[0] * DAY_S, days[1] * DAY_S]
    if key_hash is not None:
        sql, values = f"{sql} AND key_hash = ?", [*values, key_hash]
    if user_id is not None:
        sql += " AND key_hash IN (SELECT hash FROM api_key WHERE creator_user_id = ?)"
        values = [*values, user_id]
    sql += " GROUP BY day, model, endpoint, provider ORDER BY day DESC, model, endpoint, provider"
    return [dict(zip(_ACTIVITY_NAMES, row, strict=True)) for row in connection.execute(sql, values)]


def last_days(today: int, num_days: int = 30) -> Mapping[str, int]:
    """The completed UTC days that activity is told of: date -> day number."""
    return {date_of(day).isoformat(): day for day in range(today - num_days, today)}
