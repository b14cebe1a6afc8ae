"""Teacher-forced logits against the float32 reference, over lengths and cuts that cross every border.

python tests/device/check_logits.py LIBRARY [PRECISION ...]
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

import reference
import torch
from ion_cuda import PRECISIONS, Library, Model, Shape
from shapes import SMALL

LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 300, 777)
CHUNKS = (1, 7, 16, 30, 64, 70, 100, 160, 240, 512)
PORTABLE_CHUNKS = (16, 100, 512)  # of the kernels for all cards: only prompts have their own
MAX_ERROR = 1.5e-2  # relative, of a row's logits (engine.md)
# With fp8 what is rounded to bf16 on the way gets the next code, 6% away, and so on from product to product;
# how far that goes depends on the model. So the reference is computed a second time, rounded to bf16 where
# the card rounds: the card may be so many times as far from the reference as that, over all rows, and in the
# worst one of its sample. check_e4m3.py checks the operations one by one.
MAX_RATIO, MAX_WORST_RATIO = 1.05, 1.3


def check(library: Library, blaslt: str | None, precisions: Sequence[str]) -> bool:
    """Print a line for each shape; whether all held."""
    is_good = True
    for precision in precisions:
        for name, shape in SMALL.items():
            model = Model(library, shape, blaslt, precision)
            weights = reference.fill(model, seed=len(name))
            title = f"{name}, {precision}"
            is_good = check_model(model, weights, title) and is_good
            is_good = check_model(model, weights, f"{title}, portable", streams=False) and is_good
            if can_stream(shape, precision):
                model.tile()
                is_good = check_model(model, weights, f"{title}, streamed") and is_good
            model.close()
    return is_good


def can_stream(shape: Shape, precision: str) -> bool:
    """Whole tiles of 128 rows and of 128 bytes everywhere."""
    sizes = (shape.q_size + 2 * shape.kv_size, shape.hidden_size, 2 * shape.ffn_size, shape.vocab_size)
    width = 128 if precision == "fp8" else 64
    return all(size % 128 == 0 for size in sizes) and shape.q_size % width == shape.ffn_size % width == 0


class Distance:
    """Of rows of logits from the reference's: the worst, and over all."""

    def __init__(self) -> None:
        self.worst, self.where = 0.0, ""
        self._apart, self._whole = 0.0, 0.0  # squares

    def add(self, got: torch.Tensor, wanted: torch.Tensor, where: str) -> None:
        errors, sizes = (got - wanted).norm(dim=1), wanted.norm(dim=1)
        error = float((errors / sizes).max()) if bool(got.isfinite().all()) else float("inf")
        self._apart += float(errors.square().sum())
        self._whole += float(sizes.square().sum())
        if not error <= self.worst:
            self.worst, self.where = error, f"{where}, row {int((errors / sizes).argmax())}"

    @property
    def of_all(self) -> float:
        return (self._apart / self._whole) ** 0.5


def check_model(model: Model, weights: reference.Weights, name: str, *, streams: bool = True) -> bool:
    """One line: the errors of the worst row and of all, and whether a second run gave the same bits."""
    shape, rng, is_same = model.shape, random.Random(name), True
    card, rounded = Distance(), Distance()
    for length in LENGTHS:
        ids = [rng.randrange(shape.vocab_size) for _ in range(length)]
        wanted = reference.logits(weights, ids)
        if model.precision == "fp8":
            rounded.add(reference.logits(weights, ids, is_rounded=True), wanted, "")
        for chunk in CHUNKS if streams else PORTABLE_CHUNKS:
            if chunk > length and chunk != 512:
                continue
            got = torch.frombuffer(model.logits(ids, chunk, streams=streams), dtype=torch.float32)
            if length == LENGTHS[-1]:
                again = torch.frombuffer(model.logits(ids, chunk, streams=streams), dtype=torch.float32)
                is_same = is_same and torch.equal(got, again)
            got = got.view(length, shape.vocab_size).cuda()
            card.add(got, wanted, f"length {length}, chunk {chunk}")
    held, said = card.worst <= MAX_ERROR, ""
    if model.precision == "fp8":
        held = card.of_all <= MAX_RATIO * rounded.of_all and card.worst <= MAX_WORST_RATIO * rounded.worst
        said = f" (the reference rounded: {rounded.worst:.2e}, {rounded.of_all:.2e})"
    held = held and is_same
    said = f"{card.worst:.2e} at {card.where}, of all {card.of_all:.2e}{said}"
    said += "" if is_same else "; other bits when run again"
    print(f"{'pass' if held else 'FAIL'}  logits, {name}: {said}", flush=True)
    return held


if __name__ == "__main__":
    sys.exit(0 if check(Library(sys.argv[1]), None, sys.argv[2:] or PRECISIONS) else 1)
