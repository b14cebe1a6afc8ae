"""How far one model's teacher-forced logits [tokens, vocab] are from the reference's, and the text for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

PASSAGES = Path(__file__).parents[1] / "engine/data/passages.txt"  # written for this


def euclidean_error(ours: np.ndarray[Any, Any] | Tensor, reference: Tensor) -> float:
    """Return |ours - reference| / |reference|, over all positions together."""
    apart = torch.as_tensor(ours) - reference
    norm, exact = torch.linalg.vector_norm, torch.float64  # of 1e8 floats a float32 sum is 0.3% off
    return float(norm(apart, dtype=exact) / norm(reference, dtype=exact))


def flip_gaps(ours: Tensor, reference: Tensor) -> Tensor:
    """Return the gap between the reference's two best wherever the likeliest id is another."""
    best = reference.topk(2, dim=-1)
    flipped = ours.argmax(-1) != best.indices[:, 0]
    return (best.values[:, 0] - best.values[:, 1])[flipped]


def perplexity(logits: Tensor, tokens: list[int]) -> float:
    losses = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(tokens[1:]))
    return float(losses.exp())
