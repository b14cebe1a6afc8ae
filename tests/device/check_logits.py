"""Teacher-forced logits against the float32 reference, over lengths and cuts that cross every border.

python tests/device/check_logits.py LIBRARY
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

import reference
import torch
from ion_cuda import Library, Model, Shape
from shapes import SMALL

LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 300, 777)
CHUNKS = (1, 7, 16, 30, 64, 100, 512)
PORTABLE_CHUNKS = (16, 100, 512)  # of the kernels for all cards: only prompts have their own
MAX_ERROR = 1.5e-2  # relative, of all logits of a text (engine.md, "Numbers")


def check(library: Library, blaslt: str | None) -> bool:
    """Print a line for each shape; whether all held."""
    is_good = True
    for name, shape in SMALL.items():
        model = Model(library, shape, blaslt)
        weights = reference.fill(model, seed=len(name))
        is_good = check_model(model, weights, name, CHUNKS) and is_good
        portable = f"{name}, portable"
        is_good = check_model(model, weights, portable, PORTABLE_CHUNKS, streams=False) and is_good
        if can_stream(shape):
            model.tile()
            is_good = check_model(model, weights, f"{name}, streamed", CHUNKS) and is_good
        model.close()
    return is_good


def can_stream(shape: Shape) -> bool:
    """Whole tiles of 128 rows everywhere."""
    sizes = (shape.q_size + 2 * shape.kv_size, shape.hidden_size, 2 * shape.ffn_size, shape.vocab_size)
    return all(size % 128 == 0 for size in sizes) and shape.q_size % 64 == 0 and shape.ffn_size % 64 == 0


def check_model(
    model: Model, weights: reference.Weights, name: str, chunks: Sequence[int], *, streams: bool = True
) -> bool:
    """One line: the worst relative error of a row."""
    shape, rng, worst, where = model.shape, random.Random(name), 0.0, ""
    for length in LENGTHS:
        ids = [rng.randrange(shape.vocab_size) for _ in range(length)]
        wanted = reference.logits(weights, ids)
        for chunk in chunks:
            if chunk > length and chunk != 512:
                continue
            got = torch.frombuffer(model.logits(ids, chunk, streams=streams), dtype=torch.float32)
            got = got.view(length, shape.vocab_size).cuda()
            per_row = (got - wanted).norm(dim=1) / wanted.norm(dim=1)
            error = float(per_row.max()) if bool(got.isfinite().all()) else float("inf")
            if not error <= worst:
                worst, where = error, f"length {length}, chunk {chunk}, row {int(per_row.argmax())}"
    held = worst <= MAX_ERROR
    print(f"{'pass' if held else 'FAIL'}  logits, {name}: {worst:.2e} at {where}", flush=True)
    return held


if __name__ == "__main__":
    sys.exit(0 if check(Library(sys.argv[1]), None) else 1)
