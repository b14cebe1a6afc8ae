"""Teacher-forced logits against the float32 reference, over lengths and cuts that cross every border.

python tests/device/check_logits.py LIBRARY [PRECISION ...]

Without precisions: CHECKED, and the others on one shape.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

import reference
import torch
from ion_cuda import Library, Model, Shape
from precisions import CHECKED, has_fp8_kv, matrix_precision
from shapes import LARGE, SMALL, WIDE

# Where prompts' pieces are cut, on Hopper, and where rotation is a part of a product.
LONG, LONG_CHUNKS = 2100, (16, 70, 160, 1300)
LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 300, 777, LONG)
# Of LARGE alone: as many rows as are added by themselves, and few.
ADDED, ADDED_CHUNKS = 4300, (4200,)
REPEATED = 777  # as long or longer: computed twice, to the same bits
CHUNKS = (1, 7, 16, 30, 64, 70, 100, 160, 240, 512, 1300)
PORTABLE_CHUNKS = (16, 100, 512)  # of the kernels for all cards: only prompts have their own
MAX_ERROR = 1.5e-2  # relative, of a row's logits (engine.md)
# With fp8, of matrices or KV, what is rounded to bf16 on the way gets the next code, 6% away, and so on;
# how far that goes depends on the model. So the reference is computed a second time, rounded to bf16 where
# the card rounds: the card may be so many times as far from the reference as that, over all rows, and in the
# worst one of its sample. check_e4m3.py checks the operations one by one.
MAX_RATIO, MAX_WORST_RATIO = 1.05, 1.3
# With bf16-kv8, of the worst row from the reference whose KV is not quantised: engine.md's limit for fp8. The
# worst row, since it holds by itself: the first tokens, which see few values, are the worst, at 3e-2 to
# 4.5e-2 of the reference rounded on the CPU. With fp8-kv8 the matrices' codes move too, 7e-2 to 1.1e-1: told.
MAX_KV_ERROR = 6e-2
KV_HEAD_DIMS = (64, 128)  # that there are kernels for with an fp8 KV cache
# In all three ways; what they add to CHECKED is little. An fp8 head wants a vocabulary of whole 16s.
OTHERS = (
    ("fp8-kv8-head8", "whole tiles, small"),
    ("bf16-head8", "whole tiles, small"),
    ("fp8-head8", "whole tiles, split and stream-K"),
    ("bf16", WIDE),
)


def check(library: Library, blaslt: str | None, asked: Iterable[tuple[str, str]]) -> bool:
    """Print lines for each precision and shape; whether all held."""
    is_good = True
    for precision, name in asked:
        shape = (SMALL | LARGE)[name]
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


def asked_of(precisions: list[str]) -> list[tuple[str, str]]:
    """Precisions and names of shapes."""
    asked = [
        (precision, name)
        for precision, name in itertools.product(precisions or CHECKED, SMALL)
        if not has_fp8_kv(precision) or SMALL[name].head_dim in KV_HEAD_DIMS
    ]
    return asked if precisions else [*asked, *OTHERS]


def can_stream(shape: Shape, precision: str) -> bool:
    """Whole tiles of 128 rows and of 128 bytes everywhere."""
    sizes = (shape.q_size + 2 * shape.kv_size, shape.hidden_size, 2 * shape.ffn_size, shape.vocab_size)
    width = 128 if matrix_precision(precision) == "fp8" else 64
    return all(size % 128 == 0 for size in sizes) and shape.q_size % width == shape.ffn_size % width == 0


def lengths_of(shape: Shape) -> tuple[int, ...]:
    return (*LENGTHS, ADDED) if shape in LARGE.values() else LENGTHS


def chunks_of(length: int, *, streams: bool) -> Iterator[int]:
    """How a sequence's tokens are cut."""
    if length == ADDED:
        yield from ADDED_CHUNKS
        return
    for chunk in CHUNKS if streams else PORTABLE_CHUNKS:
        if (chunk <= length or chunk == 512) and (length != LONG or chunk in LONG_CHUNKS):
            yield chunk


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


def verdict(precision: str, card: Distance, rounded: Distance, unquantised: Distance) -> tuple[bool, str]:
    """Whether the card is near enough, and what it was held against; `unquantised` is from bf16 KV."""
    if precision == "bf16":
        return card.worst <= MAX_ERROR, ""
    held = card.of_all <= MAX_RATIO * rounded.of_all and card.worst <= MAX_WORST_RATIO * rounded.worst
    said = f" (the reference rounded: {rounded.worst:.2e}, {rounded.of_all:.2e})"
    if has_fp8_kv(precision):
        said += f", from bf16 KV {unquantised.worst:.2e}"
        held = held and (matrix_precision(precision) == "fp8" or unquantised.worst <= MAX_KV_ERROR)
    return held, said


def check_model(model: Model, weights: reference.Weights, name: str, *, streams: bool = True) -> bool:
    """One line: the errors of the worst row and of all, and whether a second run gave the same bits."""
    shape, rng, is_same = model.shape, random.Random(name), True
    card, rounded, unquantised = Distance(), Distance(), Distance()
    for length in lengths_of(shape):
        ids = [rng.randrange(shape.vocab_size) for _ in range(length)]
        wanted = reference.logits(weights, ids)
        if model.precision != "bf16":
            as_rounded = reference.logits(weights, ids, is_rounded=True)
        if weights.has_fp8_kv:
            with_bf16_kv = reference.logits(replace(weights, has_fp8_kv=False), ids)
        for chunk in chunks_of(length, streams=streams):
            got = torch.frombuffer(model.logits(ids, chunk, streams=streams), dtype=torch.float32)
            if length >= REPEATED:
                again = torch.frombuffer(model.logits(ids, chunk, streams=streams), dtype=torch.float32)
                is_same = is_same and torch.equal(got, again)
            got = got.view(length, shape.vocab_size).cuda()
            card.add(got, wanted, f"length {length}, chunk {chunk}")
            if model.precision != "bf16":  # for each chunk, so that a length weighs as much in both
                rounded.add(as_rounded, wanted, "")
            if weights.has_fp8_kv:
                unquantised.add(got, with_bf16_kv, f"length {length}, chunk {chunk}")
    held, said = verdict(model.precision, card, rounded, unquantised)
    held = held and is_same
    said = f"{card.worst:.2e} at {card.where}, of all {card.of_all:.2e}{said}"
    said += "" if is_same else "; other bits when run again"
    print(f"{'pass' if held else 'FAIL'}  logits, {name}: {said}", flush=True)
    return held


if __name__ == "__main__":
    sys.exit(0 if check(Library(sys.argv[1]), None, asked_of(sys.argv[2:])) else 1)
