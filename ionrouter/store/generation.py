"""One request as it is kept: what GET /generation tells and what reports add up. A row, and its SQL.

Never a prompt, an answer or a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, fields, replace

from ionrouter.schema import json
from ionrouter.schema.events import AttemptRecord, RequestRecord
from ionrouter.schema.request import Client, InferenceRequest
from ionrouter.store.database import Statement
from ionrouter.store.periods import day_of
from ionrouter.store.spending import NO_KEY

# "aborted": the process ended before the request did.
State = Literal["started", "finished", "failed", "cancelled", "aborted"]
MAX_TEXT = 512  # characters of what a client says of itself


class Generation(Struct, frozen=True):
    """Columns of the table `generation`, in its order. Times are wall clock, cost is USD, all attempts."""

    id: str
    state: State
    key_hash: str | None
    kind: str
    requested_model: str
    is_stream: bool
    started_at: float
    session_id: str | None = None
    user: str | None = None
    user_agent: str | None = None
    referer: str | None = None
    title: str | None = None
    status: int | None = None
    model: str | None = None  # that served; None: none did
    endpoint: str | None = None
    provider: str | None = None
    duration_s: float | None = None
    ttft_s: float | None = None
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    service_tier: str | None = None
    upstream_id: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    is_usage_estimated: bool = False
    cost: float = 0.0
    error: str | None = None
    attempts: str = "[]"  # JSON: see `_attempt`
    reserved: float = 0.0  # USD held under the key's limit; 0 once it has ended
    instance: str | None = None  # the server that runs it
    queue_s: float | None = None  # of the attempt that served; None: not measured
    num_tool_calls: int = 0
    num_bad_tool_calls: int = 0
    source_id: str | None = None  # of the generation whose kept answer it was given


COLUMNS = Generation.__struct_fields__
_FLAGS = tuple(COLUMNS.index(name) for name in ("is_stream", "is_usage_estimated"))
_texts = itemgetter(
    *[at for at, field in enumerate(fields(Generation)) if str in (field.type, *get_args(field.type))]
)
_NAMES, _MARKS = ", ".join(f'"{name}"' for name in COLUMNS), ", ".join("?" * len(COLUMNS))
_CHANGES = ", ".join(f'"{name}" = excluded."{name}"' for name in COLUMNS if name != "id")
INSERT_NEW = f"INSERT INTO generation ({_NAMES}) VALUES ({_MARKS}) ON CONFLICT (id) DO NOTHING"
SELECT = f"SELECT {_NAMES} FROM generation WHERE id = ?"
SELECT_RUNNING = f"SELECT {_NAMES} FROM generation WHERE state = 'started'"
HOLD_MORE = "UPDATE generation SET reserved = reserved + ? WHERE id = ? AND state = 'started'"
ABORTED = "the server stopped"
ABORT = f"""
    UPDATE generation SET state = 'aborted', error = '{ABORTED}', cost = reserved, reserved = 0,
        is_usage_estimated = CASE WHEN reserved > 0 THEN 1 ELSE is_usage_estimated END
    WHERE id = ? AND state = 'started'
"""
MAX_ROWS = 16  # of one statement: there is a text for each number of rows, which the database keeps prepared
INSERT_WORDS = (
    "INSERT INTO generation_words (id, started_at, input, completion, reasoning) "
    "VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
)
SELECT_WORDS = "SELECT input, completion, reasoning FROM generation_words WHERE id = ?"
# Bounded, so that one commit stays short.
FORGET = (
    "DELETE FROM generation WHERE id IN (SELECT id FROM generation WHERE started_at < ? LIMIT 5000)",
    "DELETE FROM generation_words WHERE id IN "
    "(SELECT id FROM generation_words WHERE started_at < ? LIMIT 5000)",
)


IS_OLD_LEFT = (
    "SELECT 1 FROM generation WHERE started_at < ? UNION ALL "
    "SELECT 1 FROM generation_words WHERE started_at < ? LIMIT 1"
)


@lru_cache(maxsize=MAX_ROWS)
def insert_sql(num_rows: int) -> str:
    rows = ", ".join([f"({_MARKS})"] * num_rows)
    return f"INSERT INTO generation ({_NAMES}) VALUES {rows} ON CONFLICT (id) DO UPDATE SET {_CHANGES}"


@lru_cache(maxsize=MAX_ROWS)
def add_usage_sql(num_rows: int) -> str:
    """Of rows of key, day, cost, moment and id.

    A row that has ended was booked already: the commit before this one did work, though nobody was told.
    The order is that of the writer's turns.
    """
    rows = ", ".join(["(?, ?, ?, ?, ?)"] * num_rows)
    return f"""
        INSERT INTO key_usage (key_hash, day, cost, num_requests, last_used_at)
        SELECT column1, column2, sum(column3), count(*), max(column4) FROM (VALUES {rows}) AS booked
        WHERE NOT EXISTS (SELECT 1 FROM generation WHERE id = column5 AND state <> 'started')
        GROUP BY column1, column2 ORDER BY column1, column2
        ON CONFLICT (key_hash, day) DO UPDATE SET cost = key_usage.cost + excluded.cost,
            num_requests = key_usage.num_requests + excluded.num_requests,
            last_used_at = CASE WHEN excluded.last_used_at > key_usage.last_used_at
                THEN excluded.last_used_at ELSE key_usage.last_used_at END
    """


def started(
    request: InferenceRequest, at: float, reserved: float = 0.0, instance: str | None = None
) -> Generation:
    """What is known when a request begins."""
    return Generation(
        id=request.id,
        state="started",
        key_hash=request.key_id,
        kind=request.kind,
        requested_model=request.model,
        is_stream=request.stream,
        started_at=at,
        session_id=request.session_id,
        reserved=reserved,
        instance=instance,
        user=_said(request.client.user),
        user_agent=_said(request.client.user_agent),
        referer=_said(request.client.referer),
        title=_said(request.client.title),
    )


def ended(record: RequestRecord, client: Client, instance: str | None = None) -> Generation:
    """What is known when it has ended, however it did."""
    served = record.attempts[-1] if record.served_endpoint and record.attempts else None
    told = served or record.source  # who knows how the answer ended
    broke = served is not None and served.failure is not None and not record.is_cancelled
    return Generation(
        id=record.id,
        state=_state(record),
        key_hash=record.key_id,
        kind=record.kind,
        requested_model=record.requested_model,
        is_stream=record.stream,
        started_at=record.started_at,
        session_id=record.session_id,
        user=_said(client.user),
        user_agent=_said(client.user_agent),
        referer=_said(client.referer),
        title=_said(client.title),
        status=record.status,
        model=record.served_model,
        endpoint=record.served_endpoint,
        provider=record.served_provider,
        duration_s=record.duration_s,
        ttft_s=record.ttft_s,
        finish_reason="error" if broke else told.finish_reason if told else None,
        native_finish_reason=told.native_finish_reason if told else None,
        service_tier=told.service_tier if told else None,
        upstream_id=served.upstream_id if served else None,
        prompt_tokens=record.usage.prompt_tokens,
        completion_tokens=record.usage.completion_tokens,
        cached_tokens=record.usage.cached_tokens,
        reasoning_tokens=record.usage.reasoning_tokens,
        is_usage_estimated=record.is_usage_estimated,
        cost=record.cost.total,
        error=record.error[:2000] if record.error else None,
        attempts=json.dumps([_attempt(a) for a in record.attempts]).decode(),
        instance=instance,
        queue_s=served.queue_s if served else None,
        num_tool_calls=served.num_tool_calls if served else 0,
        num_bad_tool_calls=served.num_bad_tool_calls if served else 0,
        source_id=record.source.id if record.source else None,
    )


def from_row(row: Sequence[Any]) -> Generation:
    values = list(row)
    for at in _FLAGS:
        values[at] = bool(values[at])
    return Generation(*values)


def insert(*generations: Generation) -> Statement:
    values: list[Any] = []
    for row in generations:
        values += _values(row)
    return insert_sql(len(generations)), values


def book(generations: Sequence[Generation]) -> list[Statement]:
    """What ended rows of different requests are and cost; run twice it does the same."""
    statements = []
    for start in range(0, len(generations), MAX_ROWS):
        rows = generations[start : start + MAX_ROWS]
        statements += [add_usage(*rows), insert(*rows)]
    return statements


def to_bytes(generation: Generation) -> bytes:
    """As it is kept until it is committed; raises UnicodeEncodeError for what is no text."""
    return msgspec.msgpack.encode(generation)


def from_bytes(row: bytes) -> Generation:
    """Raises ValueError for what another version wrote."""
    return msgspec.msgpack.decode(row, type=Generation)


def insert_new(generation: Generation) -> Statement:
    """Like `insert`, but a row that is there stays as it is."""
    return INSERT_NEW, _values(generation)


def hold_more(request_id: str, amount: float) -> Statement:
    """Set aside so many more USD for a row that has not ended."""
    return HOLD_MORE, (amount, request_id)


def add_usage(*generations: Generation) -> Statement:
    """Book each cost under its key and day, once: in one transaction with, and before, the ended rows."""
    values: list[Any] = []
    for row in generations:
        values += (*turn_of(row), row.cost, row.started_at, row.id)
    return add_usage_sql(len(generations)), values


def turn_of(generation: Generation) -> tuple[str, int]:
    """The row of sums that `add_usage` writes, for the writer's order."""
    return generation.key_hash or NO_KEY, day_of(generation.started_at)


def abort(running: Generation) -> tuple[Generation, Sequence[Statement]]:
    """End a row whose server died: what was reserved for it is booked as an estimate.

    Nobody knows what it did cost. The reservation is the most that it can have, so the key's limit holds;
    without a limit nothing was reserved and nothing is booked.
    """
    row = replace(
        running, state="aborted", error=ABORTED, cost=running.reserved, reserved=0.0,
        is_usage_estimated=running.is_usage_estimated or running.reserved > 0,
    )  # fmt: skip
    return row, (add_usage(row), (ABORT, (running.id,)))


def _values(generation: Generation) -> list[Any]:
    """As a database takes them: truth values as numbers, and nothing in a text that is none."""
    row = list(astuple(generation))
    for at in _FLAGS:
        row[at] = int(row[at])
    # One look at all texts together: nearly always they are fine. What is no text, the database refuses.
    whole = "".join([text for text in _texts(row) if text.__class__ is str])
    if whole.isascii() and "\0" not in whole:
        return row
    return [unicode_of(value) if isinstance(value, str) else value for value in row]


def unicode_of(text: str) -> str:
    """Replace what is no text: headers may hold any bytes, and PostgreSQL keeps no NUL."""
    whole = text if text.isascii() else text.encode("utf-8", "replace").decode()
    return whole.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _state(record: RequestRecord) -> State:
    if record.is_cancelled:
        return "cancelled"
    return "finished" if record.status < 400 else "failed"


def _said(text: str | None) -> str | None:
    return unicode_of(text[:MAX_TEXT]) if text else None


def _attempt(attempt: AttemptRecord) -> Mapping[str, Any]:
    return {
        "endpoint": attempt.endpoint_id,
        "model": attempt.model_id,
        "provider": attempt.provider_name,
        "status": attempt.status,
        "failure": attempt.failure.value if attempt.failure else None,
        "message": attempt.message[:500] or None,
        "latency_s": attempt.duration_s,
        "upstream_id": attempt.upstream_id,
        "service_tier": attempt.service_tier,
        "cost": attempt.cost.total,
        "is_usage_estimated": attempt.is_usage_estimated,
    }
