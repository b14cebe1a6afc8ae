"""A whole tiny model as one GGUF file: random weights, a trained vocabulary, a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from tests.support.tiny_llama import TinyLlama, write_gguf, write_safetensors
from tests.support.tiny_tokenizer import CHATML, CONTROLS, metadata, tokenizer_json

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
    weights = _weights(shape, seed)
    if poisoned:
        weights["token_embd.weight"][POISON] = np.nan
    write_gguf(path, shape, weights, GGMLQuantizationType.F32, **data)
    return path


def write_tiny_folder(folder: Path, *, seed: int = 1) -> Path:
    """Write what `write_tiny_model(pre="qwen2")` writes as a Hugging Face folder: same ids, same weights."""
    folder.mkdir()
    data = metadata("qwen2")
    shape = TinyLlama(vocab_size=len(data["tokenizer.ggml.tokens"]))
    write_safetensors(folder / "model.safetensors", _weights(shape, seed))
    (folder / "config.json").write_text(shape.config_json())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": CHATML})
    )
    return folder


def _weights(shape: TinyLlama, seed: int) -> dict[str, Any]:
    weights = shape.weights(seed)
    # Weak control tokens: answers go on until their limit instead of ending at once.
    weights["output.weight"][: len(CONTROLS)] = 0
    return weights
