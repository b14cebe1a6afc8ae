"""A small driver of the runner: sequences in, greedy or sampled ids out, the host one step ahead."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ion_cuda import SAMPLE, CSample, Joined, Model, Runner, Sampling

BLOCK = 16


@dataclass
class Timing:
    """Seconds of the decode-only steps on the device, and of the whole on the host's clock."""

    decode_s: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    prefill_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    first_s: float = 0.0  # until every sequence had its first token


@dataclass
class Planned:
    """One step as the host plans it."""

    rows: list[tuple[int, int, int, int]] = field(default_factory=list)  # slot, start, count, flags
    joins: list[Joined] = field(default_factory=list)
    blocks: list[tuple[int, int, int]] = field(default_factory=list)  # slot, index, block
    sampled: dict[int, int] = field(default_factory=dict)  # slot: prompt

    def is_decode(self) -> bool:
        return not self.joins and all(count == 1 for _, _, count, _ in self.rows)


class Driver:
    """Sequences by slot, what is submitted of each, and the steps in flight."""

    def __init__(
        self,
        runner: Runner,
        prompts: Sequence[Sequence[int]],
        num_new: Sequence[int],
        sampling: Sequence[Sampling] | None,
        max_running: int,
    ) -> None:
        self.runner, self.prompts, self.num_new, self.sampling = runner, prompts, num_new, sampling
        self.outputs: list[list[int]] = [[] for _ in prompts]
        self.samples: list[list[CSample]] = [[] for _ in prompts]
        self.waiting = deque(range(len(prompts)))
        self.slots: dict[int, int] = {}  # slot: prompt
        self.in_flight: deque[Planned] = deque()
        self._progress: dict[int, int] = {}  # slot: positions submitted
        self._tables: dict[int, list[int]] = {}
        self._free_slots = list(range(max_running - 1, -1, -1))
        self._free_blocks: list[int] = []
        self._next_block = 0
        self._leaves: list[int] = []

    def is_busy(self) -> bool:
        return bool(self.waiting or self.slots or self.in_flight)

    def retire(self) -> None:
        """Give away the slots of whole answers, once every step that named them was polled."""
        for slot, prompt in list(self.slots.items()):
            is_named = any(prompt in planned.sampled.values() for planned in self.in_flight)
            if len(self.outputs[prompt]) < self.num_new[prompt] or is_named:
                continue
            del self.slots[slot], self._progress[slot]
            self._free_blocks.extend(self._tables.pop(slot))
            self._free_slots.append(slot)
            self._leaves.append(slot)

    def plan(self, budget: int) -> Planned:
        """Rows of all that run, then newcomers, prompts cut where the budget ends."""
        planned, left = Planned(), budget
        for slot, prompt in self.slots.items():
            ids, start = self.prompts[prompt], self._progress[slot]
            if start >= len(ids) + self.num_new[prompt] - 1 or left == 0:
                continue
            left -= self._add(planned, slot, prompt, min(left, max(len(ids) - start, 1)))
        while self.waiting and self._free_slots and left > 0:
            prompt, slot = self.waiting.popleft(), self._free_slots.pop()
            asked = self.sampling[prompt] if self.sampling else Sampling()
            planned.joins.append(Joined(slot, self.prompts[prompt], asked))
            self.slots[slot], self._progress[slot], self._tables[slot] = prompt, 0, []
            left -= self._add(planned, slot, prompt, min(left, len(self.prompts[prompt])))
        return planned

    def _add(self, planned: Planned, slot: int, prompt: int, count: int) -> int:
        """One row and the blocks that it needs; its tokens."""
        start = self._progress[slot]
        end = self._progress[slot] = start + count
        is_last = end >= len(self.prompts[prompt])
        planned.rows.append((slot, start, count, SAMPLE if is_last else 0))
        if is_last:
            planned.sampled[slot] = prompt
        table = self._tables[slot]
        while len(table) * BLOCK < end:
            block = self._free_blocks.pop() if self._free_blocks else self._next_block
            self._next_block += block == self._next_block
            planned.blocks.append((slot, len(table), block))
            table.append(block)
        return count

    def submit(self, planned: Planned) -> None:
        """Send a step, with the leaves before it."""
        self.runner.submit(planned.rows, joins=planned.joins, leaves=self._leaves, blocks=planned.blocks)
        self._leaves = []
        self.in_flight.append(planned)

    def finish_oldest(self, timing: Timing) -> None:
        """Wait for the oldest step; what it sampled goes to the answers."""
        planned, polled = self.in_flight.popleft(), self.runner.poll()
        assert polled is not None
        found, seconds = polled
        if planned.is_decode():
            timing.decode_s.append(seconds)
            timing.rows.append(len(planned.rows))
        else:
            timing.prefill_s.append(seconds)
        for slot, prompt in planned.sampled.items():
            if len(self.outputs[prompt]) < self.num_new[prompt]:
                self.outputs[prompt].append(found[slot].id)
                self.samples[prompt].append(found[slot])

    def say_goodbye(self) -> None:
        """Let the last ones leave."""
        if self._leaves:
            self.runner.submit([], leaves=self._leaves)
            self.runner.poll()


def generate(
    runner: Runner,
    prompts: Sequence[Sequence[int]],
    num_new: Sequence[int],
    *,
    budget: int,
    max_running: int = 256,
    sampling: Sequence[Sampling] | None = None,
    timing: Timing | None = None,
    depth: int = 1,
) -> tuple[list[list[int]], list[list[CSample]]]:
    """Give every prompt's ids and samples. Prompts are cut at `budget`; sequences keep their blocks."""
    timing = timing or Timing()
    driver = Driver(runner, prompts, num_new, sampling, max_running)
    with uncollected():
        began = time.perf_counter()
        while driver.is_busy():
            driver.retire()
            planned = driver.plan(budget)
            if planned.rows:
                driver.submit(planned)
            if driver.in_flight and (len(driver.in_flight) > depth or not planned.rows):
                driver.finish_oldest(timing)
                if not timing.first_s and all(driver.outputs):
                    timing.first_s = time.perf_counter() - began
        driver.say_goodbye()
        timing.wall_s = time.perf_counter() - began
    return driver.outputs, driver.samples


@contextmanager
def uncollected() -> Iterator[None]:
    """Without collections of garbage, which would be this driver's: 65,536 samples take one 90 ms."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def runner_for(
    model: Model,
    *,
    slots: int,
    budget: int,
    context: int,
    blocks: int,
    graphs: bool,
    streams: bool = True,
    decode_warps: int = 0,
    deterministic: bool = False,
) -> Runner:
    return Runner(
        model,
        max_slots=slots,
        max_tokens_per_step=budget,
        num_blocks=blocks,
        context_length=context,
        use_graphs=int(graphs),
        use_streams=int(streams),
        decode_warps=decode_warps,
        is_deterministic=int(deterministic),
    )
