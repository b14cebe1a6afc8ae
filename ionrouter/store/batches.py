"""Rows of batches: submitted, claimed by one server, answered line by line, forgotten. Runs nothing.

Every call is made in one thread of its own, over one connection; raises StoreFault.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ionrouter.errors import ConfigError
from ionrouter.process import CLOSE_TIMEOUT_S, Threads
from ionrouter.store.database import Database, Link, Statement, StoreFault

Result = TypeVar("Result")

LIVE = ("validating", "in_progress", "cancelling")
HIDDEN = "hidden"  # not whole yet, or on its way out
LEASE_S = 60.0  # of the wall clock: how long a server that says nothing keeps its batches
ROWS_AT_ONCE = 100  # a transaction: requests that are served write beside it
CHARACTERS_AT_ONCE = 1_000_000
ABANDONED_S = 3600.0  # a submission that did not get whole by then never will

_COLUMNS = (
    "id, key_hash, endpoint, model, headers, status, created_at, expires_at, finalized_at, error, "
    "num_requests, num_completed, num_failed, prompt_tokens, completion_tokens, cost"
)
_IS_LIVE = f"status IN {LIVE}"
_IS_FREE = f"{_IS_LIVE} AND (owner IS NULL OR owner = ? OR lease_until < ?)"
_HAS_NONE = "EXISTS (SELECT 1 FROM batch_line WHERE batch_id = ? AND number = ? AND status IS NULL)"


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch. Moments are seconds since the epoch, `cost` is USD, `headers` a JSON object."""

    id: str
    key_hash: str  # "": no key
    endpoint: str
    model: str
    headers: str
    status: str
    created_at: float
    expires_at: float
    finalized_at: float | None
    error: str | None
    num_requests: int
    num_completed: int = 0
    num_failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0

    @property
    def is_live(self) -> bool:
        return self.status in LIVE


@dataclass(frozen=True, slots=True)
class Which:
    """Which batches of a list are meant. Moments are seconds since the epoch, neither included."""

    statuses: tuple[str, ...] = ()  # none: all
    created_after: float | None = None
    created_before: float | None = None


EVERY = Which()


@dataclass(frozen=True, slots=True)
class Line:
    """One request of a batch and its answer, JSON both. `status` None: it has no answer (yet)."""

    number: int
    custom_id: str
    status: int | None = None
    request_id: str | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """What a request was answered, and what it used."""

    status: int
    request_id: str
    answer: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300


@dataclass(slots=True)
class BatchStore:
    """`owner`: this server's name, see instance.py."""

    database: Database
    owner: str
    _threads: Threads = field(default_factory=lambda: Threads(1, "batch-store"))
    _link: Link | None = None

    async def submit(self, batch: Batch, lines: Sequence[tuple[str, str]], max_live: int) -> bool:
        """Keep a batch and its lines (custom id, body); False: the key has `max_live` that are not over."""
        return await self._run(lambda link: _submit(link, batch, lines, max_live))

    async def find(self, batch_id: str, key_hash: str) -> Batch | None:
        """A key's batch."""
        return await self._run(lambda link: _find(link, batch_id, key_hash))

    async def listed(
        self, key_hash: str, after: Batch | None, limit: int, which: Which = EVERY
    ) -> Sequence[Batch]:
        """A key's batches, newest first."""
        return await self._run(lambda link: _listed(link, key_hash, after, limit, which))

    async def lines(self, batch_id: str, start: int, limit: int = ROWS_AT_ONCE) -> Sequence[Line]:
        """Lines from number `start` on, in order, without their bodies."""
        sql = (
            "SELECT number, custom_id, status, request_id, answer FROM batch_line "
            "WHERE batch_id = ? AND number >= ? ORDER BY number LIMIT ?"
        )
        return await self._run(lambda link: [Line(*row) for row in link.rows(sql, (batch_id, start, limit))])

    async def cancel(self, batch_id: str) -> None:
        """Let no further line of it begin; whoever runs it ends it then."""
        sql = (
            "UPDATE batch SET status = 'cancelling' WHERE id = ? AND status IN ('validating', 'in_progress')"
        )
        await self._run(lambda link: link.transact([(sql, (batch_id,))]))

    async def delete(self, batch_id: str) -> None:
        """Forget a batch that is over, with its lines."""
        await self._run(lambda link: _delete(link, batch_id))

    async def claim(self) -> Sequence[Batch]:
        """Take or keep what nobody else runs; it is this server's for LEASE_S."""
        return await self._run(lambda link: _claim(link, self.owner, time.time()))

    async def release(self) -> None:
        """Let others go on with what this server ran."""
        sql = "UPDATE batch SET owner = NULL, lease_until = NULL WHERE owner = ?"
        await self._run(lambda link: link.transact([(sql, (self.owner,))]))

    async def unanswered(self, batch_id: str) -> Sequence[int]:
        """Numbers of the lines that have no answer."""
        sql = "SELECT number FROM batch_line WHERE batch_id = ? AND status IS NULL ORDER BY number"
        return await self._run(lambda link: [number for (number,) in link.rows(sql, (batch_id,))])

    async def body(self, batch_id: str, number: int) -> str | None:
        """What a line asks; None: it was answered."""
        sql = "SELECT body FROM batch_line WHERE batch_id = ? AND number = ? AND status IS NULL"
        rows = await self._run(lambda link: link.rows(sql, (batch_id, number)))
        return rows[0][0] if rows else None

    async def answer(self, batch_id: str, number: int, given: Answered) -> None:
        """Keep a line's first answer in the place of what it asked; raises RowFault."""
        statements = _answer(batch_id, number, given)
        await self._run(lambda link: link.transact(statements))

    async def finish(self, batch_id: str, status: str, error: str | None = None) -> None:
        """End a batch; what was not answered is not asked any more, and its words are dropped."""
        over = (
            "UPDATE batch SET status = ?, error = ?, finalized_at = ?, owner = NULL, lease_until = NULL "
            "WHERE id = ? AND owner = ?"
        )
        words = (
            "UPDATE batch_line SET body = '' WHERE batch_id = ? AND status IS NULL "
            "AND EXISTS (SELECT 1 FROM batch WHERE id = ? AND finalized_at IS NOT NULL)"
        )
        values = (status, error, time.time(), batch_id, self.owner)
        await self._run(lambda link: link.transact([(over, values), (words, (batch_id, batch_id))]))

    async def forget(self, before: float, now: float) -> None:
        """Drop what was over before a moment, and what never got whole."""
        await self._run(lambda link: _forget(link, before, now))

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._threads.submit(link.close)  # SQLite lets no other thread do it
        await asyncio.to_thread(self._join)

    def _join(self) -> None:
        wait([self._threads.submit(lambda: None)], CLOSE_TIMEOUT_S)  # what was begun before it
        self._threads.close()

    async def _run(self, act: Callable[[Link], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._act, act)

    def _act(self, act: Callable[[Link], Result]) -> Result:
        if self._link is None or self._link.is_broken:
            try:
                self._link = self.database.open()
            except ConfigError as error:
                raise StoreFault(str(error)) from error
        return act(self._link)


def _submit(link: Link, batch: Batch, lines: Sequence[tuple[str, str]], max_live: int) -> bool:
    """Write row by row, hidden until all are there: a large batch in one transaction would hold up others."""
    count = f"SELECT COUNT(*) FROM batch WHERE key_hash = ? AND {_IS_LIVE}"
    ((num_live,),) = link.rows(count, (batch.key_hash,))
    if num_live >= max_live:
        return False
    first = (
        batch.id, batch.key_hash, batch.endpoint, batch.model, batch.headers, HIDDEN, batch.created_at,
        batch.expires_at, batch.num_requests,
    )  # fmt: skip
    insert = (
        "INSERT INTO batch (id, key_hash, endpoint, model, headers, status, created_at, expires_at, "
        f"num_requests) VALUES ({', '.join('?' * len(first))})"
    )
    link.transact([(insert, first)])
    line = "INSERT INTO batch_line (batch_id, number, custom_id, body) VALUES (?, ?, ?, ?)"
    waiting: list[Statement] = []
    num_characters = 0
    for number, (custom_id, body) in enumerate(lines):
        waiting.append((line, (batch.id, number, custom_id, body)))
        num_characters += len(body)
        if len(waiting) >= ROWS_AT_ONCE or num_characters >= CHARACTERS_AT_ONCE:
            link.transact(waiting)
            waiting, num_characters = [], 0
    link.transact([*waiting, ("UPDATE batch SET status = ? WHERE id = ?", (batch.status, batch.id))])
    return True


def _find(link: Link, batch_id: str, key_hash: str) -> Batch | None:
    sql = f"SELECT {_COLUMNS} FROM batch WHERE id = ? AND key_hash = ? AND status <> ?"
    rows = link.rows(sql, (batch_id, key_hash, HIDDEN))
    return Batch(*rows[0]) if rows else None


def _listed(link: Link, key_hash: str, after: Batch | None, limit: int, which: Which) -> Sequence[Batch]:
    where, values = ["key_hash = ?", "status <> ?"], list[Any]([key_hash, HIDDEN])
    if after is not None:
        where.append("(created_at < ? OR (created_at = ? AND id < ?))")
        values += (after.created_at, after.created_at, after.id)
    if which.statuses:
        where.append(f"status IN ({', '.join('?' * len(which.statuses))})")
        values += which.statuses
    for sign, moment in ((">", which.created_after), ("<", which.created_before)):
        if moment is not None:
            where.append(f"created_at {sign} ?")
            values.append(moment)
    sql = (
        f"SELECT {_COLUMNS} FROM batch WHERE {' AND '.join(where)} ORDER BY created_at DESC, id DESC LIMIT ?"
    )
    return [Batch(*row) for row in link.rows(sql, (*values, limit))]


def _claim(link: Link, owner: str, now: float) -> Sequence[Batch]:
    if not link.rows(f"SELECT 1 FROM batch WHERE {_IS_FREE} LIMIT 1", (owner, now)):
        return ()  # without a lock on the database
    take = (
        "UPDATE batch SET owner = ?, lease_until = ?, "
        f"status = CASE status WHEN 'validating' THEN 'in_progress' ELSE status END WHERE {_IS_FREE}"
    )
    mine = f"SELECT {_COLUMNS} FROM batch WHERE owner = ? AND {_IS_LIVE} ORDER BY created_at"
    with link.transaction():
        link.rows(take, (owner, now + LEASE_S, owner, now))
        return [Batch(*row) for row in link.rows(mine, (owner,))]


def _answer(batch_id: str, number: int, given: Answered) -> Sequence[Statement]:
    """Count and keep in one transaction; the first statement lets another server's wait for it."""
    name = "num_completed" if given.is_good else "num_failed"
    count = (
        f"UPDATE batch SET {name} = {name} + 1, prompt_tokens = prompt_tokens + ?, "
        f"completion_tokens = completion_tokens + ?, cost = cost + ? WHERE id = ? AND {_HAS_NONE}"
    )
    used = (given.prompt_tokens, given.completion_tokens, given.cost)
    keep = (
        "UPDATE batch_line SET status = ?, request_id = ?, answer = ?, body = '' "
        "WHERE batch_id = ? AND number = ? AND status IS NULL"
    )
    return (
        ("UPDATE batch SET owner = owner WHERE id = ?", (batch_id,)),
        (count, (*used, batch_id, batch_id, number)),
        (keep, (given.status, given.request_id, given.answer, batch_id, number)),
    )


def _delete(link: Link, batch_id: str) -> None:
    link.transact([("UPDATE batch SET status = ? WHERE id = ?", (HIDDEN, batch_id))])
    ((last,),) = link.rows("SELECT MAX(number) FROM batch_line WHERE batch_id = ?", (batch_id,))
    for end in range(ROWS_AT_ONCE, (-1 if last is None else last) + ROWS_AT_ONCE + 1, ROWS_AT_ONCE):
        link.transact([("DELETE FROM batch_line WHERE batch_id = ? AND number < ?", (batch_id, end))])
    link.transact([("DELETE FROM batch WHERE id = ?", (batch_id,))])


def _forget(link: Link, before: float, now: float) -> None:
    sql = "SELECT id FROM batch WHERE finalized_at < ? OR (status = ? AND created_at < ?)"
    for (batch_id,) in link.rows(sql, (before, HIDDEN, now - ABANDONED_S)):
        _delete(link, batch_id)
