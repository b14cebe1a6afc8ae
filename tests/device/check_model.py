"""A real model file on the card beside the CPU's `exact`: teacher-forced logits, then greedy answers.

python tests/device/check_model.py MODEL.gguf [LIBCUBLASLT]
"""

from __future__ import annotations

import select
import sys

import numpy as np
import numpy.typing as npt

from ionrouter.engine import _ion

NUM_NEW = 64
MAX_ERROR, MAX_GAP, MAX_PERPLEXITY = 1.5e-2, 0.15, 1.01  # engine.md, "Numbers", bf16
PROMPTS = 16


def ids_of(seed: int, vocab: int, count: int) -> list[int]:
    """Random ids, none of the special ones at the front of the vocabulary."""
    return np.random.default_rng(seed).integers(100, vocab, count).tolist()


def greedy(model: _ion.Model | _ion.CudaModel, prompts: list[list[int]]) -> list[list[int]]:
    """All prompts at once through the whole engine, end tokens ignored."""
    vocab = model.config["vocab_size"]
    token_bytes = [b"%d " % token for token in range(vocab)]
    engine = _ion.Engine(model, token_bytes, [], {"num_blocks": 2048, "max_running": 16})
    numbers = [
        engine.submit(prompt, max_tokens=NUM_NEW, temperature=0.0, ignore_eos=True) for prompt in prompts
    ]
    texts, left = dict.fromkeys(numbers, b""), len(numbers)
    while left:
        select.select([engine.event_fd], [], [])
        for event in engine.drain():
            texts[event[0]] += event[1]
            left -= (event[2] & 0xFF) != 0
    engine.close()
    return [[int(word) for word in texts[number].split()] for number in numbers]


def log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = logits - logits.max(1, keepdims=True)
    out: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return out


def main() -> int:
    """Print a line for each check; 0 if all held."""
    path, blaslt = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    exact = _ion.Model.load_gguf(path, "exact")
    cuda = _ion.CudaModel.load_gguf(path, 0, blaslt)
    vocab = exact.config["vocab_size"]
    prompts = [ids_of(seed, vocab, 20 + 9 * seed) for seed in range(PROMPTS)]
    answers = greedy(exact, prompts)
    texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    is_good, num_flips, num_positions = True, 0, 0
    worst_row = (0.0, 0, 0)
    worst_gap = error = reference = nll_exact = nll_cuda = 0.0
    for text in texts:
        wanted = np.asarray(exact.logits(text), dtype=np.float64)
        got = np.asarray(cuda.logits(text), dtype=np.float64)
        error += float(np.square(got - wanted).sum())
        reference += float(np.square(wanted).sum())
        flipped = got.argmax(1) != wanted.argmax(1)
        gaps = wanted.max(1) - np.take_along_axis(wanted, got.argmax(1)[:, None], 1)[:, 0]
        worst_gap = max(worst_gap, float(gaps.max()))
        per_row = np.linalg.norm(got - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
        worst_row = max(worst_row, (float(per_row.max()), int(per_row.argmax()), len(text)))
        num_flips, num_positions = num_flips + int(flipped.sum()), num_positions + len(text)
        following = np.array(text[1:])[:, None]
        nll_exact -= float(np.take_along_axis(log_softmax(wanted[:-1]), following, 1).sum())
        nll_cuda -= float(np.take_along_axis(log_softmax(got[:-1]), following, 1).sum())
    relative = (error / reference) ** 0.5
    ratio = float(np.exp((nll_cuda - nll_exact) / num_positions))
    for held, line in (
        (relative <= MAX_ERROR, f"relative error of {num_positions} positions' logits {relative:.2e}"),
        (
            worst_gap <= MAX_GAP,
            f"{num_flips} largest ids differ, by at most {worst_gap:.3f}",
        ),
        (1 / MAX_PERPLEXITY <= ratio <= MAX_PERPLEXITY, f"perplexity {ratio:.4f} of the reference's"),
    ):
        print("pass " if held else "FAIL ", line)
        is_good = is_good and held
    print(f"worst row: {worst_row[0]:.2e}, position {worst_row[1]} of {worst_row[2]}")
    on_card = greedy(cuda, prompts)
    same = sum(a == b for a, b in zip(answers, on_card, strict=True))
    parted = [
        next((i for i, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), NUM_NEW)
        for x, y in zip(answers, on_card, strict=True)
    ]
    print(f"greedy answers of {NUM_NEW} ids: {same} of {len(prompts)} equal; first differences at {parted}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
