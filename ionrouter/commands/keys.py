"""`ionrouter keys`: works on the state folder; a running server sees the change at its next look-up."""

from __future__ import annotations

import datetime
import sys
import time
from contextlib import closing

from rich.table import Table

from ionrouter.commands.console import make_console
from ionrouter.settings import Settings
from ionrouter.store.keys import KeyKind, KeyStore


def create(settings: Settings, name: str, kind: KeyKind) -> int:
    """Print the new key alone on stdout."""
    with closing(KeyStore.open(settings.database_path)) as store:
        plain, key = store.create(name, kind, time.time())
    print(f"{key.kind} key '{key.name}' ({key.hash[:12]}); it is shown this once:", file=sys.stderr)
    print(plain)
    return 0


def show(settings: Settings) -> int:
    with closing(KeyStore.open(settings.database_path)) as store:
        keys = store.list()
    table = Table()
    for heading in ("hash", "name", "label", "kind", "created", "state"):
        table.add_column(heading, overflow="fold")
    for key in keys:
        created = datetime.datetime.fromtimestamp(key.created_at, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        state = "disabled" if key.is_disabled else "enabled"
        table.add_row(key.hash[:12], key.name, key.label, key.kind, created, state)
    make_console().print(table)
    return 0


def set_disabled(settings: Settings, reference: str, disabled: bool) -> int:
    with closing(KeyStore.open(settings.database_path)) as store:
        key = store.set_disabled(reference, disabled)
    print(f"{key.name} ({key.label}) is {'disabled' if disabled else 'enabled'}")
    return 0


def delete(settings: Settings, reference: str) -> int:
    with closing(KeyStore.open(settings.database_path)) as store:
        key = store.delete(reference)
    print(f"{key.name} ({key.label}) is deleted")
    return 0
