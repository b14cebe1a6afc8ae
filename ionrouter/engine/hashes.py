"""SHA-256 of large files, computed once: remembered with the size and time they hold for.

Knows files, not where they come from.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import structlog

_log = structlog.get_logger(__name__)


def matches(path: Path, sha256: str, cache: Path) -> bool:
    """Say whether a file has this hash; a folder has none."""
    if path.is_dir():
        return False
    known = _recall(path, cache)
    if known is None:
        known = sha256_of(path)
        remember(path, known, cache)
    return known == sha256.lower()


def sha256_of(path: Path) -> str:
    """Hash a file, reading all of it."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _memo(path: Path, cache: Path) -> Path:
    return cache / "hashes" / (hashlib.sha256(str(path.absolute()).encode()).hexdigest() + ".json")


def _recall(path: Path, cache: Path) -> str | None:
    """Return the hash computed earlier, if the file is still the one it was computed of."""
    try:
        memo = json.loads(_memo(path, cache).read_text())
    except (FileNotFoundError, ValueError):
        return None
    facts = path.stat()
    is_same = memo.get("size") == facts.st_size and memo.get("mtime_ns") == facts.st_mtime_ns
    return str(memo["sha256"]) if is_same else None


def remember(path: Path, sha256: str, cache: Path) -> None:
    """Write down a hash; where the cache cannot be written it is computed again next time."""
    memo = _memo(path, cache)
    facts = path.stat()
    text = json.dumps({"size": facts.st_size, "mtime_ns": facts.st_mtime_ns, "sha256": sha256})
    try:
        memo.parent.mkdir(parents=True, exist_ok=True)
        fresh = memo.with_name(f"{memo.name}.{os.getpid()}")
        fresh.write_text(text)
        os.replace(fresh, memo)
    except OSError as error:
        _log.debug("hash_not_remembered", path=str(path), error=str(error))
