"""Keeps the statistics in the state database: what changed, each minute and at the end; back at a start.

Encodes a little at a time, so that no request waits; the writer's thread does the rest.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any

import structlog

from ionrouter.errors import ConfigError
from ionrouter.stats import codec
from ionrouter.stats.book import SeriesKey, StatsBook
from ionrouter.stats.resolution import GRAINS, HOUR
from ionrouter.stats.window import PackedBucket, Window
from ionrouter.store import stats_rows
from ionrouter.store.database import Statement, StoreFault
from ionrouter.store.writer import Writer

_log = structlog.get_logger(__name__)

EVERY_S = 60.0
ROWS_AT_ONCE = 8  # encoded between two looks at the event loop: about a millisecond
ROWS_A_WRITE = 500
RESTORED_AT_ONCE = 200
CLOSE_TIMEOUT_S = 5.0
PRUNE_EVERY = 60  # flushes: it reads the whole table
_NAMING = ("endpoint_id", "stream", "purpose", "request_class", "model", "provider")
_Own = tuple[Any, ...]  # what tells a series from all others: its key's fields, or the caller's key
Kept = tuple[int, int, Mapping[str, Any], PackedBucket]  # width, number, series, what happened


class StatsKeeper:
    """One for a server. `instance` names it among those that share the database.

    `sure_now`: the moment by which rows may be thrown away, every server's; None: not now.
    """

    def __init__(
        self,
        book: StatsBook,
        writer: Writer,
        instance: str,
        *,
        clock: Callable[[], float] = time.time,
        sure_now: Callable[[], float | None] | None = None,
    ) -> None:
        self._book, self._writer, self._instance, self._clock = book, writer, instance, clock
        self._sure_now = sure_now or clock
        self._is_restored = False
        self._unrestored: Iterator[Kept] | None = None  # has been read and is not put back yet
        self._num_flushes = self._prune_at = 0

    async def restore(self) -> int:
        """Read back what this server kept; returns how many buckets. What cannot be read is left out.

        Cancelled, it goes on the next time where it stopped: no bucket is put back twice.
        """
        if self._unrestored is None:
            kept, num_lost = await asyncio.to_thread(self._read)
            self._unrestored = iter(kept)
            if num_lost:
                _log.warning("statistics_unreadable", count=num_lost)
        num_restored = 0
        for number, row in enumerate(self._unrestored, 1):
            num_restored += self._put_back(row)
            if number % RESTORED_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._is_restored, self._unrestored = True, iter(())
        return num_restored

    def _series(self, name: str) -> Mapping[str, Any]:
        """Read a series' name; raises ValueError, KeyError or TypeError for what is none.

        Rows of before have no subject: an id was all that told an endpoint's series from others'.
        """
        series: dict[str, Any] = json.loads(name)
        if "key" not in series:
            _ = [series[field] for field in _NAMING]
            series.setdefault("subject", self._book.names.subject(series["endpoint_id"]))
        return series

    def _put_back(self, row: Kept) -> bool:
        width_s, number, series, bucket = row
        window = self._window(series, width_s)
        if window is None or number <= self._clock() // width_s - window.max_buckets:
            return False
        window.restore(number, bucket)
        return True

    def _read(self) -> tuple[list[Kept], int]:
        kept = _Latest()
        num_lost = 0
        with closing(self._writer.database.open()) as link:
            for width_s, number, name, data in stats_rows.read(link, self._instance):
                try:
                    kept.add(width_s, number, self._series(name), codec.decode(data))
                except (ValueError, KeyError, TypeError):
                    num_lost += 1
        return kept.buckets(self._book.max_series, self._book.max_keys), num_lost

    async def run(self) -> None:
        """Read back, then keep what changed each minute, until cancelled."""
        while True:
            await self._try_to_restore()  # again in a minute; until then nothing is kept
            await asyncio.sleep(EVERY_S)
            await self.flush()

    async def close(self) -> None:
        """Keep what has changed, once `run` has been cancelled.

        A server that stops before it has read back does so now: else its figures would be lost. It gives up
        after five seconds, and says so.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._try_to_restore()
        if not self._is_restored:
            _log.warning("statistics_left_unwritten")
        await self.flush()

    async def _try_to_restore(self) -> None:
        if self._is_restored:
            return
        try:
            await self.restore()
        except (StoreFault, ConfigError) as error:
            _log.warning("statistics_away", error=str(error))

    async def flush(self) -> int:
        """Hand what changed to the writer; returns how many buckets.

        Nothing before the kept statistics are back: half an hour would take the place of a whole one. What
        the writer refuses, and what a cancelled flush did not come to, is handed over the next time.
        """
        if not self._is_restored:
            return 0
        batch = _Batch(self._writer)
        try:
            for number, (window, bucket_number, statements) in enumerate(self._changed(), 1):
                batch.add(window, bucket_number, statements)
                if number % ROWS_AT_ONCE == 0:
                    await asyncio.sleep(0)
        finally:
            batch.hand_over()
        now = self._sure_now()
        if batch.num_handed and self._num_flushes >= self._prune_at and now is not None:
            self._writer.put_lazily(self._outdated(now))
            self._prune_at = self._num_flushes + PRUNE_EVERY
        self._num_flushes += bool(batch.num_handed)
        return batch.num_handed

    def _changed(self) -> Iterator[tuple[Window, int, list[Statement]]]:
        for key, series in self._book.items():
            called = {"endpoint_id": series.endpoint_id, "model": series.model_id}
            name = {**key._asdict(), **called, "provider": series.provider_name}
            for window in series.windows:
                yield from self._rows(name, window)
        for key_id, window in self._book.keys.items():
            yield from self._rows({"key": key_id}, window)

    def _rows(self, name: Mapping[str, Any], window: Window) -> Iterator[tuple[Window, int, list[Statement]]]:
        naming: list[Statement] = []
        series = None
        for number, bucket in window.take_changed():
            if series is None:
                series, named = stats_rows.named(self._instance, name)
                naming = [named]
            row = stats_rows.upsert(series, window.width_s, number, codec.encode(bucket))
            yield window, number, [*naming, row]
            naming = []

    def _outdated(self, now: float) -> list[Statement]:
        old = [stats_rows.prune(g.width_s, int(now // g.width_s) - g.max_buckets) for g in GRAINS.values()]
        return [*old, (stats_rows.PRUNE_NAMES, ())]

    def _window(self, series: Mapping[str, Any], width_s: int) -> Window | None:
        if "key" in series:
            return self._book.keys.window(series["key"]) if width_s == HOUR.width_s else None
        found = self._book.series(SeriesKey(*(series[name] for name in SeriesKey._fields)))
        if found is None:
            return None
        if not found.model_id:  # else it has been told since the start
            found.endpoint_id = series["endpoint_id"]
            found.model_id, found.provider_name = series["model"], series["provider"]
        return next((window for window in found.windows if window.width_s == width_s), None)


class _Latest:
    """What was kept last of each bucket, under the names that its series had last.

    A bucket is written whole under the names of that moment: one that was under way while a model or a
    provider changed its name is there under both, and the later one holds the earlier one. Of more series
    than are held those that were used last come back, the busiest of them.
    """

    def __init__(self) -> None:
        self._buckets: dict[_Own, dict[tuple[int, int], PackedBucket]] = {}  # by width and number
        self._names: dict[
            _Own, tuple[float, int, Mapping[str, Any]]
        ] = {}  # end and count of the latest bucket

    def add(self, width_s: int, number: int, series: Mapping[str, Any], bucket: PackedBucket) -> None:
        own = (series["key"],) if "key" in series else tuple(series[name] for name in SeriesKey._fields)
        buckets, num = self._buckets.setdefault(own, {}), _num_outcomes(bucket)
        before = buckets.get((width_s, number))
        if before is None or num >= _num_outcomes(before):
            buckets[width_s, number] = bucket
        age = (number + 1) * width_s, num
        if own not in self._names or age > self._names[own][:2]:
            self._names[own] = (*age, series)

    def buckets(self, max_series: int, max_keys: int) -> list[Kept]:
        """Those of the series and keys that are held, what was used last at the end."""
        used = sorted(self._names, key=lambda own: self._names[own][:2])
        keys = [own for own in used if len(own) == 1]
        series = [own for own in used if len(own) > 1]
        return [
            (width_s, number, self._names[own][2], bucket)
            for own in (*keys[-max_keys:], *series[-max_series:])
            for (width_s, number), bucket in self._buckets[own].items()
        ]


class _Batch:
    """Rows on their way to the writer, a few hundred in one write."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._statements: list[Statement] = []
        self._buckets: list[tuple[Window, int]] = []
        self.num_handed = 0

    def add(self, window: Window, number: int, statements: list[Statement]) -> None:
        self._statements += statements
        self._buckets.append((window, number))
        if len(self._buckets) >= ROWS_A_WRITE:
            self.hand_over()

    def hand_over(self) -> None:
        """Queue what there is; what is refused is marked as changed again."""
        statements, buckets = self._statements, self._buckets
        self._statements, self._buckets = [], []
        if not statements:
            return
        if self._writer.put_lazily(statements) is not None:
            self.num_handed += len(buckets)
            return
        for window, number in buckets:
            window.mark_changed(number)


def _num_outcomes(bucket: PackedBucket) -> int:
    return sum(count for _, count in bucket.outcomes)
