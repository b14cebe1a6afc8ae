"""A small driver of the runner: sequences in, greedy or sampled ids out, the host one step ahead."""

from __future__ import annotations

import time
from collections.abc import Sequence
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


def generate(
    runner: Runner,
    prompts: Sequence[Sequence[int]],
    num_new: Sequence[int],
    *,
    budget: int,
    max_running: int = 256,
    sampling: Sequence[Sampling] | None = None,
    timing: Timing | None = None,
    first_block: int = 0,
    depth: int = 1,
) -> tuple[list[list[int]], list[list[CSample]]]:
    """Give every prompt's ids and samples. Prompts are cut at `budget`; sequences keep their blocks."""
    timing = timing or Timing()
    outputs: list[list[int]] = [[] for _ in prompts]
    samples: list[list[CSample]] = [[] for _ in prompts]
    waiting = list(range(len(prompts)))
    slots: dict[int, int] = {}  # slot: prompt
    progress: dict[int, int] = {}  # slot: positions submitted
    tables: dict[int, list[int]] = {}
    free_slots = list(range(max_running - 1, -1, -1))
    free_blocks: list[int] = []
    next_block = first_block
    in_flight: list[tuple[dict[int, int], bool, int]] = []  # sampled slot: prompt; whether all rows decode
    leaves: list[int] = []
    began = time.perf_counter()

    def finish_oldest() -> None:
        sampled, is_decode, num_rows = in_flight.pop(0)
        polled = runner.poll()
        assert polled is not None
        found, seconds = polled
        (timing.decode_s if is_decode else timing.prefill_s).append(seconds)
        if is_decode:
            timing.rows.append(num_rows)
        for slot, prompt in sampled.items():
            if len(outputs[prompt]) < num_new[prompt]:
                outputs[prompt].append(found[slot].id)
                samples[prompt].append(found[slot])
        if not timing.first_s and all(outputs):
            timing.first_s = time.perf_counter() - began

    while waiting or slots or in_flight:
        # A slot is given away once every step that named it was polled.
        for slot in [s for s, p in slots.items() if len(outputs[p]) >= num_new[p]]:
            if any(slots[slot] in sampled.values() for sampled, _, _ in in_flight):
                continue
            del slots[slot], progress[slot]
            free_blocks.extend(tables.pop(slot))
            free_slots.append(slot)
            leaves.append(slot)
        rows, joins, blocks, sampled = [], [], [], {}
        left, is_decode = budget, True
        for slot, prompt in slots.items():
            ids, start = prompts[prompt], progress[slot]
            if start >= len(ids) + num_new[prompt] - 1 or left == 0:
                continue
            count = min(left, len(ids) - start) if start < len(ids) else 1
            is_last = start + count >= len(ids)
            rows.append((slot, start, count, SAMPLE if is_last else 0))
            is_decode = is_decode and count == 1
            left -= count
            progress[slot] = start + count
            if is_last:
                sampled[slot] = prompt
        while waiting and free_slots and left > 0:
            prompt, slot = waiting.pop(0), free_slots.pop()
            ids = prompts[prompt]
            asked = sampling[prompt] if sampling else Sampling()
            joins.append(Joined(slot, ids, asked))
            if slot in leaves:
                pass  # the leave goes first in one delta
            count = min(left, len(ids))
            is_last = count == len(ids)
            rows.append((slot, 0, count, SAMPLE if is_last else 0))
            is_decode = False
            left -= count
            slots[slot], progress[slot], tables[slot] = prompt, count, []
            if is_last:
                sampled[slot] = prompt
        for slot, _, _, _ in rows:
            table = tables[slot]
            while len(table) * BLOCK < progress[slot]:
                if free_blocks:
                    block = free_blocks.pop()
                else:
                    block, next_block = next_block, next_block + 1
                blocks.append((slot, len(table), block))
                table.append(block)
        if rows:
            runner.submit(rows, joins=joins, leaves=leaves, blocks=blocks)
            leaves = []
            in_flight.append((sampled, is_decode, len(rows)))
        if in_flight and (len(in_flight) > depth or not rows):
            finish_oldest()
    if leaves:
        runner.submit([], leaves=leaves)
        runner.poll()
    timing.wall_s = time.perf_counter() - began
    return outputs, samples


def runner_for(
    model: Model, *, slots: int, budget: int, context: int, blocks: int, graphs: bool, streams: bool = True
) -> Runner:
    return Runner(
        model,
        max_slots=slots,
        max_tokens_per_step=budget,
        num_blocks=blocks,
        context_length=context,
        use_graphs=int(graphs),
        use_streams=int(streams),
    )
