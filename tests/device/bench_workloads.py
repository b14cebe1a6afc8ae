"""Whole workloads of a judged shape with random weights, with peers' numbers of tokens in and out.

python tests/device/bench_workloads.py LIBRARY SHAPE [--precision fp8-kv8] [--deterministic] [WORKLOAD ...]

Greedy, ends ignored, no prefix cache, at most 256 sequences, every id delivered. A workload runs once
unmeasured and then three times; medians, and the spread (largest - smallest) / median. `step`: milliseconds
on the device of a decode step with all sequences, and of (all - first token) / (tokens - 1) by the host.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import reference
from drive import Timing, generate, runner_for
from ion_cuda import Library, Model, Runner, Shape
from precisions import PRECISIONS, has_fp8_head, matrix_precision
from shapes import JUDGED

sys.path.append(str(Path(__file__).resolve().parents[2]))  # ionrouter need not be installed beside a GPU

from ionrouter.benchmark.engine_workloads import Workload, workloads

MAX_RUNNING, CONTEXT = 256, 8448
BUDGET = 8192 + MAX_RUNNING  # of a step: prompts' tokens, and a row of each that decodes beside them
BLOCKS = 17408  # of 16 tokens: 32 x 8,320
MEASURED = 3


def weight_bytes(shape: Shape, precision: str) -> int:
    """What a decode step streams: all matrices but the embedding."""
    hidden = shape.hidden_size
    layer = (shape.q_size + 2 * shape.kv_size) * hidden + hidden * shape.q_size + 3 * hidden * shape.ffn_size
    value = 1 if matrix_precision(precision) == "fp8" else 2
    of_head = 1 if has_fp8_head(precision) else 2
    return value * shape.num_layers * layer + of_head * shape.vocab_size * hidden


def parser_of(description: str | None, *, has_library: bool = True) -> argparse.ArgumentParser:
    """What is asked of who measures a judged shape."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if has_library:
        parser.add_argument("library")
    parser.add_argument("shape", choices=JUDGED)
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    return parser


@contextmanager
def opened(
    library: str,
    shape: Shape,
    precision: str,
    *,
    deterministic: bool = False,
    blocks: int = BLOCKS,
    decode_warps: int = 0,
) -> Iterator[Runner]:
    """A runner over random weights, with the limits that peers get."""
    model = Model(Library(library), shape, None, precision)
    reference.fill(model, seed=1)
    model.tile()
    runner = runner_for(
        model,
        slots=MAX_RUNNING,
        budget=BUDGET,
        context=CONTEXT,
        blocks=blocks,
        graphs=True,
        deterministic=deterministic,
        decode_warps=decode_warps,
    )
    try:
        yield runner
    finally:
        runner.close()
        model.close()


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD")
    args = parser.parse_intermixed_args()
    shape = JUDGED[args.shape]
    streamed = weight_bytes(shape, args.precision) / 1e9
    numerics = "deterministic" if args.deterministic else "fast"
    print(f"{args.shape}, {args.precision}, {numerics}: {streamed:.2f} GB streamed a step")
    print("| workload | output tok/s | total tok/s | spread | first token s | step ms | step ms, host |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    rng = random.Random(2)
    with opened(args.library, shape, args.precision, deterministic=args.deterministic) as runner:
        for workload in workloads().values():
            if args.workloads and workload.name not in args.workloads:
                continue
            if workload.longest > CONTEXT:
                print(f"| {workload.name} | needs {workload.longest:,} positions |||||||", flush=True)
                continue
            row(workload, measured(runner, workload, shape.vocab_size, rng))


def measured(runner: Runner, workload: Workload, vocab_size: int, rng: random.Random) -> list[Timing]:
    """The runs behind the first."""
    new, timings = [count for _, count in workload.requests], []
    for _ in range(1 + MEASURED):
        prompts = [[rng.randrange(vocab_size) for _ in range(size)] for size, _ in workload.requests]
        timing = Timing()
        outputs, _ = generate(runner, prompts, new, budget=BUDGET, max_running=MAX_RUNNING, timing=timing)
        assert [len(output) for output in outputs] == new
        timings.append(timing)
    return timings[1:]


def row(workload: Workload, timings: list[Timing]) -> None:
    """One line of the table."""
    walls = [timing.wall_s for timing in timings]
    wall = statistics.median(walls)
    first, step, host = "", "", ""
    if workload.name.startswith("batch"):
        first_s = statistics.median(timing.first_s for timing in timings)
        steps = [
            seconds
            for timing in timings
            for seconds, rows in zip(timing.decode_s, timing.rows, strict=True)
            if rows == len(workload.requests)
        ]
        first, step = f"{first_s:.4f}", f"{statistics.median(steps) * 1e3:.3f}"
        host = f"{(wall - first_s) / (workload.requests[0][1] - 1) * 1e3:.3f}"
    print_row(workload, walls, first, step, host)


def print_row(workload: Workload, walls: Sequence[float], *more: str) -> None:
    """Rates by the median of some runs' seconds, their spread, and what else is known."""
    wall = statistics.median(walls)
    rates = (workload.num_out / wall, (workload.num_in + workload.num_out) / wall)
    spread = (max(walls) - min(walls)) / wall
    cells = (workload.name, *(f"{rate:,.1f}" for rate in rates), f"{spread:.3f}", *more)
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
