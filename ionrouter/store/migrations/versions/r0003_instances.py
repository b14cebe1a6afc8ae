"""Which server runs a request, and what it holds under its key's limit."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ionrouter.store.tables import FLOAT

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("generation", sa.Column("reserved", FLOAT, nullable=False, server_default=sa.text("0")))
    op.add_column("generation", sa.Column("instance", sa.Text))
    running = sa.text("state = 'started'")
    op.drop_index("generation_unfinished", "generation")
    op.create_index(
        "generation_running", "generation", ["key_hash"], sqlite_where=running, postgresql_where=running
    )
