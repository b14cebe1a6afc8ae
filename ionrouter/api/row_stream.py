"""Rows of statistics on their way out: worked out a millisecond at a time, written as they come.

A month of every endpoint by the hour is hundreds of thousands of rows and minutes of work; they are never
all held. It is done on the event loop, which owns the statistics, with a rest after each slice: a thread
would keep the interpreter's lock for five milliseconds at a time (docs/decisions/0037-one-row-at-a-time.md).
"""

from __future__ import annotations

import asyncio
import csv
import io
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from aiohttp import hdrs, web

from ionrouter.schema import json
from ionrouter.stats.query import METRICS, Row

SLICE_S = 0.001  # of work, and then of rest
PIECE_BYTES = 64 * 1024
Answer = TypeVar("Answer")


class RowWriter(Protocol):
    """A form of rows, in pieces."""

    content_type: str

    def row(self, row: Row) -> bytes:
        """Write one row; the first one with what comes before it."""
        ...

    def end(self, *, is_truncated: bool) -> bytes:
        """What comes after the last."""
        ...


class JsonRows:
    """{"data": [...], ...}, with `about` behind the rows."""

    content_type = "application/json"

    def __init__(self, about: Mapping[str, Any]) -> None:
        self._about = about
        self._before = b'{"data":['

    def row(self, row: Row) -> bytes:
        before, self._before = self._before, b","
        return before + json.dumps(row)

    def end(self, *, is_truncated: bool) -> bytes:
        before = b"" if self._before == b"," else self._before
        return before + b"]," + json.dumps({**self._about, "truncated": is_truncated})[1:]


# How a cell begins that a spreadsheet would compute. Patterns let clients choose models' names.
_FORMULA = ("=", "+", "-", "@")


class CsvRows:
    """One column a figure; those of a metric are metric.n, metric.p50 ...; outcomes in one column.

    A text that a spreadsheet would take for a formula has an apostrophe before it.
    """

    content_type = "text/csv; charset=utf-8"

    def __init__(self) -> None:
        self._out = io.StringIO()
        self._table: csv.DictWriter[str] | None = None

    def row(self, row: Row) -> bytes:
        flat = _flattened(row)
        if self._table is None:
            self._begin(list(flat)).writeheader()
        assert self._table is not None
        self._table.writerow(flat)
        return self._taken()

    def end(self, *, is_truncated: bool) -> bytes:
        if self._table is None:
            self._begin([]).writeheader()
        return self._taken()

    def _begin(self, columns: list[str]) -> csv.DictWriter[str]:
        self._table = csv.DictWriter(self._out, columns, lineterminator="\n")
        return self._table

    def _taken(self) -> bytes:
        text = self._out.getvalue()
        self._out.seek(0)
        self._out.truncate()
        return text.encode()


async def send_rows(
    request: web.Request, steps: Iterator[Row | None], write: RowWriter, limit: int, turn: asyncio.Lock
) -> web.StreamResponse:
    """Answer with at most `limit` of the rows; a short answer leaves whole, with its length."""
    headers = {hdrs.CONTENT_TYPE: write.content_type}
    async with aclosing(in_pieces(steps, write, limit, turn)) as pieces:
        first = await anext(pieces)
        second = await anext(pieces, None)
        if second is None:
            return web.Response(body=first, headers=headers)
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        if request.method == hdrs.METH_HEAD:
            return response
        await response.write(first)
        await response.write(second)
        async for piece in pieces:
            await response.write(piece)
    await response.write_eof()
    return response


async def in_pieces(
    steps: Iterator[Row | None], write: RowWriter, limit: int, turn: asyncio.Lock
) -> AsyncGenerator[bytes]:
    """The answer as bytes, PIECE_BYTES and more each but for the last. `turn`: the one of all answers."""
    piece, num_rows, is_truncated = bytearray(), 0, False
    async with aclosing(paced(steps, turn)) as rows:
        async for row in rows:
            if num_rows == limit:
                is_truncated = True
                break
            num_rows += 1
            piece += write.row(row)
            if len(piece) >= PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
    yield bytes(piece) + write.end(is_truncated=is_truncated)


async def paced(steps: Iterator[Answer | None], turn: asyncio.Lock) -> AsyncGenerator[Answer]:
    """Take the steps, for half of the time; all long answers together, since one at a time has its turn.

    A turn is over before its rows go on: whoever reads them slowly holds up nobody.
    """
    is_over = False
    while not is_over:
        async with turn:
            rows, is_over = _slice(steps)
            if not is_over:
                await asyncio.sleep(SLICE_S)
        for row in rows:
            yield row


def _slice(steps: Iterator[Answer | None]) -> tuple[list[Answer], bool]:
    """Work for a while; returns the rows that came of it, and whether they were the last."""
    rows, end = list[Answer](), time.perf_counter() + SLICE_S
    for row in steps:
        if row is not None:
            rows.append(row)
        if time.perf_counter() >= end:
            return rows, False
    return rows, True


def _flattened(row: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in row.items():
        if name in METRICS:
            out |= {f"{name}.{part}": number for part, number in value.items()}
        elif name == "outcomes":
            out[name] = " ".join(f"{outcome}={count}" for outcome, count in value.items())
        elif isinstance(value, str) and value.startswith(_FORMULA):
            out[name] = f"'{value}"
        else:
            out[name] = value
    return out
