"""The decoder in torch, float32 over the card's bf16 weights: what libion_cuda is checked against."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ion_cuda import (
    ATTN_NORM,
    DOWN,
    EMBEDDING,
    FFN_NORM,
    GATE_UP,
    HEAD,
    K_NORM,
    OUT,
    OUTPUT_NORM,
    Q_NORM,
    QKV,
    QKV_BIAS,
    Model,
    Shape,
)


class _OnDevice:
    """Memory of somebody else's, for torch.as_tensor."""

    def __init__(self, pointer: int, size: int, kind: str) -> None:
        self.__cuda_array_interface__ = {
            "data": (pointer, False),
            "shape": (size,),
            "typestr": kind,
            "version": 3,
        }


def view(pointer: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor over device memory that the library owns."""
    size = 1
    for extent in shape:
        size *= extent
    kind = "<f4" if dtype is torch.float32 else "<i2"
    flat = torch.as_tensor(_OnDevice(pointer, size, kind), device="cuda")
    return (flat if dtype is torch.float32 else flat.view(torch.bfloat16)).view(shape)


@dataclass
class Weights:
    """Views of a model's weights by (weight, layer)."""

    shape: Shape
    views: dict[tuple[int, int], torch.Tensor]

    def __getitem__(self, key: tuple[int, int]) -> torch.Tensor:
        return self.views[key]

    def get(self, weight: int, layer: int) -> torch.Tensor | None:
        return self.views.get((weight, layer))


def shapes(shape: Shape) -> dict[int, tuple[int, ...]]:
    """Of every weight; vectors are float32."""
    qkv = shape.q_size + 2 * shape.kv_size
    out: dict[int, tuple[int, ...]] = {
        EMBEDDING: (shape.vocab_size, shape.hidden_size),
        OUTPUT_NORM: (shape.hidden_size,),
        ATTN_NORM: (shape.hidden_size,),
        QKV: (qkv, shape.hidden_size),
        OUT: (shape.hidden_size, shape.q_size),
        FFN_NORM: (shape.hidden_size,),
        GATE_UP: (2 * shape.ffn_size, shape.hidden_size),
        DOWN: (shape.hidden_size, shape.ffn_size),
    }
    if not shape.is_head_tied:
        out[HEAD] = (shape.vocab_size, shape.hidden_size)
    if shape.has_qkv_bias:
        out[QKV_BIAS] = (qkv,)
    if shape.has_qk_norm:
        out[Q_NORM] = out[K_NORM] = (shape.head_dim,)
    return out


def fill(model: Model, seed: int, *, scale: float = 1.0) -> Weights:
    """Random weights, made on the card: rows of about unit gain, norms around 1."""
    torch.manual_seed(seed)
    shape, views = model.shape, {}
    for weight, extents in shapes(shape).items():
        is_top = weight in (EMBEDDING, HEAD, OUTPUT_NORM)
        for layer in range(1 if is_top else shape.num_layers):
            pointer = model.pointer(weight, layer)
            assert pointer, f"no weight {weight} of layer {layer}"
            to = view(pointer, extents, torch.float32 if len(extents) == 1 else torch.bfloat16)
            if len(extents) == 2:
                to.normal_(0, scale * (1.0 if weight == EMBEDDING else extents[1] ** -0.5))
            elif weight == QKV_BIAS:
                to.normal_(0, 0.1)
            else:
                to.uniform_(0.5, 1.5)
            views[weight, layer] = to
    torch.cuda.synchronize()
    return Weights(shape, views)


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """x [heads, tokens, head_dim], halves."""
    frequencies = torch.tensor(shape.frequencies(), dtype=torch.float64, device=x.device)
    angles = torch.arange(x.shape[1], dtype=torch.float64, device=x.device)[:, None] * frequencies
    cosine, sine = angles.cos().float(), angles.sin().float()
    low, high = x.chunk(2, -1)
    return torch.cat((low * cosine - high * sine, low * sine + high * cosine), -1)


def logits(weights: Weights, ids: list[int]) -> torch.Tensor:
    """Teacher-forced logits [tokens, vocab], float32 without tf32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    shape, count = weights.shape, len(ids)
    x = weights[EMBEDDING, 0][torch.tensor(ids, device="cuda")].float()
    position = torch.arange(count, device="cuda")
    for i in range(shape.num_layers):
        h = norm(x, weights[ATTN_NORM, i], shape.rms_eps)
        qkv = h @ weights[QKV, i].float().T
        bias = weights.get(QKV_BIAS, i)
        if bias is not None:
            qkv = qkv + bias
        heads = qkv.view(count, -1, shape.head_dim).transpose(0, 1)
        q, k, v = heads.split((shape.num_heads, shape.num_kv_heads, shape.num_kv_heads))
        q_norm, k_norm = weights.get(Q_NORM, i), weights.get(K_NORM, i)
        if q_norm is not None and k_norm is not None:
            q, k = norm(q, q_norm, shape.rms_eps), norm(k, k_norm, shape.rms_eps)
        q, k = rotate(q, shape), rotate(k, shape)
        group = shape.num_heads // shape.num_kv_heads
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        seen = position[None, :] <= position[:, None]
        if shape.windows and shape.windows[i]:
            seen = seen & (position[None, :] > position[:, None] - shape.windows[i])
        scores = (q @ k.transpose(1, 2)) * shape.head_dim**-0.5
        scores = scores.masked_fill(~seen, float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(count, -1)
        x = x + mixed @ weights[OUT, i].float().T
        h = norm(x, weights[FFN_NORM, i], shape.rms_eps)
        gate, up = (h @ weights[GATE_UP, i].float().T).chunk(2, -1)
        x = x + (torch.nn.functional.silu(gate) * up) @ weights[DOWN, i].float().T
    x = norm(x, weights[OUTPUT_NORM, 0], shape.rms_eps)
    head = weights[EMBEDDING, 0] if shape.is_head_tied else weights[HEAD, 0]
    return x @ head.float().T
