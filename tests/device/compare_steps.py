"""Steps of several builds of the library, in turns in one process.

python tests/device/compare_steps.py SHAPE [--precision fp8-kv8] [--rows 1,8,64] [--prompt 128] LIBRARY ...
python tests/device/compare_steps.py SHAPE --rows 32 --chunks 64,96 [--long 8192] LIBRARY LIBRARY@-1 ...

LIBRARY@WARPS: with so many warps of decode attention (IonCudaOptions), -1 the ring. At a card's power limit
figures of one run and the next differ by 3%, those taken in turns by well under 1%. Milliseconds on the
device of a step with so many rows at contexts of `--prompt` and up to 60 more: the median of the rounds'
medians, and the least. With `--chunks`: of a step that holds a chunk of a prompt of `--long` tokens beside
those rows, over the prompt's first, middle and last tenth, and of the steps without one.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable
from contextlib import ExitStack

from bench_workloads import BUDGET, MAX_RUNNING, opened, parser_of
from drive import BLOCK, Timing, generate
from ion_cuda import Runner
from shapes import JUDGED

PROMPT, NEW, ROUNDS = 128, 60, 5  # the first round is not counted


def blocks_for(lengths: Iterable[int]) -> int:
    """Few, so that several libraries fit."""
    return sum(length // BLOCK + 1 for length in lengths)


def decode_ms(timing: Timing, wanted: int) -> float:
    """The median of the steps of so many rows."""
    steps = zip(timing.decode_s, timing.rows, strict=True)
    return 1e3 * statistics.median(seconds for seconds, rows in steps if rows == wanted)


def step_ms(runner: Runner, prompts: list[list[int]]) -> list[float]:
    """One round."""
    timing = Timing()
    generate(runner, prompts, [NEW] * len(prompts), budget=BUDGET, max_running=MAX_RUNNING, timing=timing)
    return [decode_ms(timing, len(prompts))]


def chunk_ms(runner: Runner, prompts: list[list[int]], long: list[int], chunk: int) -> list[float]:
    """One round: steps of the long prompt's first, middle and last tenth, and steps without it."""
    timing, count = Timing(), -(-len(long) // chunk)
    new = [new_beside(len(prompts), len(long), chunk)] * len(prompts)
    generate(
        runner,
        [*prompts, long],
        [*new, 1],
        budget=len(prompts) + chunk,
        max_running=MAX_RUNNING,
        timing=timing,
    )
    steps, tenth = timing.prefill_s[-count:], max(1, count // 10)
    middle = count // 2
    parts = steps[:tenth], steps[middle : middle + tenth], steps[-tenth - 1 : -1]
    return [*(1e3 * statistics.median(part) for part in parts), decode_ms(timing, len(prompts))]


def new_beside(rows: int, long: int, chunk: int) -> int:
    """Tokens of those who decode while the long prompt comes, and some steps behind it."""
    return rows * PROMPT // chunk + 2 * long // chunk + NEW


def main() -> None:
    parser = parser_of(__doc__, has_library=False)
    parser.add_argument("libraries", nargs="+", metavar="LIBRARY")
    parser.add_argument("--rows", default="1,8,32,64,128,256")
    parser.add_argument("--prompt", type=int, default=PROMPT)
    parser.add_argument("--chunks", default="")
    parser.add_argument("--long", type=int, default=8192)
    args = parser.parse_intermixed_args()
    shape, rng = JUDGED[args.shape], random.Random(2)
    all_rows = [int(rows) for rows in args.rows.split(",")]
    chunks = [int(chunk) for chunk in args.chunks.split(",") if chunk]
    lengths = [args.prompt + NEW] * max(all_rows)
    if chunks:
        lengths = [PROMPT + new_beside(all_rows[0], args.long, min(chunks))] * all_rows[0] + [args.long + 1]

    def ids(count: int) -> list[int]:
        return [rng.randrange(shape.vocab_size) for _ in range(count)]

    def compare(title: str, measure: Callable[[Runner], list[float]]) -> None:
        rounds = [[measure(runner) for runner in runners] for _ in range(ROUNDS)][1:]
        cells = []
        for of_runner in zip(*rounds, strict=True):
            figures = list(zip(*of_runner, strict=True))
            cells.append(", ".join(f"{statistics.median(row):.4f} ({min(row):.4f})" for row in figures))
        print(f"| {title} | {' | '.join(cells)} |", flush=True)

    with ExitStack() as stack:
        runners = []
        for library in args.libraries:
            path, _, warps = library.partition("@")
            given = opened(
                path, shape, args.precision, blocks=blocks_for(lengths), decode_warps=int(warps or 0)
            )
            runners.append(stack.enter_context(given))
        print(f"| {args.shape}, {args.precision}, rows | {' | '.join(args.libraries)} |")
        print("|--:|" + "--:|" * len(runners))
        if not chunks:
            for rows in all_rows:
                prompts = [ids(args.prompt) for _ in range(rows)]
                compare(str(rows), lambda runner, prompts=prompts: step_ms(runner, prompts))
        for chunk in chunks:
            prompts, long = [ids(PROMPT) for _ in range(all_rows[0])], ids(args.long)
            compare(
                f"{all_rows[0]} and {chunk} of {args.long}",
                lambda runner, chunk=chunk, prompts=prompts, long=long: chunk_ms(
                    runner, prompts, long, chunk
                ),
            )


if __name__ == "__main__":
    main()
