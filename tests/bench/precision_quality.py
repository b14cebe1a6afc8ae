"""What a GPU's precisions do to a model's answers: the float32 reference, rounded as they round, on a text.

python -m tests.bench.precision_quality MODEL.gguf [--text FILE]

No GPU is needed: it is the arithmetic that is asked about, not its speed. Matrices are e4m3 with a scale for
each row, activations with one for each row found at run time, results bfloat16 (docs/engine.md). Each
precision beside the reference over the same weights in float32: all logits together (relative, in Euclidean
norm), positions whose likeliest id differs with the largest gap between the reference's two best there, and
the perplexity of the text.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ionrouter.engine import _ion, tokenizer
from ionrouter.engine.reference import Reference
from tests.support.logit_quality import PASSAGES, euclidean_error, flip_gaps, perplexity

LARGEST_CODE = 448.0  # of e4m3


@dataclass(frozen=True, slots=True)
class Precision:
    """What is e4m3; all else is bfloat16, sums and the residual stream float32."""

    name: str
    has_fp8_weights: bool = False  # of the layers
    has_fp8_inputs: bool = False  # of the layers' products
    has_fp8_head: bool = False
    has_fp8_cache: bool = False  # with a scale for each token and head


PRECISIONS = (
    Precision("bf16"),
    Precision("fp8", has_fp8_weights=True, has_fp8_inputs=True),
    Precision("of that, weights alone", has_fp8_weights=True),
    Precision("of that, activations alone", has_fp8_inputs=True),
    Precision("bf16, fp8 head", has_fp8_head=True),
    Precision("bf16, fp8 KV", has_fp8_cache=True),
    Precision("fp8, fp8 head and KV", True, True, True, True),
)


def kept(x: Tensor) -> Tensor:
    """Rounded to bfloat16."""
    return x.bfloat16().float()


def coded(x: Tensor) -> Tensor:
    """Rounded to e4m3, a row with one scale."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-20) / LARGEST_CODE
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


class Rounded(Reference):
    """The reference as a GPU computes it."""

    def __init__(self, of: Reference, precision: Precision) -> None:
        self.precision = precision
        super().__init__(of.config, {name: self._stored(name, x) for name, x in of.weights.items()})
        head = of.weights.get("output.weight", of.weights["token_embd.weight"])
        self.head = coded(head) if precision.has_fp8_head else kept(head)

    def _stored(self, name: str, x: Tensor) -> Tensor:
        if x.dim() == 1:
            return x
        return coded(x) if name.startswith("blk.") and self.precision.has_fp8_weights else kept(x)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return kept(super()._linear(coded(x) if self.precision.has_fp8_inputs else kept(x), name))

    def _cached(self, x: Tensor) -> Tensor:
        return coded(kept(x)) if self.precision.has_fp8_cache else kept(x)

    def _head(self, x: Tensor) -> Tensor:
        return (coded(x) if self.precision.has_fp8_head else kept(x)) @ self.head.T


def row(name: str, ours: Tensor, wanted: Tensor, tokens: list[int]) -> str:
    """One line of the table."""
    gaps = flip_gaps(ours, wanted)
    gap = float(gaps.max()) if len(gaps) else 0.0
    ratio = perplexity(ours, tokens) / perplexity(wanted, tokens) - 1
    error = euclidean_error(ours, wanted)
    return f"| {name} | {error:.2e} | {len(gaps)} | {gap:.2f} | {100 * ratio:+.2f}% |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--text", type=Path, default=PASSAGES)
    args = parser.parse_args()
    reference = Reference.from_gguf(args.model)
    tokens = tokenizer.from_gguf(_ion.gguf_metadata(str(args.model))).encode(args.text.read_text())
    wanted = reference.logits(tokens)
    print(f"{len(tokens):,} positions, perplexity {perplexity(wanted, tokens):.2f}")
    print("| precision | error of all logits | likeliest ids that differ | largest gap there | perplexity |")
    print("|---|--:|--:|--:|--:|")
    for precision in PRECISIONS:
        ours = Rounded(reference, precision).logits(tokens)
        print(row(precision.name, ours, wanted, tokens), flush=True)


if __name__ == "__main__":
    main()
