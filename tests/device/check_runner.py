"""The runner against the float32 reference: batches, graphs, resumed sequences, masks, host tier, bad steps.

python tests/device/check_runner.py LIBRARY [PRECISION ...]
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Sequence

import reference
import torch
from drive import generate, runner_for
from ion_cuda import GRAMMAR, SAMPLE, CSample, CudaError, Joined, Library, Model, Runner, Sampling, Shape
from precisions import CHECKED, PRECISIONS

# A greedy id may differ from the reference's only where its logit is that close (engine.md). The
# reference rounded to bf16, on the CPU, has gaps up to 0.06 with bf16-kv8 and 0.35 with fp8-kv8.
MAX_GAP = {name: 0.5 for name in PRECISIONS} | {"bf16": 0.15, "bf16-kv8": 0.25}
SHAPES = {
    "llama": Shape(3, 512, 8, 2, 64, 1024, 1024, rms_eps=1e-5),
    "qwen2": Shape(2, 896, 14, 2, 128, 1536, 2048, has_qkv_bias=True),
    "qwen3": Shape(2, 512, 8, 4, 128, 1024, 1536, has_qk_norm=True, is_head_tied=True),
    "windows": Shape(2, 512, 8, 2, 64, 1024, 1000, windows=(40, 300)),
}


def worst_gap(weights: reference.Weights, prompt: Sequence[int], output: Sequence[int]) -> float:
    """How far the chosen ids are below the largest logit, at most."""
    logits = reference.logits(weights, [*prompt, *output[:-1]])[len(prompt) - 1 :]
    chosen = logits.gather(1, torch.tensor(output, device="cuda")[:, None])[:, 0]
    return float((logits.max(1).values - chosen).max())


def worst_of(
    weights: reference.Weights,
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    samples: Sequence[Sequence[CSample]],
) -> float:
    """The worst gap of several, all of them finite."""
    assert all(sample.is_finite for sampled in samples for sample in sampled), "not finite"
    return max(worst_gap(weights, *each) for each in zip(prompts, outputs, strict=True))


def prompts_of(shape: Shape, count: int, longest: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(shape.vocab_size) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def open_runner(
    model: Model,
    *,
    graphs: bool,
    streams: bool,
    slots: int = 8,
    budget: int = 512,
    context: int = 512,
    decode_warps: int = 0,
) -> Runner:
    return runner_for(
        model,
        slots=slots,
        budget=budget,
        context=context,
        blocks=slots * (context // 16 + 1) + 8,
        graphs=graphs,
        streams=streams,
        decode_warps=decode_warps,
    )


def check_greedy(model: Model, weights: reference.Weights) -> str:
    """Forty prompts, eight at a time, prompts cut or whole, from graphs or not; and 256 of 300 at a time."""
    shape, worst = model.shape, 0.0
    for number, (graphs, streams, budget, slots, decode_warps) in enumerate(
        [
            (False, False, 512, 8, 0),
            (True, False, 64, 8, 1),
            (False, True, 512, 8, 2),
            (True, True, 512, 8, -1),
            (True, True, 64, 8, 0),
            (True, False, 4096, 256, 0),
            (True, True, 4096, 256, 0),
            (True, True, 4096, 256, -1),
        ]
    ):
        runner = open_runner(
            model, graphs=graphs, streams=streams, budget=budget, slots=slots, decode_warps=decode_warps
        )
        prompts = prompts_of(shape, 40 if slots == 8 else 300, 300, seed=number)
        new = [1 + (7 * i) % 40 for i in range(len(prompts))]
        outputs, samples = generate(runner, prompts, new, budget=budget, max_running=slots)
        worst = max(worst, worst_of(weights, prompts, outputs, samples))
        runner.close()
    assert worst < MAX_GAP[model.precision], f"an id {worst} below the largest"
    return f"largest gap {worst:.4f}"


def check_long(model: Model, weights: reference.Weights) -> str:
    """Few prompts of many rows, cut or whole, beside decode rows: the last layer is about few rows then."""
    shape, worst, rng = model.shape, 0.0, random.Random(1)
    prompts = [[rng.randrange(shape.vocab_size) for _ in range(count)] for count in (1900, 30, 1700, 901, 2)]
    for budget in (4096, 2100, 1400):
        runner = open_runner(model, graphs=True, streams=True, budget=budget, context=2048)
        outputs, samples = generate(runner, prompts, [9] * len(prompts), budget=budget, max_running=8)
        worst = max(worst, worst_of(weights, prompts, outputs, samples))
        runner.close()
    assert worst < MAX_GAP[model.precision], f"an id {worst} below the largest"
    return f"largest gap {worst:.4f}"


def check_resumed(model: Model, weights: reference.Weights) -> str:
    """A sequence joins again with what it had generated, in other blocks, its first block kept."""
    runner, prompt = open_runner(model, graphs=True, streams=True), prompts_of(model.shape, 1, 200, seed=5)[0]
    prompt = (prompt * 40)[:200]
    (output,), _ = generate(runner, [prompt], [12], budget=512, max_running=8)
    ids = prompt + output
    blocks = [(0, i, 20 + i) for i in range(1, 15)] + [(0, 0, 0)]  # block 0 still holds positions 0 to 15
    runner.submit(
        [(0, 16, len(ids) - 16, SAMPLE)],
        joins=[Joined(0, ids, Sampling(), len(prompt))],
        blocks=blocks,
    )
    polled = runner.poll()
    assert polled is not None
    got = [polled[0][0].id]
    for position in range(len(ids), len(ids) + 5):
        runner.submit([(0, position, 1, SAMPLE)])
        polled = runner.poll()
        assert polled is not None
        got.append(polled[0][0].id)
    runner.close()
    gap = worst_gap(weights, ids, got)
    assert gap < MAX_GAP[model.precision], f"an id {gap} below the largest"
    return f"largest gap {gap:.4f}"


def check_masks(model: Model, weights: reference.Weights) -> str:
    """Only allowed ids; the step behind waits for the masks and reads the masked id."""
    runner, shape = open_runner(model, graphs=True, streams=True), model.shape
    prompts = prompts_of(shape, 2, 50, seed=9)
    words = [0] * ((shape.vocab_size + 31) // 32)
    allowed = [3, 77, 500, 999]
    for token in allowed:
        words[token // 32] |= 1 << token % 32
    epoch = runner.submit(
        [(slot, 0, len(ids), SAMPLE | (GRAMMAR if slot == 0 else 0)) for slot, ids in enumerate(prompts)],
        joins=[Joined(slot, ids, Sampling()) for slot, ids in enumerate(prompts)],
        blocks=[(slot, i, 8 * slot + i) for slot in range(2) for i in range(8)],
    )
    runner.submit([(slot, len(ids), 1, SAMPLE) for slot, ids in enumerate(prompts)])
    assert runner.poll(wait=False) is None, "a step ended without its masks"
    runner.upload_masks(epoch, [(0, words)])
    first, second = runner.poll(), runner.poll()
    assert first is not None and second is not None
    runner.close()
    logits = reference.logits(weights, prompts[0])[-1]
    gap = max(float(logits[token]) for token in allowed) - float(logits[first[0][0].id])
    assert first[0][0].id in allowed and gap < MAX_GAP[model.precision], "a masked id"
    for slot, ids in enumerate(prompts):
        gap = worst_gap(weights, [*ids, first[0][slot].id], [second[0][slot].id])
        assert gap < MAX_GAP[model.precision], f"slot {slot} went on from another id: {gap}"
    return "masks kept"


def check_tier(model: Model, weights: reference.Weights) -> str:
    """Blocks out to the host and back into others hold the same prefix."""
    runner = Runner(
        model,
        max_slots=4,
        max_tokens_per_step=256,
        num_blocks=64,
        context_length=512,
        num_host_blocks=8,
        use_graphs=1,
    )
    prompt = (prompts_of(model.shape, 1, 90, seed=3)[0] * 90)[:90]
    runner.submit(
        [(0, 0, 90, SAMPLE)],
        joins=[Joined(0, prompt, Sampling())],
        blocks=[(0, i, i) for i in range(6)],
    )
    first = runner.poll()
    library, handle = runner.library.c, runner.handle
    tickets = [library.ion_cuda_copy_out(handle, block, block + 1) for block in range(5)]
    assert all(library.ion_cuda_copy_state(handle, ticket, 1) == 1 for ticket in tickets)
    tickets = [library.ion_cuda_copy_in(handle, block + 1, 40 + block) for block in range(5)]
    assert all(library.ion_cuda_copy_state(handle, ticket, 1) == 1 for ticket in tickets)
    runner.submit(
        [(1, 80, 10, SAMPLE)],
        joins=[Joined(1, prompt, Sampling())],
        blocks=[(1, i, 40 + i) for i in range(6)],
    )
    second = runner.poll()
    runner.close()
    assert first is not None and second is not None
    gap = worst_gap(weights, prompt, [second[0][1].id])
    assert gap < MAX_GAP[model.precision] and first[0][0].is_finite, f"an id {gap} below the largest"
    return "the prefix came back"


def check_bad_steps(model: Model, weights: reference.Weights) -> str:
    """A step that cannot be is its own failure; five are one too many; NaN stays with its sequence."""
    runner, shape = open_runner(model, graphs=True, streams=True), model.shape
    runner.submit([(3, 0, 1, SAMPLE)])
    try:
        runner.poll()
        raise AssertionError("a row without a sequence was run")
    except CudaError as error:
        assert "slot 3" in str(error), error
    if shape.is_head_tied:  # a NaN of the embedding would be everybody's logit
        runner.close()
        return "refused (NaN: not with a tied head)"
    poisoned = shape.vocab_size - 1
    weights[reference.EMBEDDING, 0][poisoned] = float("nan")
    prompts = [[5, 6, 7, poisoned], [8, 9, 10, 11]]
    runner.submit(
        [(slot, 0, 4, SAMPLE) for slot in range(2)],
        joins=[Joined(slot, ids, Sampling()) for slot, ids in enumerate(prompts)],
        blocks=[(0, 0, 0), (1, 0, 1)],
    )
    polled = runner.poll()
    assert polled is not None
    assert not polled[0][0].is_finite and polled[0][0].id == -1, "NaN was sampled"
    # The blocks of the poisoned one go to another sequence, which must not see them.
    runner.submit(
        [(2, 0, 3, SAMPLE)], joins=[Joined(2, [5, 6, 7], Sampling())], leaves=[0], blocks=[(2, 0, 0)]
    )
    later = runner.poll()
    weights[reference.EMBEDDING, 0][poisoned] = 0.0
    assert later is not None and later[0][2].is_finite, "NaN of an earlier sequence came through"
    gap = worst_gap(weights, prompts[1], [polled[0][1].id])
    assert polled[0][1].is_finite and gap < MAX_GAP[model.precision], f"an id {gap} below the largest"
    for position in range(4, 8):
        runner.submit([(1, position, 1, SAMPLE)])
    try:
        runner.submit([(1, 8, 1, SAMPLE)])
        raise AssertionError("five steps in flight")
    except CudaError:
        pass
    while runner.poll() is not None:
        pass
    runner.close()
    return "refused, and survived"


CHECKS: tuple[Callable[[Model, reference.Weights], str], ...] = (
    check_greedy,
    check_long,
    check_resumed,
    check_masks,
    check_tier,
    check_bad_steps,
)


def check(library: Library, blaslt: str | None, precisions: Sequence[str]) -> bool:
    """Print a line for each shape and check; whether all held."""
    is_good = True
    for (name, shape), precision in itertools.product(SHAPES.items(), precisions):
        model = Model(library, shape, blaslt, precision)
        weights = reference.fill(model, seed=len(name))
        model.tile()
        for run in CHECKS:
            label = f"{run.__name__}, {name}, {precision}"
            try:
                outcome = f"pass  {label}: {run(model, weights)}"
            except (AssertionError, CudaError) as error:
                outcome, is_good = f"FAIL  {label}: {error}", False
            print(outcome, flush=True)
        model.close()
    return is_good


if __name__ == "__main__":
    sys.exit(0 if check(Library(sys.argv[1]), None, sys.argv[2:] or CHECKED) else 1)
