"""`ionrouter keys`: works on the store; a running server sees the change at its next look-up."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Mapping
from contextlib import closing

from ionrouter.commands.console import make_console
from ionrouter.commands.table import Column, fitting
from ionrouter.errors import RequestError
from ionrouter.schema.accounts import KeyToChange, KeyToMake
from ionrouter.schema.validation import validated
from ionrouter.settings import Settings
from ionrouter.store.keys import ApiKey, KeyKind, KeyStore
from ionrouter.store.periods import LimitReset
from ionrouter.store.place import database_for
from ionrouter.store.spending import SpendingBook, usd

_COLUMNS = (
    Column("hash", "word"),
    Column("name", "text"),
    Column("label", "word", rank=6),
    Column("kind", "word", rank=4),
    Column("created", "word", rank=5),
    Column("state", "word", rank=3),
    Column("limit", rank=1),
    Column("left", rank=2),
    Column("spent"),
)


def create(
    settings: Settings,
    name: str,
    kind: KeyKind,
    *,
    limit: float | None = None,
    limit_reset: LimitReset | None = None,
    expires_at: str | None = None,
) -> int:
    """Print the new key alone on stdout; raises RequestError for what POST /keys would refuse."""
    body = {"name": name, "limit": limit, "limit_reset": limit_reset, "expires_at": expires_at}
    if kind == "management" and limit is not None:
        raise RequestError("limit: a management key spends nothing", param="limit")
    asked = validated(KeyToMake, body)
    with closing(KeyStore.open(database_for(settings))) as store:
        plain, key = store.create(
            name,
            kind,
            time.time(),
            limit=asked.limit,
            limit_reset=asked.limit_reset,
            expires_at=asked.expires_at.timestamp() if asked.expires_at else None,
        )
    print(f"{key.kind} key '{key.name}' ({key.hash[:12]}); it is shown this once:", file=sys.stderr)
    print(plain)
    return 0


def show(settings: Settings) -> int:
    """Print one row a key; spending is as of the last finished request."""
    with closing(database_for(settings).open()) as link:
        keys, spending = KeyStore(link).list(), SpendingBook.load(link)
    now = time.time()
    rows: list[list[str]] = []
    for key in keys:
        left = spending.remaining(key, now)
        rows.append(
            [
                key.hash[:12],
                key.name,
                key.label,
                key.kind,
                datetime.datetime.fromtimestamp(key.created_at, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
                _state(key, now),
                _limit(key),
                "" if left is None else usd(left),
                usd(spending.of(key.hash).since(None, now)),
            ]
        )
    console = make_console()
    console.print(fitting(_COLUMNS, rows, console.width))
    return 0


def _state(key: ApiKey, now: float) -> str:
    if key.is_disabled:
        return "disabled"
    return "expired" if key.has_expired(now) else "enabled"


def _limit(key: ApiKey) -> str:
    if key.limit is None:
        return ""
    return f"{usd(key.limit)} {key.limit_reset}" if key.limit_reset else usd(key.limit)


def change(settings: Settings, reference: str, asked: Mapping[str, str]) -> int:
    """Change a key's name or limit ("none" takes one away); raises RequestError for bad values."""
    if not asked:
        raise RequestError("say what to change: --name, --limit or --limit-reset")
    changes = validated(KeyToChange, {name: _said(name, text) for name, text in asked.items()}).changes()
    with closing(KeyStore.open(database_for(settings))) as store:
        if changes.get("limit") is not None and store.resolve(reference).kind == "management":
            raise RequestError("limit: a management key spends nothing", param="limit")
        key = store.update(reference, changes, time.time())
    print(f"{key.name} ({key.label}): {_limit(key) or 'no limit'}")
    return 0


def _said(name: str, text: str) -> str | float | None:
    if name == "name":
        return text
    if text == "none":
        return None
    if name == "limit_reset":
        return text
    try:
        return float(text)
    except ValueError:
        raise RequestError(f"{name}: '{text[:40]}' is neither a number nor none", param=name) from None


def set_disabled(settings: Settings, reference: str, disabled: bool) -> int:
    with closing(KeyStore.open(database_for(settings))) as store:
        key = store.set_disabled(reference, disabled)
    print(f"{key.name} ({key.label}) is {'disabled' if disabled else 'enabled'}")
    return 0


def delete(settings: Settings, reference: str) -> int:
    with closing(KeyStore.open(database_for(settings))) as store:
        key = store.delete(reference)
    print(f"{key.name} ({key.label}) is deleted")
    return 0
