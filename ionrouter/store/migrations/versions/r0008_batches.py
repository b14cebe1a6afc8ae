"""Batches of requests, and what each of them was answered."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

BIG: Any = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
FLOAT: Any = sa.Double().with_variant(sa.REAL(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "batch",
        sa.Column("id", sa.Text, primary_key=True),
        *(
            sa.Column(name, sa.Text, nullable=False)
            for name in ("key_hash", "endpoint", "model", "headers", "status")
        ),
        sa.Column("created_at", FLOAT, nullable=False),
        sa.Column("expires_at", FLOAT, nullable=False),
        sa.Column("finalized_at", FLOAT),
        sa.Column("error", sa.Text),
        sa.Column("owner", sa.Text),
        sa.Column("lease_until", FLOAT),
        sa.Column("num_requests", sa.Integer, nullable=False),
        _zero("num_completed", sa.Integer),
        _zero("num_failed", sa.Integer),
        _zero("prompt_tokens", BIG),
        _zero("completion_tokens", BIG),
        _zero("cost", FLOAT),
        sqlite_strict=True,
    )
    op.create_index("batch_key", "batch", ["key_hash", "created_at"])
    op.create_index("batch_status", "batch", ["status"])
    op.create_table(
        "batch_line",
        sa.Column("batch_id", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("custom_id", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("request_id", sa.Text),
        sa.Column("answer", sa.Text),
        sqlite_strict=True,
    )


def _zero(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, server_default=sa.text("0"))
