"""Drive `_ion.Engine` from a test: submit, wait on the event descriptor, collect ids and logprobs."""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ionrouter.engine import _ion

GUARD_S = 120.0  # a test that waits longer has lost an event


@dataclass(slots=True)
class Answer:
    """What one sequence gave. `tokens` are (id, logprob) pairs; `finish` is the low byte of the flags."""

    tokens: list[tuple[int, float]] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    text: bytes = b""
    num_billed: int = 0
    finish: int = 0
    error: str = ""
    stop: str = ""  # the stop string that ended it
    prompt_logprobs: list[tuple[int, float, int, list[tuple[int, float]]]] = field(default_factory=list)
    num_cached: int = field(default=0, compare=False)  # prompt tokens from the prefix cache

    def packed(self) -> bytes:
        """Everything it said, byte for byte: ids as int32, log-probabilities as float32, text, finish."""
        chosen = [struct.pack("<if", *entry) for entry in self.tokens]
        others = [struct.pack("<if", *entry) for top in self.top for entry in top]
        counts = [self.finish, self.num_billed, len(self.tokens), *map(len, self.top)]
        return b"".join((struct.pack(f"<{len(counts)}i", *counts), *chosen, *others, self.text))

    @property
    def ids(self) -> list[int]:
        return [token for token, _ in self.tokens]


def make_engine(model: _ion.Model, stop_ids: Sequence[int] = (), **options: Any) -> _ion.Engine:
    """Start an engine whose tokens are one printable letter each."""
    letters = [bytes([33 + i % 90]) for i in range(model.config["vocab_size"])]
    return _ion.Engine(model, letters, list(stop_ids), {"check_integrity": True} | options)


def collect(engine: _ion.Engine, sequences: Sequence[int]) -> list[Answer]:
    """Drain until all of these sequences ended, dropping events of others; answers in the order given."""
    answers = {sequence: Answer() for sequence in sequences}
    left = set(sequences)
    deadline = time.monotonic() + GUARD_S
    while left:
        assert select.select([engine.event_fd], [], [], deadline - time.monotonic())[0], (
            f"no events for {left}"
        )
        for sequence, text, flags, logprobs, num_cached, detail, _, prompt_logprobs in engine.drain():
            answer = answers.get(sequence, Answer())
            answer.prompt_logprobs += prompt_logprobs
            answer.text += text
            answer.tokens += [(token, logprob) for token, logprob, _ in logprobs]
            answer.top += [top for _, _, top in logprobs]
            answer.num_billed += flags >> 8
            answer.num_cached += num_cached
            answer.finish = flags & 0xFF
            answer.error = detail if answer.finish == 4 else ""
            answer.stop = detail if answer.finish == 1 else ""
            if answer.finish:
                left.discard(sequence)
    return [answers[sequence] for sequence in sequences]


def generate(engine: _ion.Engine, prompts: Sequence[Sequence[int]], **params: Any) -> list[Answer]:
    """Submit all prompts at once with the same parameters and wait for the answers."""
    settings = {"max_tokens": 16, "temperature": 0.0, "logprobs": 0} | params
    return collect(engine, [engine.submit(list(prompt), **settings) for prompt in prompts])
