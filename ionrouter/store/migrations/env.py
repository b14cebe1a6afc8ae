"""Runs the revisions on the connection it is given, inside that connection's transaction."""

from __future__ import annotations

from alembic import context

from ionrouter.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
