"""Limits of keys, what keys used, generations."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from ionrouter.store.tables import FLOAT

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    _limit_keys()
    version = op.create_table(
        "key_version", sa.Column("version", sa.Integer, nullable=False), sqlite_strict=True
    )
    op.bulk_insert(version, [{"version": 0}])
    op.create_table(
        "key_usage",
        sa.Column("key_hash", sa.Text, primary_key=True),
        sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("cost", FLOAT, nullable=False),
        sa.Column("num_requests", sa.Integer, nullable=False),
        sa.Column("last_used_at", FLOAT, nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    _make_generations()


def _limit_keys() -> None:
    resets = sa.CheckConstraint("limit_reset IN ('daily', 'weekly', 'monthly')")
    for column in (
        sa.Column("spend_limit", FLOAT),
        sa.Column("limit_reset", sa.Text, resets),
        sa.Column("expires_at", FLOAT),
        sa.Column("include_byok_in_limit", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("updated_at", FLOAT),
        sa.Column("creator_user_id", sa.Text),
    ):
        op.add_column("api_key", column)


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text) for name in names]


def _make_generations() -> None:
    op.create_table(
        "generation",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("key_hash", sa.Text),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("requested_model", sa.Text, nullable=False),
        sa.Column("is_stream", sa.Integer, nullable=False),
        sa.Column("started_at", FLOAT, nullable=False),
        *_texts("session_id", "user", "user_agent", "referer", "title"),
        sa.Column("status", sa.Integer),
        *_texts("model", "endpoint", "provider"),
        sa.Column("duration_s", FLOAT),
        sa.Column("ttft_s", FLOAT),
        *_texts("finish_reason", "native_finish_reason", "service_tier", "upstream_id"),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("completion_tokens", sa.Integer, nullable=False),
        sa.Column("cached_tokens", sa.Integer, nullable=False),
        sa.Column("reasoning_tokens", sa.Integer, nullable=False),
        sa.Column("is_usage_estimated", sa.Integer, nullable=False),
        sa.Column("cost", FLOAT, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("attempts", sa.Text, nullable=False),
        sqlite_strict=True,
    )
    op.create_index("generation_started", "generation", ["started_at"])
    op.create_index("generation_key", "generation", ["key_hash", "started_at"])
    unfinished = sa.text("state = 'started'")
    op.create_index(
        "generation_unfinished", "generation", ["state"], sqlite_where=unfinished, postgresql_where=unfinished
    )
    op.create_table(
        "generation_words",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("started_at", FLOAT, nullable=False),
        sa.Column("input", sa.Text, nullable=False),
        *_texts("completion", "reasoning"),
        sqlite_strict=True,
    )
    op.create_index("generation_words_started", "generation_words", ["started_at"])
