"""Where the time of a step on the GPU goes: each kernel's share of the critical path.

python tests/device/profile_steps.py LIBRARY SHAPE [--precision fp8-kv8] STEP ...

STEP: `d64`, steps of 64 decode rows; `d8x4000`, the same with prompts of 4,000 tokens behind them; `p2x4096`,
a step of two whole prompts of 4,096 tokens; `m9x8192`, the step in which the ninth prompt of 8,192 tokens
comes, beside the decode rows of those before it. A kernel's own time runs from the end of the one that ended
before it to its end: kernels of a chain of dependent launches overlap, so what each took from start to end
(`run`) adds up to more than the step. A kernel that comes several times in a layer has a line for each: `2/4`
is the second of four.
"""

from __future__ import annotations

import collections
import itertools
import random
from typing import NamedTuple

from bench_workloads import BUDGET, MAX_RUNNING, opened, parser_of
from drive import generate
from ion_cuda import Runner
from shapes import JUDGED
from torch.profiler import ProfilerActivity, profile

DECODE_PROMPT, DECODE_STEPS, SHOWN = 128, 40, 18


class Kernel(NamedTuple):
    """Microseconds."""

    start: float
    end: float
    name: str


def kernels_of(runner: Runner, prompts: list[list[int]], count: int) -> list[Kernel]:
    """In the order of their starts, of the third of three runs."""

    def run() -> None:
        generate(runner, prompts, [count] * len(prompts), budget=BUDGET, max_running=MAX_RUNNING)

    run(), run()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run()
    events = [event for event in profiled.events() if event.device_type.name == "CUDA"]
    return sorted(Kernel(event.time_range.start, event.time_range.end, event.name) for event in events)


def steps_of(kernels: list[Kernel]) -> list[list[Kernel]]:
    """From one embedding of a step's rows to the next."""
    begins = [i for i, kernel in enumerate(kernels) if "embed_kernel" in kernel.name]
    return [kernels[begin:end] for begin, end in itertools.pairwise(begins)]


def short(name: str) -> str:
    """Without namespaces and most parameters."""
    for noise in ("ion::cuda::", "(anonymous namespace)::", "void "):
        name = name.replace(noise, "")
    return name[:64]


def places_of(step: list[Kernel], num_layers: int) -> list[str]:
    """Each kernel's name, and which of those of that name in its layer it is."""
    total = collections.Counter(short(kernel.name) for kernel in step)
    seen, places = collections.Counter[str](), []
    for kernel in step:
        name = short(kernel.name)
        number, of_layer = seen[name], total[name] // num_layers
        seen[name] += 1
        if of_layer > 1:
            is_behind = number >= of_layer * num_layers
            name += " behind" if is_behind else f" {number % of_layer + 1}/{of_layer}"
        places.append(name)
    return places


def report(title: str, steps: list[list[Kernel]], num_layers: int) -> None:
    """A table of what is longest, in microseconds a step."""
    own, run, count = collections.Counter[str](), collections.Counter[str](), collections.Counter[str]()
    span = 0.0
    for step in steps:
        last = step[0].start
        span += max(kernel.end for kernel in step) - step[0].start
        placed = zip(step, places_of(step, num_layers), strict=True)
        for kernel, name in sorted(placed, key=lambda pair: pair[0].end):
            own[name] += kernel.end - last
            run[name] += kernel.end - kernel.start
            count[name] += 1
            last = kernel.end
    size = len(steps)
    print(f"{title}: {span / size:,.0f} us a step\n| kernel | number | own us | run us |\n|---|--:|--:|--:|")
    for name, microseconds in own.most_common(SHOWN):
        print(f"| {name} | {count[name] / size:.1f} | {microseconds / size:.1f} | {run[name] / size:.1f} |")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("steps", nargs="+", metavar="STEP")
    args = parser.parse_intermixed_args()
    shape, rng = JUDGED[args.shape], random.Random(2)
    with opened(args.library, shape, args.precision) as runner:
        for step in args.steps:
            number, _, size = step[1:].partition("x")
            length = int(size) if size else DECODE_PROMPT
            prompts = [[rng.randrange(shape.vocab_size) for _ in range(length)] for _ in range(int(number))]
            count = {"d": DECODE_STEPS, "p": 3, "m": len(prompts) + 1}[step[0]]
            steps = steps_of(kernels_of(runner, prompts, count))
            shown = {"d": steps[-12:-2], "p": steps[:1], "m": steps[len(prompts) - 1 : len(prompts)]}[step[0]]
            report(f"{args.shape}, {args.precision}, {step}", shown, shape.num_layers)


if __name__ == "__main__":
    main()
