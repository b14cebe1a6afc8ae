"""A whole tiny model as one GGUF file: random weights, a trained vocabulary, a chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from tests.support.tiny_llama import TinyLlama, write_gguf
from tests.support.tiny_tokenizer import CHATML, metadata

POISON = 200  # with `poisoned`, any prompt that holds this id has NaN logits


def write_tiny_model(
    path: Path,
    *,
    seed: int = 1,
    context_length: int = 512,
    poisoned: bool = False,
    template: str | None = CHATML,
    **changes: Any,
) -> Path:
    """Write the model; `changes` override tokenizer.ggml.* keys."""
    data = metadata(**changes) | {"tokenizer.chat_template": template}
    shape = TinyLlama(vocab_size=len(data["tokenizer.ggml.tokens"]), context_length=context_length)
    weights = shape.weights(seed)
    # Weak control tokens: answers go on until their limit instead of ending at once.
    weights["output.weight"][:4] = 0
    if poisoned:
        weights["token_embd.weight"][POISON] = np.nan
    write_gguf(path, shape, weights, GGMLQuantizationType.F32, **data)
    return path
