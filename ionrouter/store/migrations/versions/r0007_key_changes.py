"""Which key each version of the keys changed, so that one change does not make everybody read all of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "key_change",
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("hash", sa.Text, nullable=False),
        sqlite_strict=True,
    )
