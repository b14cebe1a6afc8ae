"""With is_deterministic a sequence's ids and log-probabilities have the same bits however it is computed.

python tests/device/check_deterministic.py LIBRARY [PRECISION ...]

Each sequence is computed alone, its prompt in one step, without graphs. Then again: prompts cut at several
sizes, from graphs or not, in the company of a few or some hundred others, in other slots and orders, and
taken up again over blocks that an earlier sequence left. Every byte of every sample must be the same. Where
there are no tiled weights a runner is refused.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import reference
from drive import BLOCK, generate, runner_for
from ion_cuda import SAMPLE, CSample, CudaError, Joined, Library, Model, Runner, Sampling
from precisions import CHECKED
from shapes import SMALL

SHAPES = {
    **{name: SMALL[name] for name in ("whole tiles, split and stream-K", "whole tiles, small")},
    "whole tiles, windows": replace(SMALL["mistral, windows of 40 and 0"], vocab_size=1024),
    "whole tiles, windows everywhere": replace(SMALL["windows everywhere"], vocab_size=1024),
    "whole tiles, norms of q and k": replace(SMALL["qwen3, norms of q and k, tied"], vocab_size=1536),
}
UNTILED = SMALL["head_dim 96"]
# Around the borders of blocks, of parts of attention, and of tiles of rows.
LENGTHS = (1, 16, 100, 128, 129, 255, 256, 257, 511, 600, 1100)
NEW, CONTEXT = 12, 1152
KEPT, TAKEN_UP_AT = 3, 5  # blocks that a prefix cache held; generated ids before a preemption


@dataclass(frozen=True)
class Asked:
    """A sequence to compute."""

    prompt: list[int]
    sampling: Sampling


@dataclass(frozen=True)
class Way:
    """How sequences are computed: tokens a step, from graphs or not, with so many others."""

    budget: int
    graphs: bool
    others: int | None = None  # None: each alone

    def __str__(self) -> str:
        company = "alone" if self.others is None else f"with {self.others} others"
        return f"{company}, {self.budget} tokens a step, {'graphs' if self.graphs else 'no graphs'}"


FIRST = Way(2048, graphs=False)
WAYS = (
    *(Way(budget, graphs=True) for budget in (1, 7, 64, 300)),
    Way(64, graphs=False),
    Way(64, graphs=True, others=5),
    Way(300, graphs=False, others=20),
    Way(200, graphs=True, others=120),  # more than 128 rows
    Way(700, graphs=True, others=300),  # more than 256 rows
    Way(4096, graphs=True, others=150),
    Way(4096, graphs=False, others=300),
    Way(4096, graphs=True, others=300),
)


def sequences(vocab_size: int, lengths: Sequence[int], rng: random.Random) -> list[Asked]:
    """Half greedy, half sampled from a seed, some with penalties; all tell log-probabilities."""
    out = []
    for number, length in enumerate(lengths):
        prompt = [rng.randrange(vocab_size) for _ in range(length)]
        sampling = Sampling(num_logprobs=5)
        if number % 2:
            sampling = Sampling(temperature=0.9, top_p=0.95, seed=rng.getrandbits(60), num_logprobs=5)
        if number % 4 == 3:
            sampling = replace(sampling, repetition_penalty=1.2, frequency_penalty=0.3)
        out.append(Asked(prompt, sampling))
    return out


def open_runner(model: Model, asked: Sequence[Asked], *, budget: int, graphs: bool) -> Runner:
    return runner_for(
        model,
        slots=len(asked),
        budget=budget,
        context=CONTEXT,
        blocks=sum((len(one.prompt) + NEW) // BLOCK + 2 for one in asked),
        graphs=graphs,
        deterministic=True,
    )


def together(model: Model, asked: Sequence[Asked], *, budget: int, graphs: bool) -> list[list[bytes]]:
    """The samples of sequences that run beside each other."""
    runner = open_runner(model, asked, budget=budget, graphs=graphs)
    _, samples = generate(
        runner,
        [one.prompt for one in asked],
        [NEW] * len(asked),
        budget=budget,
        max_running=len(asked),
        sampling=[one.sampling for one in asked],
    )
    runner.close()
    assert all(sample.is_finite for row in samples for sample in row), "not finite"
    return [[bytes(sample) for sample in row] for row in samples]


def compute(model: Model, asked: Sequence[Asked], way: Way) -> list[list[bytes]]:
    """The samples of `asked`, in their order, whatever the order they were computed in."""
    if way.others is None:
        return [together(model, [one], budget=way.budget, graphs=way.graphs)[0] for one in asked]
    rng = random.Random(way.others + way.budget)
    lengths = [rng.randint(1, 60) for _ in range(way.others)]
    crowd = [*asked, *sequences(model.shape.vocab_size, lengths, rng)]
    order = list(range(len(crowd)))
    rng.shuffle(order)
    found = together(model, [crowd[i] for i in order], budget=way.budget, graphs=way.graphs)
    return [found[order.index(i)] for i in range(len(asked))]


def taken_up_again(model: Model, one: Asked, wanted: Sequence[bytes], budget: int) -> list[bytes]:
    """The later samples of a preempted sequence: its first blocks are in the cache, it joins with its ids."""
    runner = runner_for(
        model, slots=2, budget=4096, context=CONTEXT, blocks=400, graphs=True, deterministic=True
    )
    ids = [*one.prompt, *(CSample.from_buffer_copy(sample).id for sample in wanted[:TAKEN_UP_AT])]
    num_blocks = (len(one.prompt) + NEW) // BLOCK + 1
    kept = min(KEPT, len(one.prompt) // BLOCK)
    # Somebody else with the same beginning leaves it in the first blocks.
    if kept:
        runner.submit(
            [(1, 0, kept * BLOCK, 0)],
            joins=[Joined(1, ids[: kept * BLOCK], Sampling())],
            blocks=[(1, i, i) for i in range(kept)],
        )
        runner.poll()
    joins = [Joined(0, ids, one.sampling, len(one.prompt))]
    blocks = [(0, i, i if i < kept else 399 - i) for i in range(num_blocks)]
    found, start = [], kept * BLOCK
    while len(found) < NEW - TAKEN_UP_AT:
        count = min(budget, len(ids) - start) if start < len(ids) else 1
        is_sampled = start + count >= len(ids)
        runner.submit([(0, start, count, SAMPLE if is_sampled else 0)], joins=joins, blocks=blocks)
        polled = runner.poll()
        assert polled is not None
        if is_sampled:
            found.append(bytes(polled[0][0]))
        joins, blocks, start = [], [], start + count
    runner.close()
    return found


def difference(found: Sequence[bytes], wanted: Sequence[bytes]) -> str | None:
    """Where two rows of samples part; None if nowhere."""
    assert len(found) == len(wanted), f"{len(found)} samples instead of {len(wanted)}"
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if one != other:
            a, b = CSample.from_buffer_copy(one), CSample.from_buffer_copy(other)
            return f"token {number}: id {a.id}, {a.logprob!r}, instead of {b.id}, {b.logprob!r}"
    return None


def check_bits(model: Model) -> str:
    """All ways against the first."""
    asked = sequences(model.shape.vocab_size, LENGTHS, random.Random(4))
    wanted, differing, runs = compute(model, asked, FIRST), [], 1
    for way in WAYS:
        runs += 1
        for one, found, expected in zip(asked, compute(model, asked, way), wanted, strict=True):
            if (where := difference(found, expected)) is not None:
                differing.append(f"{way}, prompt of {len(one.prompt)}: {where}")
    for budget in (3, 4096):
        runs += 1
        for one, expected in zip(asked, wanted, strict=True):
            found_later = taken_up_again(model, one, expected, budget)
            if (where := difference(found_later, expected[TAKEN_UP_AT:])) is not None:
                differing.append(
                    f"taken up again, {budget} tokens a step, prompt of {len(one.prompt)}: {where}"
                )
    assert not differing, f"{len(differing)} of {runs * len(asked)} sequences differ: " + "; ".join(
        differing[:5]
    )
    return f"{len(asked)} sequences in {runs} ways, the same bits"


def check_refused(model: Model) -> str:
    """Without tiled weights, or told not to use them, there is no runner, and the error says why."""
    asked = sequences(model.shape.vocab_size, [1], random.Random(1))
    try:
        open_runner(model, asked, budget=16, graphs=True)
        raise AssertionError("a runner without tiled weights")
    except CudaError as error:
        assert "numerics: deterministic" in str(error), error
        assert "whole tiles" in str(error) or "Hopper" in str(error), error
        return str(error)


def run(label: str, check: Callable[[Model], str], model: Model) -> bool:
    """Print one line; whether it held."""
    try:
        print(f"pass  deterministic, {label}: {check(model)}", flush=True)
        return True
    except (AssertionError, CudaError) as error:
        print(f"FAIL  deterministic, {label}: {error}", flush=True)
        return False


def main() -> int:
    library, is_good = Library(sys.argv[1]), True
    for (name, shape), precision in itertools.product(SHAPES.items(), sys.argv[2:] or CHECKED):
        model = Model(library, shape, None, precision)
        reference.fill(model, seed=len(name))
        model.tile()
        is_good = run(f"{name}, {precision}", check_bits, model) and is_good
        model.close()
    model = Model(library, UNTILED, None)
    model.tile()
    is_good = run("not in whole tiles", check_refused, model) and is_good
    model.close()
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
