"""Statistics of endpoints and keys, a row for each stretch of time and series."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ionrouter.store.tables import BIG

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "stats_series",
        sa.Column("id", BIG, primary_key=True, autoincrement=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sqlite_strict=True,
    )
    op.create_index("stats_series_instance", "stats_series", ["instance"])
    op.create_table(
        "stats_bucket",
        sa.Column("series", BIG, primary_key=True, autoincrement=False),
        sa.Column("width_s", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sqlite_strict=True,
    )
