"""Batches offered to whoever is served before they are yielded: when, and what the books hear of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from ionrouter.balancing.plan import Plan
from ionrouter.providers.base import UpstreamRequest
from ionrouter.router import Router
from ionrouter.schema.events import (
    ChoiceDelta,
    Chunk,
    Committed,
    Event,
    Finished,
    Lane,
    ProviderBatch,
    ProviderEvent,
    RequestRecord,
    TextRun,
)
from ionrouter.schema.request import InferenceRequest
from tests.support.routes import Heard, endpoint, request, route, table


def chunk(finish: Any = None, **delta: Any) -> Chunk:
    return Chunk((ChoiceDelta(0, delta, finish, finish),))


ROLE, LAST = chunk(role="assistant"), chunk("stop")
WORDS = [chunk(content=word) for word in ("one ", "two ", "three ")]
RUN = TextRun(WORDS[0], "content", ("four ", "five "), (b'"four "', b'"five "'))


@dataclass
class Offering:
    """A provider that offers each event before it yields it, and remembers the answers."""

    events: Sequence[ProviderEvent | TextRun] = (ROLE, *WORDS, RUN, LAST)
    answers: list[bool | None] = field(default_factory=list)

    async def batches(self, asked: UpstreamRequest) -> AsyncIterator[ProviderBatch]:
        for event in self.events:
            self.answers.append(None if asked.taker is None else asked.taker.take([event]))
            if not self.answers[-1]:
                yield [event]

    async def stream(self, asked: UpstreamRequest) -> AsyncIterator[ProviderEvent]:
        raise AssertionError("it has batches")
        yield

    async def close(self) -> None:
        pass


@dataclass
class Listening:
    """Books that keep words."""

    heard: list[Any] = field(default_factory=list)
    hears: bool = True

    async def admit(self, _: InferenceRequest, plan: Plan) -> Plan:
        return plan

    async def affords(self, _: InferenceRequest, paid: float) -> bool:
        return True

    def begin(self, asked: InferenceRequest, started_at: float) -> None:
        pass

    def hear(self, request_id: str, event: Event | TextRun) -> None:
        self.heard.append(event)

    def end(self, record: RequestRecord, request: InferenceRequest) -> None:
        pass

    async def kept(self, request_id: str) -> None:
        pass


@dataclass
class Served:
    """A client that takes all that it is offered."""

    provider: Offering = field(default_factory=Offering)
    books: Listening = field(default_factory=Listening)
    observer: Heard = field(default_factory=Heard)
    taken: list[Any] = field(default_factory=list)
    yielded: list[Any] = field(default_factory=list)

    def take(self, batch: ProviderBatch) -> bool:
        self.taken += batch
        return True

    def lane(self, pattern: Chunk) -> Lane | None:
        return lambda text, literal: self.take([text])  # type: ignore[list-item]

    async def run(self, *, takes: bool = True, stream: bool = True) -> Served:
        clients = {"fake": self.provider}
        router = Router(
            table(route("m", endpoint("up"))), clients, observers=[self.observer], books=self.books
        )
        asked = request(stream=stream)
        async with aclosing(router.batches(asked, self if takes else None)) as batches:  # type: ignore[type-var]
            async for batch in batches:
                self.yielded += batch
        return self


async def test_nothing_is_taken_before_the_commit_and_all_of_it_after() -> None:
    served = await Served().run()
    assert served.provider.answers == [False, False, True, True, True, True]
    assert served.taken == [*WORDS[1:], RUN, LAST]
    kinds = [type(event) for event in served.yielded]
    assert kinds == [Committed, Chunk, Chunk, Finished] and served.yielded[1:3] == [ROLE, WORDS[0]]


async def test_what_is_taken_counts_as_what_is_yielded() -> None:
    taking, waiting = await Served().run(), await Served().run(takes=False)
    assert waiting.provider.answers == [None] * 6
    (one,), (other,) = taking.observer.records, waiting.observer.records
    assert one.usage == other.usage and one.usage.completion_tokens == 6  # 23 characters
    assert one.attempts[0].finish_reason == other.attempts[0].finish_reason == "stop"
    assert one.status == other.status == 200


async def test_books_that_keep_words_hear_what_is_taken_in_its_place() -> None:
    taking, waiting = await Served().run(), await Served().run(takes=False)
    assert taking.books.heard == waiting.books.heard
    assert taking.books.heard[1:] == [ROLE, *WORDS, RUN, LAST]
    deaf = await Served(books=Listening(hears=False)).run()
    assert deaf.books.heard == []


@dataclass
class Alone(Offering):
    """Offers texts alone after the second of them."""

    async def batches(self, asked: UpstreamRequest) -> AsyncIterator[ProviderBatch]:
        yield [WORDS[0]]
        assert asked.taker is not None
        self.answers.append(asked.taker.take([WORDS[1]]))
        lane = asked.taker.lane(WORDS[1])
        self.answers.append(None if lane is None else lane("alone", b'"alone"'))
        yield [LAST]


async def test_texts_alone_are_counted_and_pass_by_books_that_keep_no_words() -> None:
    served = await Served(Alone(), Listening(hears=False)).run()
    assert served.provider.answers == [True, True] and served.taken == [WORDS[1], "alone"]
    assert served.observer.records[0].usage.completion_tokens == 4  # 13 characters


async def test_books_that_keep_words_leave_no_texts_alone() -> None:
    served = await Served(Alone()).run()
    assert served.provider.answers == [True, None]


async def test_a_whole_answer_is_offered_to_nobody() -> None:
    served = await Served().run(stream=False, takes=False)
    assert served.provider.answers == [None] * 6 and served.taken == []
