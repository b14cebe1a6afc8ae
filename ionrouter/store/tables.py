"""Every table, once, for SQLite and PostgreSQL alike. Imports SQLAlchemy: reports and migrations load it.

Truth values are 0 and 1 and moments are seconds since the epoch in both, so that a row is the same tuple
whichever database it goes to. After a change here: a revision in migrations/versions, then
`python -m ionrouter.store.snapshot`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    REAL,
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.types import TypeEngine

metadata = MetaData()
BIG: TypeEngine[Any] = BigInteger().with_variant(Integer(), "sqlite")  # 8 bytes; as above
FLOAT: TypeEngine[Any] = Double().with_variant(REAL(), "sqlite")  # 8 bytes; STRICT knows no DOUBLE


def _table(name: str, *parts: Any, has_rowid: bool = True) -> Table:
    return Table(name, metadata, *parts, sqlite_strict=True, sqlite_with_rowid=has_rowid)


def _zero(name: str, kind: Any = Integer) -> Column[Any]:
    return Column(name, kind, nullable=False, server_default=text("0"))


api_key = _table(
    "api_key",
    Column("hash", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("kind", Text, CheckConstraint("kind IN ('inference', 'management')"), nullable=False),
    _zero("disabled"),
    Column("created_at", FLOAT, nullable=False),
    Column("spend_limit", FLOAT),
    Column("limit_reset", Text, CheckConstraint("limit_reset IN ('daily', 'weekly', 'monthly')")),
    Column("expires_at", FLOAT),
    _zero("include_byok_in_limit"),
    Column("updated_at", FLOAT),
    Column("creator_user_id", Text),
)

# One row. Moves with every change of api_key, so that whoever keeps keys in memory does not read them again
# for every generation that is written.
key_version = _table("key_version", Column("version", Integer, nullable=False))

# Which key each of the last versions changed.
key_change = _table(
    "key_change",
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("hash", Text, nullable=False),
)

# '' stands for requests without a key.
key_usage = _table(
    "key_usage",
    Column("key_hash", Text, primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("cost", FLOAT, nullable=False),
    Column("num_requests", Integer, nullable=False),
    Column("last_used_at", FLOAT, nullable=False),
    has_rowid=False,
)

generation = _table(
    "generation",
    Column("id", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("key_hash", Text),
    Column("kind", Text, nullable=False),
    Column("requested_model", Text, nullable=False),
    Column("is_stream", Integer, nullable=False),
    Column("started_at", FLOAT, nullable=False),
    *(Column(name, Text) for name in ("session_id", "user", "user_agent", "referer", "title")),
    Column("status", Integer),
    *(Column(name, Text) for name in ("model", "endpoint", "provider")),
    Column("duration_s", FLOAT),
    Column("ttft_s", FLOAT),
    Column("finish_reason", Text),
    *(Column(name, Text) for name in ("native_finish_reason", "service_tier", "upstream_id")),
    Column("prompt_tokens", Integer, nullable=False),
    Column("completion_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("reasoning_tokens", Integer, nullable=False),
    Column("is_usage_estimated", Integer, nullable=False),
    Column("cost", FLOAT, nullable=False),
    Column("error", Text),
    Column("attempts", Text, nullable=False),
    _zero("reserved", FLOAT),  # USD held under a limit while it runs
    Column("instance", Text),  # the server that runs it, see instance.py
    Column("queue_s", FLOAT),
    _zero("num_tool_calls"),
    _zero("num_bad_tool_calls"),
    Column("source_id", Text),  # the generation whose kept answer it was given
    Index("generation_started", "started_at"),
    Index("generation_key", "key_hash", "started_at"),
    Index(
        "generation_running", "key_hash",
        sqlite_where=text("state = 'started'"), postgresql_where=text("state = 'started'"),
    ),
)  # fmt: skip

# Statistics: what one server saw in one stretch of time of one series (stats/codec.py).
stats_series = _table(
    "stats_series",
    Column("id", BIG, primary_key=True, autoincrement=False),  # of instance and name, see stats_rows.py
    Column("instance", Text, nullable=False),  # the server that saw it
    Column("name", Text, nullable=False),  # its key, as JSON
    Index("stats_series_instance", "instance"),
)
# Not WITHOUT ROWID: rows of a kilobyte would spill over pages and take three times the room.
stats_bucket = _table(
    "stats_bucket",
    Column("series", BIG, primary_key=True, autoincrement=False),
    Column("width_s", Integer, primary_key=True, autoincrement=False),  # 60, 3600, 86400
    Column("number", Integer, primary_key=True, autoincrement=False),  # start / width_s
    Column("data", LargeBinary, nullable=False),
)

generation_words = _table(
    "generation_words",
    Column("id", Text, primary_key=True),
    Column("started_at", FLOAT, nullable=False),
    Column("input", Text, nullable=False),
    Column("completion", Text),
    Column("reasoning", Text),
    Index("generation_words_started", "started_at"),
)

# Requests that were submitted together (store/batches.py). 'hidden': not yet whole, or being deleted.
batch = _table(
    "batch",
    Column("id", Text, primary_key=True),
    Column("key_hash", Text, nullable=False),  # '' stands for no key
    Column("endpoint", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("headers", Text, nullable=False),  # of the submission, as JSON: what each request is sent with
    Column("status", Text, nullable=False),
    Column("created_at", FLOAT, nullable=False),
    Column("expires_at", FLOAT, nullable=False),
    Column("finalized_at", FLOAT),
    Column("error", Text),
    Column("owner", Text),  # the server that runs it, see instance.py
    Column("lease_until", FLOAT),
    Column("num_requests", Integer, nullable=False),
    _zero("num_completed"),
    _zero("num_failed"),
    _zero("prompt_tokens", BIG),
    _zero("completion_tokens", BIG),
    _zero("cost", FLOAT),
    Index("batch_key", "key_hash", "created_at"),
    Index("batch_status", "status"),
)
batch_line = _table(
    "batch_line",
    Column("batch_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("custom_id", Text, nullable=False),
    Column("body", Text, nullable=False),  # '' once it was answered
    Column("status", Integer),  # of its answer; NULL: it has none yet
    Column("request_id", Text),
    Column("answer", Text),
)
