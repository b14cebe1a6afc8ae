"""Runs the lines of batches beside everybody else's requests, as requests of the keys that submitted them.

A line that has its answer in the database is never asked again; one that was cut is.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

import structlog
from aiohttp import hdrs, web

from ionrouter.api.guard import Access, usable
from ionrouter.api.in_process import Answer, InProcess
from ionrouter.api.readiness import Phase
from ionrouter.api.state import Edge
from ionrouter.errors import RequestError
from ionrouter.schema import json
from ionrouter.schema.batches import used_by
from ionrouter.schema.errors import INTERNAL_ERROR
from ionrouter.store.batches import LEASE_S, Answered, Batch, BatchStore
from ionrouter.store.database import RowFault, StoreFault
from ionrouter.store.keys import ApiKey

_log = structlog.get_logger(__name__)

RETRIED = frozenset({429, 503, 529})  # says "later", to whoever can wait
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0  # between two tries where nobody says how long
LOOK_EVERY_S = 2.0  # for batches that others submitted or cancelled, and to keep the own
ROOM_EVERY_S = 0.25  # while lines wait for others' requests to end
KEEP_S = 30 * 86_400.0
FORGET_EVERY_S, UNSURE_S = 3600.0, 60.0
STORE_PAUSE_S = 1.0
LAST_WORDS_S = 2.0  # for answers on their way to the database


@dataclass(slots=True)
class Work:
    """A batch that this server runs: what waits, how many lines run, and when the next may begin."""

    batch: Batch
    waiting: deque[int]
    num_running: int = 0
    not_before: float = 0.0  # of the monotonic clock
    wait_s: float = FIRST_WAIT_S
    failure: str | None = None  # why no line of it can run any more

    def end(self, now: float) -> str | None:
        """The status that it ends with once nothing of it runs; None: it goes on."""
        if self.batch.status == "cancelling":
            return "cancelled"
        if self.failure is not None:
            return "failed"
        return "expired" if now >= self.batch.expires_at else None


@dataclass(slots=True)
class BatchRunner:
    """`start` and `close` are the application's."""

    edge: Edge
    store: BatchStore
    requests: InProcess
    _works: dict[str, Work] = field(default_factory=dict)  # whose turn is next comes first
    _lines: set[asyncio.Task[None]] = field(default_factory=set)
    _num_asked: int = 0  # lines that count as in flight; others are read or kept
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _look_at: float = 0.0
    _held_until: float = 0.0  # of the monotonic clock: what was claimed is nobody else's before
    _forget_at: float = 0.0
    _is_well: bool = True
    _task: asyncio.Task[None] | None = None

    async def start(self, _app: web.Application) -> None:
        self._task = asyncio.create_task(self._run(), name="run-batches")

    async def close(self, _app: web.Application) -> None:
        """Keep what is answered; everything else is another start's, or another server's."""
        if self._task is not None:
            self._task.cancel()
        if self._lines:
            await asyncio.wait(self._lines, timeout=LAST_WORDS_S)
        rest = [task for task in (self._task, *self._lines) if task is not None]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        with suppress(StoreFault, TimeoutError):  # else its lease ends by itself
            async with asyncio.timeout(LAST_WORDS_S):
                await self.store.release()
        await self.store.close()

    def look(self) -> None:
        """Look at once for what was submitted or cancelled."""
        self._look_at = 0.0
        self._woken.set()

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                await self._turn()
                self._is_well = True
            except StoreFault as error:
                if self._is_well:
                    _log.warning("batches_stalled", error=str(error))  # once, not at every turn
                self._is_well = False
                await asyncio.sleep(STORE_PAUSE_S)
            except Exception:  # whatever it is: without this task no batch goes on
                _log.exception("batches_crashed")
                await asyncio.sleep(LOOK_EVERY_S)
            if time.monotonic() < self._look_at:
                is_waiting = any(work.waiting for work in self._works.values())
                with suppress(TimeoutError):
                    async with asyncio.timeout(ROOM_EVERY_S if is_waiting else LOOK_EVERY_S):
                        await self._woken.wait()

    async def _turn(self) -> None:
        if self.edge.readiness.phase is not Phase.READY:
            self._look_at = time.monotonic() + LOOK_EVERY_S
            return
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_EVERY_S
            await self._take_over()
        self._begin_lines()
        for work in [work for work in self._works.values() if work.num_running == 0]:
            await self._end_if_over(work)
        await self._forget()

    async def _take_over(self) -> None:
        """Claim what there is, and let go of what another server has."""
        held_until = time.monotonic() + LEASE_S / 2
        claimed = {batch.id: batch for batch in await self.store.claim()}
        self._held_until = held_until
        for batch_id, batch in claimed.items():
            if (work := self._works.get(batch_id)) is not None:
                work.batch = batch
            else:
                self._works[batch_id] = Work(batch, deque(await self.store.unanswered(batch_id)))
        for batch_id in self._works.keys() - claimed.keys():
            self._works[batch_id].waiting.clear()
            if self._works[batch_id].num_running == 0:
                del self._works[batch_id]

    def _begin_lines(self) -> None:
        """Begin as many lines as there is room for, one of each batch in turn."""
        others = max(0, len(self.edge.in_flight) - self._num_asked)
        room = max(1, self.edge.settings.batch_concurrency - others) - len(self._lines)
        while room > 0 and (work := self._next()) is not None:
            try:
                key = self._key_of(work.batch)
            except RequestError as error:
                work.failure = f"the key that submitted it cannot be used: {error.message}"
                continue
            work.num_running += 1
            line = asyncio.create_task(self._line(work, work.waiting.popleft(), key), name="batch-line")
            self._lines.add(line)
            line.add_done_callback(self._lines.discard)
            room -= 1

    def _next(self) -> Work | None:
        now, wall = time.monotonic(), time.time()
        if now >= self._held_until:
            return None
        for batch_id, work in self._works.items():
            if work.waiting and now >= work.not_before and work.end(wall) is None:
                self._works[batch_id] = self._works.pop(batch_id)  # its next turn comes last
                return work
        return None

    def _key_of(self, batch: Batch) -> ApiKey | None:
        """Who asks: the key as it is now; raises RequestError where it would not be let in any more."""
        if not batch.key_hash and not self.edge.asks_for_keys:
            return None
        found = None if self.edge.keys is None else self.edge.keys.by_hash(batch.key_hash)
        return usable(found, Access.INFERENCE)

    async def _line(self, work: Work, number: int, key: ApiKey | None) -> None:
        try:
            body = await self._patiently_read(work.batch.id, number)
            if body is None:
                return
            batch = work.batch
            answer = await self._ask(batch, body, key)
            if answer.status in RETRIED:
                self._put_off(work, number, answer)
                return
            work.wait_s = FIRST_WAIT_S
            await self._patiently_keep(batch.id, number, _answered(answer))
        except Exception:  # of our own making: tried again it would happen again
            _log.exception("batch_line_crashed", batch=work.batch.id, line=number)
            await self._patiently_keep(work.batch.id, number, _crashed(""))
        finally:
            work.num_running -= 1
            self._woken.set()

    async def _ask(self, batch: Batch, body: str, key: ApiKey | None) -> Answer:
        self._num_asked += 1
        try:
            return await self.requests.ask(batch.endpoint, body.encode(), json.loads(batch.headers), key)
        finally:
            self._num_asked -= 1

    def _put_off(self, work: Work, number: int, answer: Answer) -> None:
        """Try again later: the whole batch waits, for the next line would be told the same."""
        work.waiting.append(number)
        wait_s = max(work.wait_s, _seconds(answer.headers.get(hdrs.RETRY_AFTER)))
        work.not_before = max(work.not_before, time.monotonic() + wait_s)
        work.wait_s = min(2 * work.wait_s, LONGEST_WAIT_S)

    async def _patiently_read(self, batch_id: str, number: int) -> str | None:
        while True:
            try:
                return await self.store.body(batch_id, number)
            except StoreFault:
                await asyncio.sleep(STORE_PAUSE_S)

    async def _patiently_keep(self, batch_id: str, number: int, given: Answered) -> None:
        """Keep an answer, however long the database is away: it was paid for."""
        while True:
            try:
                return await self.store.answer(batch_id, number, given)
            except StoreFault:
                await asyncio.sleep(STORE_PAUSE_S)
            except RowFault as error:
                _log.error("batch_answer_refused", batch=batch_id, request=given.request_id, error=str(error))
                given = _crashed(given.request_id)

    async def _end_if_over(self, work: Work) -> None:
        batch, status = work.batch, work.end(time.time())
        if status is None:
            if work.waiting:
                return
            work.waiting.extend(await self.store.unanswered(batch.id))
            if work.waiting:
                return
            status = "completed"
        await self.store.finish(batch.id, status, work.failure if status == "failed" else None)
        del self._works[batch.id]
        seconds = round(time.time() - batch.created_at, 2)
        _log.info(
            "batch_finished", batch=batch.id, status=status, requests=batch.num_requests, seconds=seconds
        )

    async def _forget(self) -> None:
        if time.monotonic() < self._forget_at:
            return
        now = None if self.edge.accounts is None else self.edge.accounts.ledger.sure_now
        self._forget_at = time.monotonic() + (UNSURE_S if now is None else FORGET_EVERY_S)
        if now is not None:
            await self.store.forget(now - KEEP_S, now)


BATCHES = web.AppKey("batches", BatchRunner)


def _answered(answer: Answer) -> Answered:
    text = answer.body.decode()
    return Answered(answer.status, answer.request_id, text, *used_by(json.loads(text)))


def _crashed(request_id: str) -> Answered:
    return Answered(500, request_id, json.dumps(INTERNAL_ERROR.envelope()).decode())


def _seconds(retry_after: str | None) -> float:
    """Read `Retry-After`, which everything here writes in seconds."""
    return float(retry_after) if retry_after is not None and retry_after.isdigit() else 0.0
