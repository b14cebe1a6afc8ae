"""Kernels that wait for each other by flags give the same bits, whatever the timing: over 1,000 times.

python tests/device/check_replays.py LIBRARY [PRECISION ...]

The race checkers know neither mbarriers nor the copy engine nor flags between blocks; comparing results is
what shows a missing wait. Prompts and decode steps of several batch sizes run again and again, the host
pausing for random times.
"""

from __future__ import annotations

import random
import struct
import sys
import time
from collections.abc import Sequence

import reference
from drive import generate, runner_for
from ion_cuda import CSample, Library, Model, Runner, Sampling, Shape
from precisions import CHECKED

SHAPE = Shape(2, 512, 8, 2, 128, 1024, 1024, has_qkv_bias=True)
REPLAYS = {1: 400, 8: 400, 40: 200, 100: 100, 260: 30}  # by sequences
# Beside four sequences one prompt in chunks: its pieces are cut more and more, and merge together.
LONG, CHUNK, LONG_REPLAYS = 8000, 60, 20
LONGEST_S = 30.0  # of one line: more would be a hang
NEW, MAX_PAUSE_S = 6, 3e-4


class Pausing:
    """A runner whose steps come at random times."""

    def __init__(self, runner: Runner, seed: int) -> None:
        self._runner, self._rng = runner, random.Random(seed)

    def submit(self, *args: object, **kwargs: object) -> None:
        if self._rng.random() < 0.3:
            time.sleep(self._rng.random() * MAX_PAUSE_S)
        self._runner.submit(*args, **kwargs)  # type: ignore[arg-type]

    def poll(self) -> object:
        return self._runner.poll()


def bits(samples: Sequence[Sequence[CSample]]) -> bytes:
    """Ids and log-probabilities as they are."""
    parts = [struct.pack("<if", sample.id, sample.logprob) for row in samples for sample in row]
    return b"".join(parts)


def replay(model: Model, count: int, times: int, *, long: int = 0, budget: int = 4096) -> tuple[int, int]:
    """How often it ran, and how often the bits were not those of the first time."""
    rng = random.Random(count)
    lengths = [*(rng.randrange(1, 120) for _ in range(count)), *([long] if long else [])]
    prompts = [[rng.randrange(SHAPE.vocab_size) for _ in range(length)] for length in lengths]
    asked = [Sampling(num_logprobs=1) for _ in prompts]
    context, count = max(256, long + NEW), len(prompts)
    blocks = 16 * count + long // 16
    runner = runner_for(model, slots=count, budget=budget, context=context, blocks=blocks, graphs=True)
    first, others, begun, ran = b"", 0, time.monotonic(), 0
    for ran in range(1, times + 1):
        pausing = Pausing(runner, ran)
        _, samples = generate(
            pausing,  # type: ignore[arg-type]
            prompts,
            [NEW] * count,
            budget=budget,
            max_running=count,
            sampling=asked,
        )
        first = first or bits(samples)
        others += bits(samples) != first
        if time.monotonic() - begun > LONGEST_S:
            break
    runner.close()
    return ran, others


def told(precision: str, name: str, times: int, found: tuple[int, int]) -> bool:
    """Print a line; whether it held."""
    ran, others = found
    held = others == 0 and ran == times
    word = "pass" if held else "FAIL"
    print(f"{word}  replays, {precision}, {name}: {ran} runs, {others} with other bits", flush=True)
    return held


def main() -> int:
    library, is_good = Library(sys.argv[1]), True
    for precision in sys.argv[2:] or CHECKED:
        model = Model(library, SHAPE, None, precision)
        reference.fill(model, seed=3)
        model.tile()
        for count, times in REPLAYS.items():
            found = replay(model, count, times)
            is_good = told(precision, f"{count} sequences", times, found) and is_good
        found = replay(model, 4, LONG_REPLAYS, long=LONG, budget=CHUNK)
        is_good = told(precision, f"a prompt of {LONG} by {CHUNK}", LONG_REPLAYS, found) and is_good
        model.close()
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
