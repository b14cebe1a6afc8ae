"""API keys: who may call. Stored as SHA-256; the plain key exists once, in what `create` returns.

A 256-bit random key needs no slow hash. Looking a key up never writes.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ionrouter.errors import RequestError
from ionrouter.store.database import open_database, write_private

KeyKind = Literal["inference", "management"]
KEY_PATTERN = re.compile(r"sk-or-v1-[0-9a-f]{64}")
MAX_KEY_LENGTH = 512  # longer credentials are refused before hashing
_COLUMNS = "hash, name, label, kind, disabled, created_at"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is kept of a key. `hash` is its public name, `label` shows its ends: sk-or-v1-au7...890."""

    hash: str
    name: str
    label: str
    kind: KeyKind
    is_disabled: bool
    created_at: float  # wall clock, seconds since the epoch


def _from_row(row: tuple[str, str, str, KeyKind, int, float]) -> ApiKey:
    digest, name, label, kind, disabled, created_at = row
    return ApiKey(digest, name, label, kind, bool(disabled), created_at)


def hash_of(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def label_of(key: str) -> str:
    return f"{key[:12]}...{key[-3:]}"


class KeyStore:
    """Keys in SQLite with a copy in memory that is fresh at every look-up, whoever changed the file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._version = -1
        self._keys: dict[str, ApiKey] = {}

    @classmethod
    def open(cls, path: Path) -> KeyStore:
        return cls(open_database(path))

    def create(self, name: str, kind: KeyKind, now: float) -> tuple[str, ApiKey]:
        """Make a key and return it in the clear, this once."""
        plain = f"sk-or-v1-{secrets.token_hex(32)}"
        key = ApiKey(hash_of(plain), name, label_of(plain), kind, False, now)
        self._db.execute(
            f"INSERT INTO api_key ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
            (key.hash, key.name, key.label, key.kind, 0, key.created_at),
        )
        self._forget()
        return plain, key

    def find(self, plain: str) -> ApiKey | None:
        """Look a presented key up, disabled ones too; by digest, so no timing leads to a key."""
        if len(plain) > MAX_KEY_LENGTH:
            return None
        return self._current().get(hash_of(plain))

    def list(self) -> Sequence[ApiKey]:
        return sorted(self._current().values(), key=lambda key: key.created_at)

    def has_enabled(self, kind: KeyKind) -> bool:
        return any(key.kind == kind and not key.is_disabled for key in self._current().values())

    def set_disabled(self, reference: str, disabled: bool) -> ApiKey:
        key = self.resolve(reference)
        self._db.execute("UPDATE api_key SET disabled = ? WHERE hash = ?", (int(disabled), key.hash))
        self._forget()
        return self._current()[key.hash]

    def delete(self, reference: str) -> ApiKey:
        key = self.resolve(reference)
        self._db.execute("DELETE FROM api_key WHERE hash = ?", (key.hash,))
        self._forget()
        return key

    def resolve(self, reference: str) -> ApiKey:
        """Find a key by hash, a hash prefix of at least 6 digits, or name; raises RequestError 404 or 409."""
        found = [
            key
            for key in self._current().values()
            if reference in (key.hash, key.name) or (len(reference) >= 6 and key.hash.startswith(reference))
        ]
        if not found:
            raise RequestError(f"no key '{reference}'", status=404, error_type="not_found")
        if len(found) > 1:
            raise RequestError(f"'{reference}' names {len(found)} keys; use the hash", status=409)
        return found[0]

    def close(self) -> None:
        self._db.close()

    def _forget(self) -> None:
        self._version = -1

    def _current(self) -> dict[str, ApiKey]:
        # data_version moves when another connection commits: a few microseconds from shared memory.
        (version,) = self._db.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            rows = self._db.execute(f"SELECT {_COLUMNS} FROM api_key").fetchall()
            self._keys = {row[0]: _from_row(row) for row in rows}
            self._version = version
        return self._keys


def ensure_management_key(store: KeyStore, path: Path, now: float) -> bool:
    """At the first start write a management key for the CLI to `path`, 0600; tell whether one was made.

    A file whose key the store does not know (the database was deleted) is replaced.
    """
    if path.exists() and (known := store.find(path.read_text().strip())) and known.kind == "management":
        return False
    plain, _ = store.create("first start", "management", now)
    write_private(path, plain + "\n")
    return True


KINDS: tuple[str, ...] = get_args(KeyKind)
