"""Models that nobody trained, for benchmarks: `random:SHAPE?seed=N` has the sizes of a known one.

The weights follow from the seed (engine_ext/models/random_model.h); here are the sizes, and a
tokenizer of as many tokens, each of one to three bytes. Writes folders in Hugging Face form.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from itertools import islice, product
from pathlib import Path
from typing import Any

from ionrouter.engine.byte_alphabet import byte_alphabet
from ionrouter.errors import ConfigError

_FORMAT = 1  # of what a folder holds; another one gets another name
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{%- for message in messages -%}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}"
)


def _shape(model_type: str, architecture: str, **sizes: Any) -> dict[str, Any]:
    common = {"hidden_act": "silu", "max_position_embeddings": 32768, "torch_dtype": "bfloat16"}
    return {"model_type": model_type, "architectures": [architecture], **common, **sizes}


# As the published config.json files have them, but for the context, which is the same for all.
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "qwen2.5-7b": _shape(
        *("qwen2", "Qwen2ForCausalLM"),
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152064,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
    ),
    "llama-3.1-8b": _shape(
        *("llama", "LlamaForCausalLM"),
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=128256,
        rope_theta=5e5,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    ),
    "qwen3-0.6b": _shape(
        *("qwen3", "Qwen3ForCausalLM"),
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    ),
    "smollm2-135m": _shape(
        *("llama", "LlamaForCausalLM"),
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
        rope_theta=1e5,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    ),
    "tiny": _shape(  # computes next to nothing, so that what is around it can be measured
        *("llama", "LlamaForCausalLM"),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        vocab_size=1024,
        rope_theta=1e4,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    ),
}


def config_of(shape: str) -> dict[str, Any]:
    """Return the config.json of a shape; raises ConfigError naming those that are known."""
    if shape not in SHAPES:
        raise ConfigError(f"random:{shape}: no such shape; known: {', '.join(SHAPES)}")
    return dict(SHAPES[shape])


def matrix_bytes(shape: str) -> int:
    """Say what a shape's matrices take as bfloat16; norms and biases are next to nothing."""
    config = config_of(shape)
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    head_dim = int(config.get("head_dim") or hidden // heads)
    q_size, kv_size = heads * head_dim, int(config["num_key_value_heads"]) * head_dim
    layer = hidden * (2 * q_size + 2 * kv_size + 3 * int(config["intermediate_size"]))
    tables = 1 if config["tie_word_embeddings"] else 2
    return 2 * (int(config["num_hidden_layers"]) * layer + tables * int(config["vocab_size"]) * hidden)


def prepared(shape: str, cache: Path) -> Path:
    """Return the folder of a shape's config and tokenizer, written once; it holds no weights."""
    config = config_of(shape)
    folder = folder_of(shape, cache)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{shape}.", dir=folder.parent))
        try:
            _write_small_files(fresh, config)
            os.replace(fresh, folder)
        except OSError:
            if not folder.is_dir():  # another process may have been faster
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return folder


def folder_of(shape: str, cache: Path) -> Path:
    """Say where `prepared` keeps a shape's small files."""
    return cache / "random" / f"{shape}-{_FORMAT}"


def write_folder(shape: str, seed: int, folder: Path) -> None:
    """Write a whole model, weights and all, as a Hugging Face folder. Raises ConfigError."""
    from ionrouter.engine import _ion

    config = config_of(shape)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_small_files(folder, config)
        _ion.write_random_model(str(folder / "model.safetensors"), json.dumps(config), seed)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}: {error}") from error


def _write_small_files(folder: Path, config: Mapping[str, Any]) -> None:
    size = int(config["vocab_size"])
    names = {"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>", "add_bos_token": False}
    files = {
        "config.json": config,
        "tokenizer.json": _tokenizer(size),
        "tokenizer_config.json": {**names, "chat_template": _TEMPLATE},
        "generation_config.json": {"eos_token_id": size - 1},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), "utf-8")


def _tokenizer(size: int) -> dict[str, Any]:
    """Byte-level BPE of exactly `size` tokens: all bytes, then joined ones, the special tokens last."""
    vocabulary = {text: byte for byte, text in byte_alphabet().items()}
    merges = [list(pair) for pair in islice(_pairs(), size - len(vocabulary) - len(_SPECIALS))]
    vocabulary |= {left + right: len(vocabulary) + i for i, (left, right) in enumerate(merges)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": size - len(_SPECIALS) + i, "content": text, **flags} for i, text in enumerate(_SPECIALS)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }


def _pairs() -> Iterator[tuple[str, str]]:
    """What is joined, in order of rank: two printable ASCII characters, then such a pair and a third."""
    alphabet = byte_alphabet()
    letters = [alphabet[byte] for byte in range(0x20, 0x7F)]
    yield from product(letters, letters)
    yield from ((left + middle, right) for left, middle, right in product(letters, letters, letters))
