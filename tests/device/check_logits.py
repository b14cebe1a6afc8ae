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
CHUNKS = (1, 7, 16, 30, 64, 100, 512)
PORTABLE_CHUNKS = (16, 100, 512)  # of the kernels for all cards: only prompts have their own
# Relative, of a row's logits and of all together (engine.md). With fp8 what the card rounds otherwise than
# the reference moves values to the next code, 6% away, and so on from product to product: check_e4m3.py says
# more.
MAX_ERROR = {"bf16": (1.5e-2, 1.5e-2), "fp8": (1.5e-1, 6e-2)}


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


def check_model(model: Model, weights: reference.Weights, name: str, *, streams: bool = True) -> bool:
    """One line: the errors of the worst row and of all, and whether a second run gave the same bits."""
    shape, rng, worst, where, is_same = model.shape, random.Random(name), 0.0, "", True
    apart, whole = 0.0, 0.0  # squares
    for length in LENGTHS:
        ids = [rng.randrange(shape.vocab_size) for _ in range(length)]
        wanted = reference.logits(weights, ids)
        for chunk in CHUNKS if streams else PORTABLE_CHUNKS:
            if chunk > length and chunk != 512:
                continue
            got = torch.frombuffer(model.logits(ids, chunk, streams=streams), dtype=torch.float32)
            if length == LENGTHS[-1]:
                again = torch.frombuffer(model.logits(ids, chunk, streams=streams), dtype=torch.float32)
                is_same = is_same and torch.equal(got, again)
            got = got.view(length, shape.vocab_size).cuda()
            errors, sizes = (got - wanted).norm(dim=1), wanted.norm(dim=1)
            error = float((errors / sizes).max()) if bool(got.isfinite().all()) else float("inf")
            apart, whole = apart + float(errors.square().sum()), whole + float(sizes.square().sum())
            if not error <= worst:
                worst, where = error, f"length {length}, chunk {chunk}, row {int((errors / sizes).argmax())}"
    of_all, (most, most_of_all) = (apart / whole) ** 0.5, MAX_ERROR[model.precision]
    held = worst <= most and of_all <= most_of_all and is_same
    said = f"{worst:.2e} at {where}, of all {of_all:.2e}{'' if is_same else '; other bits when run again'}"
    print(f"{'pass' if held else 'FAIL'}  logits, {name}: {said}", flush=True)
    return held


if __name__ == "__main__":
    sys.exit(0 if check(Library(sys.argv[1]), None, sys.argv[2:] or PRECISIONS) else 1)
