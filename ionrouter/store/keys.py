"""API keys: who may call, and how much they may spend. The plain key exists once, in what `create` returns.

Stored as SHA-256: a 256-bit random key needs no slow hash. Looking a key up never writes.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ionrouter.errors import RequestError
from ionrouter.store.database import Database, Link, Statement, write_private
from ionrouter.store.periods import LimitReset

KeyKind = Literal["inference", "management"]
KEY_PATTERN = re.compile(r"sk-or-v1-[0-9a-f]{64}")
FRESH_S = 0.05  # how long one look at the file serves all requests: it gives the interpreter away each time
MAX_KEY_LENGTH = 512  # longer credentials are refused before hashing
MAX_CHANGES = 400  # that are read one by one; after more all keys are read again
_COLUMNS = (
    "hash, name, label, kind, disabled, created_at, spend_limit, limit_reset, expires_at, "
    "include_byok_in_limit, updated_at, creator_user_id"
)
# What may change after a key was made -> its column.
_CHANGEABLE = {
    "name": "name",
    "disabled": "disabled",
    "limit": "spend_limit",
    "limit_reset": "limit_reset",
    "expires_at": "expires_at",
    "include_byok_in_limit": "include_byok_in_limit",
}


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is kept of a key. `hash` is its public name, `label` shows its ends: sk-or-v1-au7...890."""

    hash: str
    name: str
    label: str
    kind: KeyKind
    is_disabled: bool
    created_at: float  # wall clock, seconds since the epoch
    limit: float | None = None  # USD a period; None: no limit
    limit_reset: LimitReset | None = None  # None: the limit is for ever
    expires_at: float | None = None
    includes_byok: bool = False
    updated_at: float | None = None
    creator_user_id: str | None = None

    def has_expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at


def _from_row(row: tuple[Any, ...]) -> ApiKey:
    digest, name, label, kind, disabled, created, limit, reset, expires, byok, updated, creator = row
    return ApiKey(
        digest,
        name,
        label,
        kind,
        bool(disabled),
        created,
        limit,
        reset,
        expires,
        bool(byok),
        updated,
        creator,
    )


def hash_of(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def label_of(key: str) -> str:
    return f"{key[:12]}...{key[-3:]}"


class KeyStore:
    """Keys with a copy in memory that is fresh at every look-up, whoever changed the database.

    But for `find`, which every request asks: what another process changed may be FRESH_S late there. Where a
    look costs a round trip, KeyWatch brings the copy up to date instead, twice a second.
    """

    def __init__(self, link: Link, clock: Callable[[], float] = time.monotonic) -> None:
        self._db, self._clock = link, clock
        self._key_version = -1
        self._looked_at = -math.inf
        self._keys: dict[str, ApiKey] = {}
        self._lock = threading.Lock()
        self._num_looks = self._last_look = 0  # begun so far, and the one that the copy is of
        self.is_watched = False

    @classmethod
    def open(cls, database: Database, clock: Callable[[], float] = time.monotonic) -> KeyStore:
        return cls(database.open(), clock)

    def create(
        self,
        name: str,
        kind: KeyKind,
        now: float,
        *,
        limit: float | None = None,
        limit_reset: LimitReset | None = None,
        expires_at: float | None = None,
        includes_byok: bool = False,
        creator_user_id: str | None = None,
    ) -> tuple[str, ApiKey]:
        """Make a key and return it in the clear, this once."""
        plain = f"sk-or-v1-{secrets.token_hex(32)}"
        if expires_at is not None and expires_at <= now:
            raise RequestError("expires_at: is over already", param="expires_at")
        values = (
            hash_of(plain), name, label_of(plain), kind, 0, now,
            limit, limit_reset, expires_at, int(includes_byok), None, creator_user_id,
        )  # fmt: skip
        marks = ", ".join("?" * len(values))
        self._change(f"INSERT INTO api_key ({_COLUMNS}) VALUES ({marks})", values, values[0])
        return plain, _from_row(values)

    def find(self, plain: str) -> ApiKey | None:
        """Look a presented key up, disabled ones too; by digest, so no timing leads to a key."""
        if len(plain) > MAX_KEY_LENGTH:
            return None
        digest = hash_of(plain)
        is_fresh = self._clock() - self._looked_at < FRESH_S
        return (self._keys.get(digest) if is_fresh else None) or self.by_hash(digest)

    def known(self, digest: str) -> ApiKey | None:
        """The key of a request that `find` has let in, without asking the database again."""
        return self._keys.get(digest) or self.by_hash(digest)

    def by_hash(self, digest: str) -> ApiKey | None:
        return self._current().get(digest)

    def list(self) -> Sequence[ApiKey]:
        return sorted(self._current().values(), key=lambda key: key.created_at)

    def has_usable(self, kind: KeyKind, now: float) -> bool:
        """Ask whether anybody can come in: with a key that is neither disabled nor expired."""
        keys = self._current().values()
        return any(key.kind == kind and not key.is_disabled and not key.has_expired(now) for key in keys)

    def set_disabled(self, reference: str, disabled: bool) -> ApiKey:
        return self._set(reference, {"disabled": disabled}, None)

    def update(self, reference: str, changes: Mapping[str, Any], now: float) -> ApiKey:
        """Change what `changes` names (name, disabled, limit, limit_reset, ...); None takes a limit away."""
        return self._set(reference, changes, now)

    def delete(self, reference: str) -> ApiKey:
        key = self.resolve(reference)
        self._change("DELETE FROM api_key WHERE hash = ?", (key.hash,), key.hash)
        return key

    def resolve(self, reference: str) -> ApiKey:
        """Find a key by hash, a hash prefix of at least 6 digits, or name; raises RequestError 404 or 409."""
        keys = self._current()
        if len(reference) == 64 and (key := keys.get(reference)) is not None:  # no other begins like that
            return key
        found = [
            key
            for key in keys.values()
            if reference in (key.hash, key.name) or (len(reference) >= 6 and key.hash.startswith(reference))
        ]
        if not found:
            raise _unknown(reference)
        if len(found) > 1:
            raise RequestError(f"'{reference}' names {len(found)} keys; use the hash", status=409)
        return found[0]

    def close(self) -> None:
        self._db.close()

    def _set(self, reference: str, changes: Mapping[str, Any], now: float | None) -> ApiKey:
        key = self.resolve(reference)
        columns = {_CHANGEABLE[name]: _stored(value) for name, value in changes.items()}
        if now is not None:
            columns["updated_at"] = now
        assignments = ", ".join(f"{column} = ?" for column in columns)
        statement = f"UPDATE api_key SET {assignments} WHERE hash = ?"
        self._change(statement, (*columns.values(), key.hash), key.hash)
        changed = self.by_hash(key.hash)
        if changed is None:  # somebody else deleted it just now
            raise _unknown(reference)
        return changed

    def _change(self, statement: str, values: Sequence[Any], digest: str) -> None:
        """Change one key; it alone is read again where nobody else has changed any meanwhile."""
        self._db.transact([(statement, values), *_noted(digest)])
        ((version,),) = self._db.rows("SELECT version FROM key_version")
        rows = self._db.rows(f"SELECT {_COLUMNS} FROM api_key WHERE hash = ?", (digest,))
        with self._lock:
            if version == self._key_version + 1:
                self._keys = self._with((digest,), rows)
                self._num_looks += 1
                self._key_version, self._last_look = version, self._num_looks
                return
        self.refresh(self._db)

    def _current(self) -> dict[str, ApiKey]:
        if not self.is_watched:
            self._looked_at = self._clock()
            if self._db.may_have_changed():
                self.refresh(self._db)
        return self._keys

    def refresh(self, link: Link) -> None:
        """Read the keys again if any of them changed; from any thread, over that thread's link."""
        with self._lock:
            self._num_looks += 1
            look = self._num_looks
        ((version,),) = link.rows("SELECT version FROM key_version")
        if version == (known := self._key_version):
            return
        changed = _changed(link, known, version) if known >= 0 else None
        if changed is None:
            keys = {row[0]: _from_row(row) for row in link.rows(f"SELECT {_COLUMNS} FROM api_key")}
        else:
            marks = ", ".join("?" * len(changed))
            rows = link.rows(f"SELECT {_COLUMNS} FROM api_key WHERE hash IN ({marks})", changed)
        with self._lock:
            # Else another thread has looked later, and was faster. A version that went back since then is of
            # a database that was put back from a copy.
            if version > self._key_version or look > self._last_look:
                self._keys = keys if changed is None else self._with(changed, rows)
                self._key_version, self._last_look = version, look

    def _with(self, changed: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, ApiKey]:
        """A copy of the keys in which these are as their rows say; others may be looking at the old one."""
        keys = self._keys.copy()
        for digest in changed:
            keys.pop(digest, None)
        keys.update((row[0], _from_row(row)) for row in rows)
        return keys


def _noted(digest: str) -> Sequence[Statement]:
    """Make the next version of the keys, and note whose it is."""
    version = "(SELECT version FROM key_version)"
    return (
        ("UPDATE key_version SET version = version + 1", ()),
        (
            f"INSERT INTO key_change (version, hash) VALUES ({version}, ?) "
            "ON CONFLICT (version) DO UPDATE SET hash = excluded.hash",
            (digest,),
        ),
        (f"DELETE FROM key_change WHERE version <= {version} - {MAX_CHANGES}", ()),
    )


def _changed(link: Link, known: int, version: int) -> Sequence[str] | None:
    """Hashes of the keys that changed between two versions; None: too many, or not all of them are known."""
    if not 0 < version - known <= MAX_CHANGES:
        return None
    rows = link.rows("SELECT hash FROM key_change WHERE version > ? AND version <= ?", (known, version))
    return tuple({digest for (digest,) in rows}) if len(rows) == version - known else None


def _unknown(reference: str) -> RequestError:
    return RequestError(f"no key '{reference}'", status=404, error_type="not_found")


def _stored(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


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
