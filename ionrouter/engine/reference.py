"""The specification of a decoder's arithmetic: plain float32 torch, one sequence, no cache, no tricks.

Tests compare Ion with it; serving never imports it. Shares no code with the C++ engine: weights come through
the `gguf` or `safetensors` package, and Q/K rows stay in the file's own order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True, slots=True)
class ReferenceConfig:
    """Sizes of a decoder. `rope_divisors` [head_dim / 2] divides the rotation frequencies, None for ones.

    Layer i sees `windows[i]` positions, itself included; all of them where it is 0 or `windows` is empty.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float
    rope_theta: float
    is_rope_interleaved: bool
    rope_divisors: Tensor | None = None
    windows: tuple[int, ...] = ()


class Reference:
    """A Llama-family decoder in float32 (Touvron et al. 2023; rotary embedding of Su et al. 2021)."""

    def __init__(self, config: ReferenceConfig, weights: Mapping[str, Tensor]) -> None:
        self.config = config
        self.weights = dict(weights)

    @classmethod
    def from_gguf(cls, path: str | Path, dtype: torch.dtype = torch.float32) -> Reference:
        """Read a GGUF file; every tensor is dequantised by the `gguf` package."""
        import gguf

        reader = gguf.GGUFReader(str(path))
        raw = {
            tensor.name: torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy()).to(dtype)
            for tensor in reader.tensors
        }
        meta = {key: field.contents() for key, field in reader.fields.items() if len(field.types) == 1}
        return cls(gguf_config(meta, raw.pop("rope_freqs.weight", None)), {n: t for n, t in raw.items()})

    @classmethod
    def from_safetensors(
        cls, paths: Sequence[str | Path], config_json: str, dtype: torch.dtype = torch.float32
    ) -> Reference:
        """Read safetensors shards and the text of their config.json."""
        from safetensors.torch import load_file

        weights: dict[str, Tensor] = {}
        for path in paths:
            weights |= {gguf_name(name): tensor.to(dtype) for name, tensor in load_file(path).items()}
        return cls(json_config(json.loads(config_json)), weights)

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Return teacher-forced logits, [len(tokens), vocab_size]."""
        x = self.weights["token_embd.weight"][torch.tensor(list(tokens))]  # [num_tokens, hidden]
        for layer in range(self.config.num_layers):
            x = x + self._attention(layer, self._norm(x, f"blk.{layer}.attn_norm"))
            x = x + self._mlp(layer, self._norm(x, f"blk.{layer}.ffn_norm"))
        return self._head(self._norm(x, "output_norm"))

    def _head(self, x: Tensor) -> Tensor:
        return x @ self.weights.get("output.weight", self.weights["token_embd.weight"]).T

    def _linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else y + bias

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config.rms_eps)
        return x * scale * self.weights[f"{name}.weight"]

    def _mlp(self, layer: int, x: Tensor) -> Tensor:
        gate = self._linear(x, f"blk.{layer}.ffn_gate")
        return self._linear(
            torch.nn.functional.silu(gate) * self._linear(x, f"blk.{layer}.ffn_up"), f"blk.{layer}.ffn_down"
        )

    def _heads(self, x: Tensor, layer: int, letter: str, num_heads: int) -> Tensor:
        """Project to heads: [num_heads, num_tokens, head_dim]."""
        y = self._linear(x, f"blk.{layer}.attn_{letter}").view(len(x), num_heads, self.config.head_dim)
        if f"blk.{layer}.attn_{letter}_norm.weight" in self.weights:
            y = self._norm(y, f"blk.{layer}.attn_{letter}_norm")
        return y.transpose(0, 1)

    def _rotate(self, x: Tensor) -> Tensor:
        """Rotate pairs of x [num_heads, num_tokens, head_dim] by position; angles in float64."""
        config = self.config
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        frequencies = config.rope_theta**-exponents
        if config.rope_divisors is not None:
            frequencies = frequencies / config.rope_divisors.double()
        angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float64), frequencies)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        if config.is_rope_interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    def _cached(self, x: Tensor) -> Tensor:
        """K or V [num_kv_heads, num_tokens, head_dim] as attention reads it."""
        return x

    def _attention(self, layer: int, x: Tensor) -> Tensor:
        config = self.config
        q = self._rotate(self._heads(x, layer, "q", config.num_heads))
        k = self._cached(self._rotate(self._heads(x, layer, "k", config.num_kv_heads)))
        v = self._cached(self._heads(x, layer, "v", config.num_kv_heads))
        group = config.num_heads // config.num_kv_heads
        hidden = torch.full((len(x), len(x)), -math.inf, dtype=x.dtype)
        mask = hidden.triu(1)
        if config.windows and config.windows[layer]:
            mask = mask + hidden.tril(-config.windows[layer])
        mixed = []
        for head in range(config.num_heads):
            scores = q[head] @ k[head // group].T / math.sqrt(config.head_dim) + mask
            mixed.append(scores.softmax(-1) @ v[head // group])
        return self._linear(torch.cat(mixed, dim=-1), f"blk.{layer}.attn_output")


def gguf_name(name: str) -> str:
    """Map a safetensors name to GGUF's: model.layers.3.mlp.up_proj.weight -> blk.3.ffn_up.weight."""
    stem, _, kind = name.rpartition(".")
    if not stem.startswith("model.layers."):
        return f"{GGUF_NAMES[stem]}.{kind}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"


def gguf_config(meta: Mapping[str, Any], rope_divisors: Tensor | None) -> ReferenceConfig:
    """Build a config from GGUF metadata; only Llama's files interleave the rotated pairs."""
    name = meta["general.architecture"]
    heads = int(meta[f"{name}.attention.head_count"])
    head_dim = int(meta.get(f"{name}.attention.key_length", meta[f"{name}.embedding_length"] // heads))
    if meta.get(f"{name}.rope.scaling.type") == "linear":
        rope_divisors = torch.full((head_dim // 2,), float(meta[f"{name}.rope.scaling.factor"]))
    return ReferenceConfig(
        num_layers=int(meta[f"{name}.block_count"]),
        num_heads=heads,
        num_kv_heads=int(meta.get(f"{name}.attention.head_count_kv", heads)),
        head_dim=head_dim,
        rms_eps=float(meta[f"{name}.attention.layer_norm_rms_epsilon"]),
        rope_theta=float(meta.get(f"{name}.rope.freq_base", 10000.0)),
        is_rope_interleaved=name == "llama",
        rope_divisors=rope_divisors,
        windows=(int(meta.get(f"{name}.attention.sliding_window", 0)),) * int(meta[f"{name}.block_count"]),
    )


def json_config(config: Mapping[str, Any]) -> ReferenceConfig:
    """Build a config from a parsed config.json (rope settings of either generation of the format)."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    return ReferenceConfig(
        num_layers=config["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads", heads),
        head_dim=head_dim,
        rms_eps=config["rms_norm_eps"],
        rope_theta=theta,
        is_rope_interleaved=False,
        rope_divisors=json_rope_divisors(rope, theta, head_dim),
        windows=json_windows(config),
    )


def json_windows(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return each layer's window; Qwen's files switch theirs on by a flag, and from some layer on."""
    count, window = config["num_hidden_layers"], config.get("sliding_window") or 0
    is_qwen = config["model_type"].startswith("qwen")
    if not config.get("use_sliding_window", not is_qwen):
        return ()
    first = config.get("max_window_layers", 28) if is_qwen else 0
    default = ["sliding_attention" if i >= first else "full_attention" for i in range(count)]
    kinds = config.get("layer_types") or default
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def json_rope_divisors(rope: Mapping[str, Any], theta: float, head_dim: int) -> Tensor | None:
    """Return what divides the rotation frequencies, [head_dim / 2]; Llama 3.1 ramps in between."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return torch.full((head_dim // 2,), float(rope["factor"]))
    if kind != "llama3":
        raise ValueError(f"rope type {kind!r} is not known to the reference")
    wavelengths = 2 * math.pi * theta ** (torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    original = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = (original / wavelengths - low) / (high - low)
    ramp = 1 / ((1 - smooth) / rope["factor"] + smooth)
    long = torch.full_like(wavelengths, float(rope["factor"]))
    divisors = torch.where(wavelengths > original / low, long, ramp)
    return torch.where(wavelengths < original / high, torch.ones_like(wavelengths), divisors)
