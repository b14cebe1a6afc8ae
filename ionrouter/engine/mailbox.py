"""What one sequence has said and nobody has read yet. Events merge, so a slow reader costs no queue.

Knows no sockets, no engine and no other sequence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

Finish = Literal["stop", "length", "aborted", "error"]
_FINISHES: tuple[Finish | None, ...] = (None, "stop", "length", "aborted", "error")


class TokenLogprob(Struct, frozen=True):
    """Log-probability of the chosen token, and of the most likely ones, in descending order."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class PromptToken(Struct, frozen=True):
    """What the model foresaw in a prompt token's place: its log-probability, rank from 1, the likeliest."""

    id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class TokenEvent(Struct, frozen=True):
    """A piece of an answer: whole characters, and how many billed tokens it accounts for."""

    text: str = ""
    num_tokens: int = 0
    finish: Finish | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    cached_tokens: int = 0  # of the prompt; on the last event
    error: str = ""
    stop: str = ""  # the stop string that ended it
    queue_s: float | None = None  # from submission to the first step that worked on it; None: it never began
    prompt_logprobs: tuple[PromptToken, ...] = ()  # of every prompt token but the first; on the first event


Offer = Callable[[TokenEvent], bool]  # takes an event at once, or nothing of it: False


def event_of(
    text: bytes,
    flags: int,
    logprobs: list[tuple[int, float, list[tuple[int, float]]]],
    cached: int,
    detail: str,
    queue_s: float = -1.0,
    prompt_logprobs: list[tuple[int, float, int, list[tuple[int, float]]]] | tuple[()] = (),
) -> TokenEvent:
    """Unpack one entry of the engine's `drain` (ionrouter/engine/_ion.pyi)."""
    finish = _FINISHES[flags & 0xFF]
    if finish is None and not logprobs and not prompt_logprobs:  # nearly all of them
        return TokenEvent(text.decode("utf-8"), flags >> 8, queue_s=queue_s if queue_s >= 0 else None)
    return TokenEvent(
        text.decode("utf-8"),
        flags >> 8,
        finish,
        tuple(TokenLogprob(token, value, tuple(top)) for token, value, top in logprobs),
        cached,
        error="" if finish == "stop" else detail,
        stop=detail if finish == "stop" else "",
        queue_s=queue_s if queue_s >= 0 else None,
        prompt_logprobs=tuple(
            PromptToken(token, value, rank, tuple(top)) for token, value, rank, top in prompt_logprobs
        ),
    )


def merged(first: TokenEvent, second: TokenEvent) -> TokenEvent:
    """Join two events of one sequence that follow each other."""
    return TokenEvent(
        first.text + second.text,
        first.num_tokens + second.num_tokens,
        second.finish,
        first.logprobs + second.logprobs,
        first.cached_tokens + second.cached_tokens,
        second.error,
        second.stop,
        second.queue_s,
        first.prompt_logprobs or second.prompt_logprobs,
    )


class Mailbox:
    """Holds at most one event; `put` merges into it, `take` waits for one. One reader.

    While the reader waits, `offer` may have an event in the call that brings it: it is told True, and the
    reader waits on; or False, and `take` returns it.
    """

    def __init__(self, offer: Offer | None = None) -> None:
        self._offer = offer
        self._event: TokenEvent | None = None
        self._fault: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: TokenEvent) -> None:
        """Add what the engine said; called on the loop's thread."""
        if self._offer is not None and self._is_awaited:
            try:
                if self._offer(event):
                    return
            except Exception as fault:  # of whoever is served: others' events come by the same call
                self.fail(fault)
                return
        self._event = event if self._event is None else merged(self._event, event)
        self._wake()

    def fail(self, fault: Exception) -> None:
        """Say that nothing more will come; `take` raises it once everything is read."""
        self._fault = fault
        self._wake()

    @property
    def _is_awaited(self) -> bool:
        return self._waiter is not None and not self._waiter.done()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> TokenEvent:
        """Wait for and remove everything said so far."""
        if self._event is None and self._fault is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        event, self._event = self._event, None
        if event is None:
            assert self._fault is not None
            raise self._fault
        return event
