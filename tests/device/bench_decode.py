"""Decode steps and whole workloads of a judged shape with random weights: milliseconds and tokens a second.

python tests/device/bench_decode.py LIBRARY SHAPE [BATCH ...]
"""

from __future__ import annotations

import random
import statistics
import sys
import time

import reference
from drive import Timing, generate, runner_for
from ion_cuda import Library, Model, Shape
from shapes import JUDGED

NUM_IN, NUM_OUT = 128, 256


def weight_bytes(shape: Shape) -> int:
    """What a decode step streams: all matrices but the embedding."""
    hidden = shape.hidden_size
    layer = (shape.q_size + 2 * shape.kv_size) * hidden + hidden * shape.q_size + 3 * hidden * shape.ffn_size
    return 2 * (shape.num_layers * layer + shape.vocab_size * hidden)


def bench(
    library: Library, name: str, batches: list[int], *, streams: bool = True, new: int = NUM_OUT
) -> None:
    shape = JUDGED[name]
    began = time.perf_counter()
    model = Model(library, shape, None)
    reference.fill(model, seed=1)
    model.tile()
    filled_s = time.perf_counter() - began
    print(f"{name}: {weight_bytes(shape) / 1e9:.2f} GB streamed a step; filled in {filled_s:.1f} s")
    most = max(batches)
    runner = runner_for(
        model, slots=most, budget=8192, context=1024, blocks=most * 40 + 64, graphs=True, streams=streams
    )
    rng = random.Random(2)
    print("| batch | step ms (device, median) | wall ms a step | first token s | tok/s whole |")
    print("|--:|--:|--:|--:|--:|")
    for batch in batches:
        prompts = [[rng.randrange(shape.vocab_size) for _ in range(NUM_IN)] for _ in range(batch)]
        timing = Timing()
        for _ in range(2):
            timing = Timing()
            generate(runner, prompts, [new] * batch, budget=8192, max_running=most, timing=timing)
        full = [s for s, rows in zip(timing.decode_s, timing.rows, strict=True) if rows == batch]
        step = statistics.median(full) * 1e3
        wall = (timing.wall_s - timing.first_s) / (new - 1) * 1e3
        rate = batch * new / timing.wall_s
        print(f"| {batch} | {step:.3f} | {wall:.3f} | {timing.first_s:.3f} | {rate:,.0f} |", flush=True)
    runner.close()
    model.close()


if __name__ == "__main__":
    bench(Library(sys.argv[1]), sys.argv[2], [int(b) for b in sys.argv[3:]] or [1, 8, 32, 64, 128, 256])
