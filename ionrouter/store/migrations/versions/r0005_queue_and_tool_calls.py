"""What a generation waited before work on it began, and how its tool calls were."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ionrouter.store.tables import FLOAT

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("generation", sa.Column("queue_s", FLOAT))
    for name in ("num_tool_calls", "num_bad_tool_calls"):
        op.add_column("generation", sa.Column(name, sa.Integer, nullable=False, server_default=sa.text("0")))
