"""Every request from its begin to its end: in memory while it runs and shortly after, in the store for good.

One thread only. Whether the store can be written is nobody's business but the writer's: requests are served
either way.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import structlog
from msgspec import Struct

from ionrouter.errors import ConfigError
from ionrouter.schema import json
from ionrouter.schema.assemble import Assembly
from ionrouter.schema.events import Chunk, Complete, Event, RequestRecord, TextRun
from ionrouter.schema.request import Client, InferenceRequest
from ionrouter.store import generation
from ionrouter.store.database import Database, Statement, StoreFault
from ionrouter.store.generation import Generation
from ionrouter.store.instance import Instance
from ionrouter.store.keys import ApiKey
from ionrouter.store.periods import DAY_S, day_of
from ionrouter.store.reader import Reader
from ionrouter.store.shared_limits import SharedLimits
from ionrouter.store.spending import SpendingBook
from ionrouter.store.sure_clock import SureClock
from ionrouter.store.writer import Write, Writer

_log = structlog.get_logger(__name__)

MAX_RECENT = 1024
BEGUN_S = 0.05  # what ends sooner never has a row that says it runs
FORGET_EVERY_S = 60.0
FORGET_AGAIN_S = 5.0  # while more is left: a thousand rows a second, more than are ever added
MAX_COMMIT_S = 1.0  # a disk slower than this delays no answer
MAX_REQUEST_S = DAY_S  # what began before that has no server any more
MAX_REQUEST_DAYS = 2  # and ends on the day after the next at the latest, as one that was lost


class Words(Struct, frozen=True):
    """What was asked and answered; kept only where the operator wants prompts logged."""

    input: Mapping[str, Any]
    completion: str | None
    reasoning: str | None


@dataclass(slots=True)
class _Running:
    """A request that has not ended."""

    request: InferenceRequest
    started_at: float
    held: float  # USD
    paid: float = 0.0  # of that for attempts that failed
    write: Write | None = None  # of the row that says so; most end before there is one
    input: bytes | None = None  # JSON; None: prompts are not kept
    assembly: Assembly | None = None  # of the answer; None: likewise


@dataclass(slots=True)
class Ledger:
    """`writer` and `reader` are None where no state folder could be opened: then memory is all there is."""

    spending: SpendingBook
    writer: Writer | None = None
    reader: Reader | None = None
    keeps_words: bool = False
    limits: SharedLimits | None = None  # where other servers spend from the same keys
    instance: Instance | None = None
    unfinished: Sequence[Generation] = ()  # what dead servers left
    unbooked: Sequence[Generation] = ()  # what they had answered, and the database could not take yet
    clock: SureClock = field(default_factory=SureClock)
    sure_now: float | None = None  # by which things may be forgotten; a minute old at most, None: wait
    _known_on: int = field(default_factory=lambda: day_of(time.time()))  # when all sums were read
    _spent: float = 0.0  # USD, of everybody, as other servers left it when it was asked for last
    _running: dict[str, _Running] = field(default_factory=dict)
    _recent: OrderedDict[str, Generation] = field(default_factory=OrderedDict)
    _commits: dict[str, tuple[asyncio.Future[None], float]] = field(default_factory=dict)  # and how long
    _patience: asyncio.TimerHandle | None = None  # for the commit that has been waited for longest
    _begun: list[str] = field(default_factory=list)  # since the last look at what runs for long
    _begun_before: list[str] = field(default_factory=list)  # it
    _next_look: asyncio.TimerHandle | None = None

    @property
    def _name(self) -> str | None:
        return self.instance.name if self.instance is not None else None

    @property
    def is_writable(self) -> bool:
        """Whether what is spent now will be known after a restart."""
        return self.writer is not None and self.writer.accepts

    async def reserve(self, request: InferenceRequest, key: ApiKey, amount: float, now: float) -> None:
        """Set aside what a request may cost at worst; raises RequestError 402 or 503.

        Where other servers spend from the same keys, that is a row of the store.
        """
        if self.limits is None or amount <= 0:
            self.spending.reserve(key, request.id, amount, now)
            return
        await self.limits.reserve(key, generation.started(request, now, amount, self._name), now)
        self.spending.of(key.hash).reserved[request.id] = amount

    async def reserve_paid(self, request_id: str, key: ApiKey, paid: float, now: float) -> None:
        """Set aside what a running request's failed attempts have cost, beside its worst case.

        Raises RequestError 402 or 503.
        """
        running = self._running.get(request_id)
        if running is None or (more := paid - running.paid) <= 0:
            return
        if self.limits is not None and running.held > 0:
            await self.limits.reserve_more(key, request_id, more, now)
            self.spending.of(key.hash).reserved[request_id] = running.held + more
        else:
            self.spending.reserve_more(key, request_id, more, now)
            if self.writer is not None:
                self.writer.put_lazily([generation.hold_more(request_id, more)])
                self.writer.hurry()
        running.held, running.paid = running.held + more, paid

    def begin(self, request: InferenceRequest, started_at: float) -> None:
        """Note that a request goes out; its row, if it runs for long enough, is queued and not awaited."""
        held = self.spending.of(request.key_id).reserved.get(request.id, 0.0)
        running = self._running[request.id] = _Running(request, started_at, held)
        if self.keeps_words:
            running.input, running.assembly = json.dumps(_input(request)), Assembly()
        if self.writer is None or (self.limits is not None and held > 0):
            return  # `reserve` wrote it
        if held > 0:  # at once, so that a crash does not forget what was held
            self._queue_begun(self.writer, request.id)
            self.writer.hurry()
            return
        self._begun.append(request.id)
        if self._next_look is None:
            self._next_look = asyncio.get_running_loop().call_later(BEGUN_S, self._look_at_begun, self.writer)

    def _look_at_begun(self, writer: Writer) -> None:
        """Queue the rows of what began before the last look and still runs: for BEGUN_S, at most twice."""
        for request_id in self._begun_before:
            self._queue_begun(writer, request_id)
        self._begun_before, self._begun = self._begun, []
        self._next_look = None
        if self._begun_before:
            self._next_look = asyncio.get_running_loop().call_later(BEGUN_S, self._look_at_begun, writer)

    def _queue_begun(self, writer: Writer, request_id: str) -> None:
        running = self._running.get(request_id)
        if running is not None:
            running.write = writer.put_lazily([generation.insert(self._row_of(running))])

    def _row_of(self, running: _Running) -> Generation:
        return generation.started(running.request, running.started_at, running.held, self._name)

    def hear(self, request_id: str, event: Event | TextRun) -> None:
        """Collect what is answered, where words are kept."""
        if not self.keeps_words:
            return
        running = self._running.get(request_id)
        answer = running.assembly if running is not None else None
        if answer is not None and isinstance(event, Chunk | Complete | TextRun):
            answer.add(event)

    def end(self, record: RequestRecord, client: Client) -> None:
        """Note how a request ended, book its cost, and queue its row for the next commit.

        Where the journal keeps its row meanwhile, nobody waits for the commit.
        """
        running = self._running.pop(record.id, None)
        done = generation.ended(record, client, self._name)
        self._account(done)
        if running is not None and running.write is not None:
            running.write.withdraw()
        if self.writer is None:
            return
        turn = generation.turn_of(done)
        if running is not None and running.input is not None and running.assembly is not None:
            words = _words(done, running.input, running.assembly)
            commit = self.writer.put([*generation.book([done]), words], turn)
        elif entry := self._journal(done):
            self.writer.put_lazily((), turn, done, entry)
            return
        else:
            commit = self.writer.put((), turn, done)
        if commit is not None:
            loop = commit.get_loop()
            self._commits[done.id] = commit, loop.time() + MAX_COMMIT_S
            if self._patience is None:
                self._patience = loop.call_later(MAX_COMMIT_S, self._lose_patience)

    def _journal(self, done: Generation) -> int:
        """Keep a row from a kill until it is committed; 0 where only its commit can."""
        journal = self.writer.journal if self.writer is not None else None
        if journal is None or not self.is_writable:
            return 0
        try:
            return journal.add(generation.to_bytes(done))
        except UnicodeEncodeError:  # a name of an upstream's with half of a character
            return 0

    def _lose_patience(self) -> None:
        """Let go whoever has waited too long for a commit, and forget those that nobody waited for.

        One timer for all: one for each request cost as much as the rest of the waiting.
        """
        self._patience = None
        for request_id, (commit, deadline) in list(self._commits.items()):
            loop = commit.get_loop()
            if loop.time() < deadline:
                self._patience = loop.call_at(deadline, self._lose_patience)
                return
            del self._commits[request_id]
            if not commit.done():
                commit.set_result(None)
                if self.writer is not None:
                    self.writer.is_late = True

    def _account(self, done: Generation) -> None:
        """Book in memory what has ended, and remember it for who asks now."""
        self.spending.settle(done.key_hash, done.id, done.cost, done.started_at)
        self._recent[done.id] = done
        if len(self._recent) > MAX_RECENT:
            self._recent.popitem(last=False)

    async def committed(self, request_id: str) -> None:
        """Wait until an ended request's row is safe, or waiting is no use."""
        commit, _ = self._commits.get(request_id, (None, 0.0))
        if commit is not None:
            try:
                await commit
            finally:
                self._commits.pop(request_id, None)

    async def find(self, request_id: str) -> Generation | None:
        """Look a request up: running, just ended, or in the file."""
        running = self._running.get(request_id)
        known = self._row_of(running) if running is not None else self._recent.get(request_id)
        if known is not None or self.reader is None:
            return known
        row = await self.reader.one(generation.SELECT, (request_id,))
        return generation.from_row(row) if row is not None else None

    async def words(self, request_id: str) -> Words | None:
        """Look up what was asked and answered."""
        if self.reader is None:
            return None
        row = await self.reader.one(generation.SELECT_WORDS, (request_id,))
        return Words(json.loads(row[0]), row[1], row[2]) if row is not None else None

    def start(self) -> None:
        """Begin to write, and end what dead servers left unfinished; before the first request."""
        if self.writer is not None:
            self.writer.start(generation.book)
        self._abort(self.unfinished)
        for done in self.unbooked:
            self._account(done)
            if self.writer is not None:
                self.writer.put_lazily((), generation.turn_of(done), done)
        self.unfinished = self.unbooked = ()

    def _abort(self, rows: Sequence[Generation]) -> None:
        """Book what was reserved for them, as an estimate."""
        for row in rows:
            done, statements = generation.abort(row)
            self._account(done)
            if self.writer is not None:
                self.writer.put_lazily(statements, generation.turn_of(done))
        if rows:
            _log.warning(
                "requests_lost", count=len(rows), booked=round(sum(row.reserved for row in rows), 12)
            )

    async def refresh(self, *key_hashes: str) -> None:
        """Learn what other servers booked for these keys; without news, what is known stays.

        A cost is booked under the day on which its request began, which may be two days ago.
        """
        if self.limits is not None:
            # A clock that was ahead has seen nothing of the days between.
            self._known_on = min(self._known_on, day_of(time.time()))
            oldest = self._known_on - MAX_REQUEST_DAYS
            try:
                self.spending.take_over(await self.limits.usage_since(oldest, key_hashes))
            except StoreFault as error:
                _log.warning("spending_stale", error=str(error))

    async def spent(self) -> float:
        """USD that all keys have spent, on other servers too; without news, at least what is known here."""
        if self.limits is not None:
            try:
                self._spent = await self.limits.spent()
                return self._spent
            except StoreFault as error:
                _log.warning("spending_stale", error=str(error))
        return max(self._spent, self.spending.total())

    async def keep_forgetting(self, keep_days: int) -> None:
        """Drop what is older, some thousands of rows at once; runs until cancelled."""
        while self.writer is not None:
            self.sure_now = now = await self._sure_now()
            is_more_left = False
            if now is not None:
                await self._abort_abandoned(now)
                before = now - keep_days * DAY_S
                self.writer.put_lazily([(statement, (before,)) for statement in generation.FORGET])
                await asyncio.sleep(FORGET_AGAIN_S)
                is_well = self.writer.is_well  # else what was put is still to be written
                is_more_left = is_well and await asyncio.to_thread(_is_left, self.writer.database, before)
            if not is_more_left:
                await asyncio.sleep(FORGET_EVERY_S - FORGET_AGAIN_S)

    async def _sure_now(self) -> float | None:
        """The moment by which things may be thrown away; other servers' too where the database says so."""
        now = self.clock.now()
        if now is None or self.limits is None:
            return now
        try:
            return min(now, await self.limits.now())
        except StoreFault as error:
            _log.warning("spending_stale", error=str(error))
            return None

    async def _abort_abandoned(self, now: float) -> None:
        """End requests of servers that never came back."""
        if self.limits is not None:
            try:
                self._abort(await self.limits.running_before(now - MAX_REQUEST_S))
            except StoreFault as error:
                _log.warning("spending_stale", error=str(error))

    async def close(self) -> None:
        """Write what waits and close the database."""
        if self._patience is not None:
            self._patience.cancel()
        if self._next_look is not None:
            self._next_look.cancel()
        if self.writer is not None:
            for request_id in (*self._begun_before, *self._begun):
                self._queue_begun(self.writer, request_id)
            await self.writer.close()
            if self.writer.journal is not None:
                self.writer.journal.close()
        if self.reader is not None:
            await asyncio.to_thread(self.reader.close)
        if self.limits is not None:
            await asyncio.to_thread(self.limits.close)
        if self.instance is not None:
            self.instance.close()


def _is_left(database: Database, before: float) -> bool:
    """Ask whether anything is older; no, where the database does not say."""
    try:
        with closing(database.open()) as link:
            return bool(link.rows(generation.IS_OLD_LEFT, (before, before)))
    except (StoreFault, ConfigError):
        return False


def _input(request: InferenceRequest) -> Mapping[str, Any]:
    if request.kind == "chat":
        return {"messages": request.body.get("messages")}
    said = request.body.get("prompt", request.body.get("input"))
    return {"prompt": said if isinstance(said, str) else json.dumps(said).decode()}


def _words(done: Generation, asked: bytes, answer: Assembly) -> Statement:
    """Keep every choice's text, one after the other."""
    messages = [choice.message for choice in answer.complete().choices]
    texts = [text for m in messages if (text := m.get("content") or m.get("text"))]
    reasoning = [text for m in messages if (text := m.get("reasoning"))]
    said = (asked.decode(), "\n".join(map(str, texts)) or None, "\n".join(map(str, reasoning)) or None)
    # No row is lost over a character.
    words = [generation.unicode_of(text) if text else text for text in said]
    return generation.INSERT_WORDS, (done.id, done.started_at, *words)
