"""Which generation's kept answer a generation was given."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("generation", sa.Column("source_id", sa.Text))
