"""Keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ionrouter.store.tables import FLOAT

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "api_key",
        sa.Column("hash", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, sa.CheckConstraint("kind IN ('inference', 'management')"), nullable=False),
        sa.Column("disabled", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("created_at", FLOAT, nullable=False),
        sqlite_strict=True,
    )
