"""Brings an old database up to date with Alembic. Imported only when there is something to do."""

from __future__ import annotations

from pathlib import Path

import alembic.command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

FOLDER = Path(__file__).with_name("migrations")


def configuration(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def newest_revision() -> str | None:
    return ScriptDirectory.from_config(configuration()).get_current_head()


def upgrade(connection: Connection, adopt: str | None = None, to: str = "head") -> None:
    """Run what is missing inside the connection's transaction.

    `adopt`: the revision of a database that was made before Alembic kept count.
    """
    config = configuration(connection)
    if adopt is not None:
        alembic.command.stamp(config, adopt)
    alembic.command.upgrade(config, to)
