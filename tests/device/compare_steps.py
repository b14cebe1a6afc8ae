"""Decode steps of several builds of the library, in turns in one process.

python tests/device/compare_steps.py SHAPE [--precision fp8-kv8] [--rows 1,8,64] LIBRARY LIBRARY ...

At a card's power limit figures of one run and the next differ by 3%, those taken in turns by well under 1%.
Milliseconds on the device of a step with so many rows at contexts of 128 to 188: the median of the rounds'
medians, and the least.
"""

from __future__ import annotations

import random
import statistics
from contextlib import ExitStack

from bench_workloads import BUDGET, MAX_RUNNING, opened, parser_of
from drive import Timing, generate
from ion_cuda import Runner
from shapes import JUDGED

PROMPT, NEW, ROUNDS = 128, 60, 5  # the first round is not counted
BLOCKS = MAX_RUNNING * ((PROMPT + NEW) // 16 + 1)  # few, so that several libraries fit


def step_ms(runner: Runner, prompts: list[list[int]]) -> float:
    """The median of one round."""
    timing = Timing()
    generate(runner, prompts, [NEW] * len(prompts), budget=BUDGET, max_running=MAX_RUNNING, timing=timing)
    rounds = zip(timing.decode_s, timing.rows, strict=True)
    return 1e3 * statistics.median(seconds for seconds, rows in rounds if rows == len(prompts))


def main() -> None:
    parser = parser_of(__doc__, has_library=False)
    parser.add_argument("libraries", nargs="+", metavar="LIBRARY")
    parser.add_argument("--rows", default="1,8,32,64,128,256")
    args = parser.parse_intermixed_args()
    shape, rng = JUDGED[args.shape], random.Random(2)
    with ExitStack() as stack:
        runners = [
            stack.enter_context(opened(library, shape, args.precision, blocks=BLOCKS))
            for library in args.libraries
        ]
        print(f"| {args.shape}, {args.precision}, rows | {' | '.join(args.libraries)} |")
        print("|--:|" + "--:|" * len(runners))
        for rows in map(int, args.rows.split(",")):
            prompts = [[rng.randrange(shape.vocab_size) for _ in range(PROMPT)] for _ in range(rows)]
            taken = [[step_ms(runner, prompts) for runner in runners] for _ in range(ROUNDS)][1:]
            columns = zip(*taken, strict=True)
            cells = (f"{statistics.median(column):.4f} ({min(column):.4f})" for column in columns)
            print(f"| {rows} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
