"""What the worst question about the statistics costs: memory, time, and how long it keeps others waiting.

    python -m tests.bench.stats_query [--hours 744] [--endpoints 50] [--sort -ttft_ms.p99] [--in-thread]

Every endpoint busy in both modes and all classes, asked for each series and hour, as GET stats/routes does,
with as many rows as it gives. Beside it a task asks for the event loop each millisecond, as requests would.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import time
from collections.abc import Iterator
from contextlib import aclosing

from ionrouter.api.row_stream import JsonRows, in_pieces
from ionrouter.api.stats import MAX_ROWS
from ionrouter.stats.book import SeriesKey, StatsBook
from ionrouter.stats.classes import CLASSES
from ionrouter.stats.query import Question, Row, steps
from ionrouter.stats.ranking import Order, ranked
from ionrouter.stats.resolution import HOUR
from tests.stats.test_codec import bucket

NOW = 1_700_000_000.0


def filled(num_endpoints: int, num_hours: int) -> StatsBook:
    """Series that share their buckets: what a question needs is measured, not what it asks of."""
    book, rng = StatsBook(), random.Random(1)
    packed = {stream: bucket(1200, rng, streamed=stream) for stream in (True, False)}
    for number in range(num_endpoints):
        for stream in (True, False):
            for request_class in CLASSES:
                series = book.series(SeriesKey(f"endpoint-{number}", stream, "main", request_class))
                assert series is not None
                window = next(w for w in series.windows if w.width_s == HOUR.width_s)
                for hour in range(num_hours):
                    window.restore(int(NOW // HOUR.width_s) - hour, packed[stream])
    return book


async def asked(made: Iterator[Row | None], in_thread: bool) -> int:
    if in_thread:
        return await asyncio.to_thread(lambda: sum(len(JsonRows({}).row(row)) for row in made if row))
    num_bytes = 0
    async with aclosing(in_pieces(made, JsonRows({}), MAX_ROWS, asyncio.Lock())) as pieces:
        async for piece in pieces:
            num_bytes += len(piece)
    return num_bytes


async def waited(waits: list[float]) -> None:
    while True:
        begun = time.perf_counter()
        await asyncio.sleep(0.001)
        waits.append(time.perf_counter() - begun - 0.001)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=int, default=HOUR.max_buckets)
    parser.add_argument("--endpoints", type=int, default=50)
    parser.add_argument("--sort", default="")
    parser.add_argument("--in-thread", action="store_true", help="for comparison; needs one row a step")
    how = parser.parse_args()
    book = filled(how.endpoints, how.hours)
    groups = ("endpoint", "stream", "class")
    question = Question(NOW - HOUR.kept_s + HOUR.width_s, NOW, group_by=groups, resolution="hour")
    order = Order(tuple(how.sort.removeprefix("-").split(".")), how.sort.startswith("-"))
    made = ranked(book, question, order, MAX_ROWS) if how.sort else steps(book, question)
    before, begun, waits = _resident_mb(), time.perf_counter(), list[float]()
    watching = asyncio.create_task(waited(waits))
    num_bytes = await asked(made, how.in_thread)
    watching.cancel()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    waits.sort()
    p50, p99 = (waits[int(len(waits) * q)] * 1000 for q in (0.5, 0.99))
    print(f"{num_bytes / 1e6:.1f} MB of JSON in {time.perf_counter() - begun:.1f} s")
    print(f"memory: {before:.0f} MB before, {peak:.0f} MB at most")
    print(f"others waited p50 {p50:.2f} ms, p99 {p99:.2f} ms, at most {waits[-1] * 1000:.2f} ms")


def _resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


if __name__ == "__main__":
    asyncio.run(main())
