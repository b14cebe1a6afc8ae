"""Rows of statistics: written, read back, forgotten. SQL and keys as JSON; knows no figures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ionrouter.store.database import Link, Statement

NAME = "INSERT INTO stats_series (id, instance, name) VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING"
UPSERT = (
    "INSERT INTO stats_bucket (series, width_s, number, data) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (series, width_s, number) DO UPDATE SET data = excluded.data"
)
SELECT = (
    "SELECT s.name, b.width_s, b.number, b.data FROM stats_series s JOIN stats_bucket b ON b.series = s.id "
    "WHERE s.instance = ?"
)
PRUNE = "DELETE FROM stats_bucket WHERE width_s = ? AND number < ?"
PRUNE_NAMES = (
    "DELETE FROM stats_series WHERE NOT EXISTS (SELECT 1 FROM stats_bucket WHERE series = stats_series.id)"
)


def named(instance: str, series: Mapping[str, Any]) -> tuple[int, Statement]:
    """Give a series its number, the same on every start, and what makes the number known."""
    name = json.dumps(series, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    digest = hashlib.sha256(f"{instance}\n{name}".encode()).digest()
    number = int.from_bytes(digest[:8], "big") >> 1  # 63 bits: both databases keep signed ones
    return number, (NAME, (number, instance, name))


def upsert(series: int, width_s: int, number: int, data: bytes) -> Statement:
    """Write one bucket."""
    return UPSERT, (series, width_s, number, data)


def prune(width_s: int, oldest: int) -> Statement:
    """Forget the buckets of a width before number `oldest`, whoever wrote them. Reads the whole table."""
    return PRUNE, (width_s, oldest)


def read(link: Link, instance: str) -> Iterator[tuple[int, int, str, bytes]]:
    """Read what one server kept: width, number, the series' name as JSON, data."""
    for name, width_s, number, data in link.rows(SELECT, (instance,)):
        yield width_s, number, name, bytes(data)
