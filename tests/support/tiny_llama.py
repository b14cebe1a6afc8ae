"""Tiny random decoders as files: safetensors and GGUF in every tensor type that Ion reads.

Knows file formats and nothing of Ion.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as TensorType

from tests.support.k_quants import quantize

Array = npt.NDArray[Any]

JSON_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class TinyLlama:
    """A shape. Sizes are multiples of 32 where a 4- or 8-bit type is wanted, of 256 for a K type."""

    num_layers: int = 2
    hidden_size: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    ffn_size: int = 96
    vocab_size: int = 199
    context_length: int = 512
    is_tied: bool = False
    rms_eps: float = 1e-5
    rope_theta: float = 10000.0

    def weights(self, seed: int) -> dict[str, Array]:
        """Return random float32 weights by GGUF name, Q/K rows in half-split order (as in safetensors)."""
        rng = np.random.default_rng(seed)

        def linear(rows: int, cols: int) -> Array:
            return (rng.standard_normal((rows, cols)) * cols**-0.5).astype(np.float32)

        def norm() -> Array:
            return (1 + 0.2 * rng.standard_normal(self.hidden_size)).astype(np.float32)

        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        out = {
            "token_embd.weight": rng.standard_normal((self.vocab_size, self.hidden_size)).astype(np.float32),
            "output_norm.weight": norm(),
        }
        if not self.is_tied:
            out["output.weight"] = linear(self.vocab_size, self.hidden_size) * np.float32(4)
        for layer in range(self.num_layers):
            prefix = f"blk.{layer}."
            out |= {
                prefix + "attn_norm.weight": norm(),
                prefix + "ffn_norm.weight": norm(),
                prefix + "attn_q.weight": linear(q_size, self.hidden_size) * np.float32(2),
                prefix + "attn_k.weight": linear(kv_size, self.hidden_size) * np.float32(2),
                prefix + "attn_v.weight": linear(kv_size, self.hidden_size),
                prefix + "attn_output.weight": linear(self.hidden_size, q_size),
                prefix + "ffn_gate.weight": linear(self.ffn_size, self.hidden_size),
                prefix + "ffn_up.weight": linear(self.ffn_size, self.hidden_size),
                prefix + "ffn_down.weight": linear(self.hidden_size, self.ffn_size),
            }
        return out

    def config_json(self) -> str:
        """Return the text of a config.json."""
        return json.dumps(
            {
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
                "hidden_act": "silu",
                "num_hidden_layers": self.num_layers,
                "hidden_size": self.hidden_size,
                "num_attention_heads": self.num_heads,
                "num_key_value_heads": self.num_kv_heads,
                "head_dim": self.head_dim,
                "intermediate_size": self.ffn_size,
                "vocab_size": self.vocab_size,
                "max_position_embeddings": self.context_length,
                "rms_norm_eps": self.rms_eps,
                "rope_theta": self.rope_theta,
                "tie_word_embeddings": self.is_tied,
            }
        )

    def gguf_metadata(self) -> dict[str, Any]:
        """Return the metadata of a GGUF file, by key."""
        return {
            "llama.block_count": self.num_layers,
            "llama.context_length": self.context_length,
            "llama.embedding_length": self.hidden_size,
            "llama.feed_forward_length": self.ffn_size,
            "llama.attention.head_count": self.num_heads,
            "llama.attention.head_count_kv": self.num_kv_heads,
            "llama.attention.key_length": self.head_dim,
            "llama.attention.value_length": self.head_dim,
            "llama.attention.layer_norm_rms_epsilon": self.rms_eps,
            "llama.rope.freq_base": self.rope_theta,
            "llama.rope.dimension_count": self.head_dim,
            "llama.vocab_size": self.vocab_size,
        }


def json_name(name: str) -> str:
    """Map a GGUF name to a safetensors one: blk.3.ffn_up.weight -> model.layers.3.mlp.up_proj.weight."""
    stem, _, kind = name.rpartition(".")
    if not stem.startswith("blk."):
        return f"{JSON_NAMES[stem]}.{kind}"
    _, layer, part = stem.split(".", 2)
    return f"model.layers.{layer}.{JSON_NAMES[part]}.{kind}"


def write_safetensors(path: Path, weights: Mapping[str, Array], dtype: str = "F32") -> None:
    """Write weights under safetensors names as F32, F16 or BF16."""
    import torch
    from safetensors.torch import save_file

    types = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    save_file({json_name(n): torch.from_numpy(w).to(types[dtype]) for n, w in weights.items()}, path)


def interleave(rows: Array, num_heads: int) -> Array:
    """Reorder Q or K rows as Llama's GGUF files have them: rotated pairs side by side."""
    return rows.reshape(num_heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(
    path: Path,
    shape: TinyLlama,
    weights: Mapping[str, Array],
    tensor_type: TensorType | Mapping[str, TensorType],
    **metadata: Any,
) -> None:
    """Write a GGUF file: matrices in `tensor_type`, norms in F32; `metadata` overrides, None drops.

    `tensor_type` may be a mapping by tensor name; matrices that it does not name are F32.
    """
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in (
        shape.gguf_metadata() | {k.replace("__", "."): v for k, v in metadata.items()}
    ).items():
        add_value(writer, key, value)
    for name, value in weights.items():
        if name.endswith("attn_q.weight"):
            value = interleave(value, shape.num_heads)
        if name.endswith("attn_k.weight"):
            value = interleave(value, shape.num_kv_heads)
        kind = tensor_type if isinstance(tensor_type, TensorType) else tensor_type.get(name, TensorType.F32)
        kind = TensorType.F32 if value.ndim == 1 else kind
        writer.add_tensor(name, np.ascontiguousarray(quantize(value, kind)), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add a metadata value under the type that converters use for it; None adds nothing."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)
