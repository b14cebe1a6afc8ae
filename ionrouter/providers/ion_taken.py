"""Taken: gives one choice's text to whoever is served in the call that brings it, and counts its tokens.

Nobody is woken for what is taken (see `Taker`). What is refused, and all that is not text alone, is for
whoever waits for the engine's next event.
"""

from __future__ import annotations

from ionrouter.engine.mailbox import TokenEvent
from ionrouter.providers.ion_answer import Answer
from ionrouter.schema.events import Lane, Taker


class Taken:
    """Of one choice; `offer` is the mailbox's."""

    __slots__ = ("_answer", "_has_asked", "_lane", "_taker", "num_tokens")

    def __init__(self, answer: Answer, taker: Taker) -> None:
        self.num_tokens = 0
        self._answer, self._taker = answer, taker
        self._lane: Lane | None = None  # all runs of one choice are of one pattern: one lane serves them all
        self._has_asked = False

    def offer(self, event: TokenEvent) -> bool:
        """Have an event taken now; False: nothing of it was."""
        run = self._answer.run_of(event)
        if run is None:
            return False
        if self._lane is not None:
            is_taken = self._lane(event.text, run.literals[0])
        else:
            is_taken = self._taker.take([run])
            if is_taken and not self._has_asked:
                self._has_asked, self._lane = True, self._taker.lane(run.pattern)
        if is_taken:
            self.num_tokens += event.num_tokens
        return is_taken
