"""A whole tiny model as one GGUF file: random weights, a trained vocabulary, a chat template."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from tests.support.tiny_llama import TinyLlama, json_name, write_gguf, write_safetensors
from tests.support.tiny_tokenizer import CHATML, CONTROLS, metadata, tokenizer_json

Edit = Callable[[dict[str, Any]], None]  # of weights by their GGUF names

POISON = 200  # with `poisoned`, any prompt that holds this id has NaN logits


def write_tiny_model(
    path: Path,
    *,
    seed: int = 1,
    context_length: int = 512,
    poisoned: bool = False,
    template: str | None = CHATML,
    edit: Edit = lambda _weights: None,
    **changes: Any,
) -> Path:
    """Write the model; `edit` may change its weights, `changes` override tokenizer.ggml.* keys."""
    data = metadata(**changes) | {"tokenizer.chat_template": template}
    shape = TinyLlama(vocab_size=len(data["tokenizer.ggml.tokens"]), context_length=context_length)
    weights = _weights(shape, seed)
    if poisoned:
        weights["token_embd.weight"][POISON] = np.nan
    edit(weights)
    write_gguf(path, shape, weights, GGMLQuantizationType.F32, **data)
    return path


def write_tiny_folder(
    folder: Path,
    *,
    seed: int = 1,
    num_shards: int = 1,
    vocab_size: int | None = None,
    edit: Edit = lambda _weights: None,
) -> Path:
    """Write what `write_tiny_model(pre="qwen2")` writes as a Hugging Face folder: same ids, same weights.

    `vocab_size` None: as many as the tokenizer has.
    """
    folder.mkdir()
    data = metadata("qwen2")
    shape = TinyLlama(vocab_size=vocab_size or len(data["tokenizer.ggml.tokens"]))
    weights = _weights(shape, seed)
    edit(weights)
    _write_shards(folder, weights, num_shards)
    (folder / "config.json").write_text(shape.config_json())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": CHATML})
    )
    return folder


def _write_shards(folder: Path, weights: dict[str, Any], num_shards: int) -> None:
    """Spread the tensors over files, with the index that says where each is."""
    if num_shards == 1:
        write_safetensors(folder / "model.safetensors", weights)
        return
    places = {}
    for number in range(num_shards):
        name = f"model-{number + 1:05}-of-{num_shards:05}.safetensors"
        held = sorted(weights)[number::num_shards]
        write_safetensors(folder / name, {tensor: weights[tensor] for tensor in held})
        places |= {json_name(tensor): name for tensor in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def _weights(shape: TinyLlama, seed: int) -> dict[str, Any]:
    weights = shape.weights(seed)
    # Weak control tokens: answers go on until their limit instead of ending at once.
    weights["output.weight"][: len(CONTROLS)] = 0
    return weights
