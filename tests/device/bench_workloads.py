"""Whole workloads of a judged shape with random weights, with peers' numbers of tokens in and out.

python tests/device/bench_workloads.py LIBRARY SHAPE [--precision fp8] [WORKLOAD ...]

Greedy, ends ignored, no prefix cache, at most 256 sequences, every id delivered. A workload runs once
unmeasured and then three times; medians, and the spread (largest - smallest) / median. `step`: milliseconds
on the device of a decode step with all sequences, and of (all - first token) / (tokens - 1) by the host.
"""

from __future__ import annotations

import argparse
import random
import statistics

import reference
from drive import Timing, generate, runner_for
from ion_cuda import PRECISIONS, Library, Model, Shape
from shapes import JUDGED

MAX_RUNNING, BUDGET, CONTEXT = 256, 8192, 5120
BLOCKS = 16384  # of 16 tokens
MEASURED = 3


def workloads() -> dict[str, list[tuple[int, int]]]:
    """(tokens in, tokens out) of each request."""
    rng = random.Random(0)
    chat = []
    for _ in range(512):
        num_in = int(min(2048, max(8, rng.lognormvariate(4.9, 1.0))))
        chat.append((num_in, int(min(1024, max(8, rng.lognormvariate(5.0, 0.8))))))
    mixes = {f"batch{size}": [(128, 256)] * size for size in (1, 8, 32, 64, 128, 256)}
    return {**mixes, "chat512": chat, "prefill32x4096": [(4096, 16)] * 32}


def weight_bytes(shape: Shape, precision: str) -> int:
    """What a decode step streams: all matrices but the embedding; the head is bf16."""
    hidden = shape.hidden_size
    layer = (shape.q_size + 2 * shape.kv_size) * hidden + hidden * shape.q_size + 3 * hidden * shape.ffn_size
    value = 1 if precision == "fp8" else 2
    return value * shape.num_layers * layer + 2 * shape.vocab_size * hidden


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library")
    parser.add_argument("shape", choices=JUDGED)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    args = parser.parse_intermixed_args()
    library, shape = Library(args.library), JUDGED[args.shape]
    model = Model(library, shape, None, args.precision)
    reference.fill(model, seed=1)
    model.tile()
    runner = runner_for(model, slots=MAX_RUNNING, budget=BUDGET, context=CONTEXT, blocks=BLOCKS, graphs=True)
    streamed = weight_bytes(shape, args.precision) / 1e9
    print(f"{args.shape}, {args.precision}: {streamed:.2f} GB streamed a step")
    print("| workload | output tok/s | total tok/s | spread | first token s | step ms | step ms, host |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    rng = random.Random(2)
    for workload, requests in workloads().items():
        if args.workloads and workload not in args.workloads:
            continue
        timings = []
        for _ in range(1 + MEASURED):
            prompts = [[rng.randrange(shape.vocab_size) for _ in range(size)] for size, _ in requests]
            timing = Timing()
            new = [count for _, count in requests]
            outputs, _ = generate(runner, prompts, new, budget=BUDGET, max_running=MAX_RUNNING, timing=timing)
            assert [len(output) for output in outputs] == new
            timings.append(timing)
        row(workload, requests, timings[1:])
    runner.close()
    model.close()


def row(workload: str, requests: list[tuple[int, int]], timings: list[Timing]) -> None:
    """One line of the table."""
    walls = [timing.wall_s for timing in timings]
    wall = statistics.median(walls)
    num_out = sum(count for _, count in requests)
    total = num_out + sum(size for size, _ in requests)
    first, step, host = "", "", ""
    if workload.startswith("batch"):
        first_s = statistics.median(timing.first_s for timing in timings)
        steps = [
            seconds
            for timing in timings
            for seconds, rows in zip(timing.decode_s, timing.rows, strict=True)
            if rows == len(requests)
        ]
        first, step = f"{first_s:.4f}", f"{statistics.median(steps) * 1e3:.3f}"
        host = f"{(wall - first_s) / (requests[0][1] - 1) * 1e3:.3f}"
    spread = (max(walls) - min(walls)) / wall
    cells = (workload, f"{num_out / wall:,.1f}", f"{total / wall:,.1f}", f"{spread:.3f}", first, step, host)
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
