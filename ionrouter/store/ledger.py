"""Every request from its begin to its end: in memory while it runs and shortly after, in the file for good.

One thread only. Whether the file can be written is nobody's business but the writer's: requests are served
either way.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ionrouter.schema import json
from ionrouter.schema.assemble import Assembly
from ionrouter.schema.events import Chunk, Complete, Event, RequestRecord
from ionrouter.schema.request import Client, InferenceRequest
from ionrouter.store import generation
from ionrouter.store.generation import Generation
from ionrouter.store.periods import DAY_S
from ionrouter.store.reader import Reader
from ionrouter.store.spending import SpendingBook
from ionrouter.store.writer import Statement, Write, Writer

MAX_RECENT = 1024
FORGET_EVERY_S = 60.0
MAX_COMMIT_S = 1.0  # a disk slower than this delays no answer


@dataclass(frozen=True, slots=True)
class Words:
    """What was asked and answered; kept only where the operator wants prompts logged."""

    input: Mapping[str, Any]
    completion: str | None
    reasoning: str | None


@dataclass(slots=True)
class _Running:
    """A request that has not ended."""

    generation: Generation
    write: Write | None  # of the row that says it began
    input: bytes | None = None  # JSON; None: prompts are not kept
    assembly: Assembly = field(default_factory=Assembly)


@dataclass(slots=True)
class Ledger:
    """`writer` and `reader` are None where no state folder could be opened: then memory is all there is."""

    spending: SpendingBook
    writer: Writer | None = None
    reader: Reader | None = None
    keeps_words: bool = False
    _running: dict[str, _Running] = field(default_factory=dict)
    _recent: OrderedDict[str, Generation] = field(default_factory=OrderedDict)
    _commits: dict[str, asyncio.Future[None]] = field(default_factory=dict)

    @property
    def is_writable(self) -> bool:
        """Whether what is spent now will be known after a restart."""
        return self.writer is not None and self.writer.accepts

    def begin(self, request: InferenceRequest, started_at: float) -> None:
        """Note that a request goes out; its row is queued, not awaited."""
        begun = generation.started(request, started_at)
        said = json.dumps(_input(request)) if self.keeps_words else None
        write = self.writer.put_lazily([generation.insert(begun)]) if self.writer is not None else None
        self._running[request.id] = _Running(begun, write, said)

    def hear(self, request_id: str, event: Event) -> None:
        """Collect what is answered, where words are kept."""
        if not self.keeps_words:
            return
        running = self._running.get(request_id)
        if running is not None and isinstance(event, Chunk | Complete):
            running.assembly.add(event)

    def end(self, record: RequestRecord, client: Client) -> None:
        """Note how a request ended, book its cost, and queue its row for the next commit."""
        running = self._running.pop(record.id, None)
        done = generation.ended(record, client)
        self._recent[done.id] = done
        if len(self._recent) > MAX_RECENT:
            self._recent.popitem(last=False)
        self.spending.settle(record.key_id, record.id, done.cost, done.started_at)
        if running is not None and running.write is not None:
            running.write.withdraw()
        if self.writer is None:
            return
        statements = [generation.insert(done), generation.add_usage(done)]
        if running is not None and running.input is not None:
            statements.append(_words(done, running))
        commit = self.writer.put(statements)
        if commit is not None:
            self._commits[done.id] = commit
            commit.add_done_callback(lambda _done: self._commits.pop(done.id, None))

    async def committed(self, request_id: str) -> None:
        """Wait until an ended request's row is safe, or waiting is no use."""
        commit = self._commits.get(request_id)
        if commit is not None:
            await asyncio.wait((commit,), timeout=MAX_COMMIT_S)

    async def find(self, request_id: str) -> Generation | None:
        """Look a request up: running, just ended, or in the file."""
        running = self._running.get(request_id)
        known = running.generation if running is not None else self._recent.get(request_id)
        if known is not None or self.reader is None:
            return known
        row = await self.reader.run(lambda db: db.execute(generation.SELECT, (request_id,)).fetchone())
        return generation.from_row(row) if row is not None else None

    async def words(self, request_id: str) -> Words | None:
        """Look up what was asked and answered."""
        if self.reader is None:
            return None
        row = await self.reader.run(lambda db: db.execute(generation.SELECT_WORDS, (request_id,)).fetchone())
        return Words(json.loads(row[0]), row[1], row[2]) if row is not None else None

    def start(self) -> None:
        """Begin to write, and mark what an earlier process left unfinished; before the first request."""
        if self.writer is not None:
            self.writer.start()
            self.writer.put([(generation.ABORT, ())])

    async def keep_forgetting(self, keep_days: int) -> None:
        """Drop what is older, some thousands of rows a minute; runs until cancelled."""
        while self.writer is not None:
            before = time.time() - keep_days * DAY_S
            self.writer.put_lazily([(statement, (before,)) for statement in generation.FORGET])
            await asyncio.sleep(FORGET_EVERY_S)

    async def close(self) -> None:
        """Write what waits and close the file."""
        if self.writer is not None:
            await self.writer.close()
        if self.reader is not None:
            await asyncio.to_thread(self.reader.close)


def _input(request: InferenceRequest) -> Mapping[str, Any]:
    if request.kind == "chat":
        return {"messages": request.body.get("messages")}
    said = request.body.get("prompt", request.body.get("input"))
    return {"prompt": said if isinstance(said, str) else json.dumps(said).decode()}


def _words(done: Generation, running: _Running) -> Statement:
    """Keep every choice's text, one after the other."""
    messages = [choice.message for choice in running.assembly.complete().choices]
    texts = [text for m in messages if (text := m.get("content") or m.get("text"))]
    reasoning = [text for m in messages if (text := m.get("reasoning"))]
    assert running.input is not None
    values = (
        done.id, done.started_at, running.input.decode(),
        "\n".join(map(str, texts)) or None, "\n".join(map(str, reasoning)) or None,
    )  # fmt: skip
    return generation.INSERT_WORDS, values
