"""Where the state is kept: a file in the state folder, or what IONROUTER_STORE_URL names."""

from __future__ import annotations

from pathlib import Path

from ionrouter.errors import ConfigError
from ionrouter.settings import Settings
from ionrouter.store.database import Database
from ionrouter.store.sqlite_file import SqliteFile

SCHEMES = ("postgresql://", "postgres://")


def database_for(settings: Settings) -> Database:
    """Choose what the settings name; opens nothing. Raises ConfigError naming the setting."""
    is_safe = settings.store_sync == "full"
    return database_of(settings.store_url, settings.database_path, survives_power_loss=is_safe)


def database_of(url: str | None, path: Path, *, survives_power_loss: bool = False) -> Database:
    """Choose the database; opens nothing. Raises ConfigError for a URL of no kind we know."""
    if not url:
        return SqliteFile(path, survives_power_loss)
    if url.startswith("sqlite:///"):
        return SqliteFile(Path(url.removeprefix("sqlite:///")), survives_power_loss)
    if not url.startswith(SCHEMES):
        raise ConfigError(
            "IONROUTER_STORE_URL: should begin with postgresql:// (or sqlite:/// and a file's path)"
        )
    try:
        from ionrouter.store.postgres import PostgresServer
    except ImportError as error:
        raise ConfigError(
            f"IONROUTER_STORE_URL: PostgreSQL needs the extra: pip install -e '.[postgres]' ({error})"
        ) from error
    return PostgresServer(url, survives_power_loss)
