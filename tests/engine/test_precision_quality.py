"""The rounded references of tests/bench/precision_quality.py: what they round, and that it shows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as TensorType

from ionrouter.engine.reference import Reference
from tests.bench.precision_quality import PRECISIONS, Precision, Rounded, coded, row
from tests.support.logit_quality import euclidean_error
from tests.support.tiny_llama import TinyLlama, write_gguf


@pytest.fixture
def reference(tmp_path: Path) -> Reference:
    shape = TinyLlama()
    write_gguf(tmp_path / "m.gguf", shape, shape.weights(5), TensorType.F32)
    return Reference.from_gguf(tmp_path / "m.gguf")


TOKENS = [(7 * i) % 97 for i in range(53)]


def test_codes_keep_the_largest_of_a_row_and_are_a_sixteenth_off_at_most() -> None:
    torch.manual_seed(1)
    x = torch.randn(50, 64) * torch.logspace(-4, 4, 50)[:, None]
    found = coded(x)
    largest = x.abs().argmax(-1, keepdim=True)
    assert torch.allclose(found.gather(-1, largest), x.gather(-1, largest), rtol=1e-6)
    normal = x.abs() > x.abs().amax(-1, keepdim=True) * 2**-14  # smaller ones have fewer digits
    assert float(((found - x).abs() / x.abs())[normal].max()) <= 1 / 16 + 1e-6


def test_every_part_that_is_e4m3_shows(reference: Reference) -> None:
    wanted = reference.logits(TOKENS)
    errors = {
        precision.name: euclidean_error(Rounded(reference, precision).logits(TOKENS), wanted)
        for precision in PRECISIONS
    }
    bf16 = errors.pop("bf16")
    assert 1e-4 < bf16 < 1.5e-2
    assert all(2 * bf16 < found < 0.3 for found in errors.values()), errors
    assert max(errors, key=lambda name: errors[name]) == "fp8, fp8 head and KV"


def test_a_row_of_the_table_counts_what_differs(reference: Reference) -> None:
    wanted = reference.logits(TOKENS)
    assert row("same", wanted, wanted, TOKENS) == "| same | 0.00e+00 | 0 | 0.00 | +0.00% |"
    other = wanted.clone()
    best = wanted[3].topk(2)
    other[3, best.indices[0]] = best.values[1] - 1
    gap = float(best.values[0] - best.values[1])
    assert f"| 1 | {gap:.2f} |" in row("one", other, wanted, TOKENS)


def test_the_reference_itself_is_left_alone(reference: Reference) -> None:
    before = reference.logits(TOKENS)
    Rounded(reference, Precision("all", True, True, True, True)).logits(TOKENS)
    assert torch.equal(reference.logits(TOKENS), before)
