"""The decoder in torch, float32 over the card's own weights: what libion_cuda is checked against.

With fp8 the inputs of the layers' products are quantised as the card quantises them, by row, and with an fp8
KV cache each head's K and V of a token: what is left is what the card rounds elsewhere, and the codes that
such rounding moves to a neighbour.
"""

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
    SCALES,
    Model,
    Shape,
)
from precisions import has_fp8_head, has_fp8_kv, matrix_precision

E4M3 = torch.float8_e4m3fn
LARGEST_CODE = 448.0
LEAST_KV_SCALE = 2.0**-24  # of a cached vector, so that one over it is finite


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
    kind = {torch.float32: "<f4", torch.bfloat16: "<i2", E4M3: "|u1"}[dtype]
    return torch.as_tensor(_OnDevice(pointer, size, kind), device="cuda").view(dtype).view(shape)


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of e4m3 and the scale of each row: the largest of a row gets the largest code."""
    scales = x.abs().amax(-1, keepdim=True).clamp(min=1e-20) / LARGEST_CODE
    return (x / scales).to(E4M3), scales


def cached(x: torch.Tensor) -> torch.Tensor:
    """K or V [heads, tokens, head_dim] out of an fp8 cache, by the card's own operations."""
    values = x.bfloat16().float()
    largest = values.abs().amax(-1, keepdim=True).clamp(min=LEAST_KV_SCALE * LARGEST_CODE)
    scales = largest / torch.full_like(largest, LARGEST_CODE)  # torch multiplies by one over a plain number
    codes = (values * scales.reciprocal()).clamp(-LARGEST_CODE, LARGEST_CODE).to(E4M3)
    return codes.float() * scales


@dataclass
class Weights:
    """Views of a model's weights by (weight, layer)."""

    shape: Shape
    views: dict[tuple[int, int], torch.Tensor]
    has_fp8_kv: bool = False  # of the cache between them

    @property
    def has_fp8_matrices(self) -> bool:
        return (SCALES[QKV], 0) in self.views

    def __getitem__(self, key: tuple[int, int]) -> torch.Tensor:
        return self.views[key]

    def product(self, x: torch.Tensor, weight: int, layer: int) -> torch.Tensor:
        """x w^T of a layer's matrix, or the head, in float32."""
        matrix = self.views[weight, layer].float()
        scales = self.views.get((SCALES[weight], layer))
        if scales is None:
            return x @ matrix.T
        codes, of_rows = quantised(x)
        return (codes.float() @ matrix.T) * of_rows * scales

    def get(self, weight: int, layer: int) -> torch.Tensor | None:
        return self.views.get((weight, layer))


def shapes(shape: Shape, *, has_own_head: bool) -> dict[int, tuple[int, ...]]:
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
    if has_own_head:
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
    fp8 = {weight: matrix_precision(model.precision) == "fp8" for weight in SCALES}
    fp8[HEAD] = has_fp8_head(model.precision)  # which a tied one is then, too
    for weight, extents in shapes(shape, has_own_head=fp8[HEAD] or not shape.is_head_tied).items():
        is_top = weight in (EMBEDDING, HEAD, OUTPUT_NORM)
        for layer in range(1 if is_top else shape.num_layers):
            pointer = model.pointer(weight, layer)
            assert pointer, f"no weight {weight} of layer {layer}"
            if fp8.get(weight):
                fill_quantised(model, views, weight, layer, extents, scale * extents[1] ** -0.5)
                continue
            to = view(pointer, extents, torch.float32 if len(extents) == 1 else torch.bfloat16)
            if len(extents) == 2:
                to.normal_(0, scale * (1.0 if weight == EMBEDDING else extents[1] ** -0.5))
            elif weight == QKV_BIAS:
                to.normal_(0, 0.1)
            else:
                to.uniform_(0.5, 1.5)
            views[weight, layer] = to
    torch.cuda.synchronize()
    return Weights(shape, views, has_fp8_kv(model.precision))


def fill_quantised(
    model: Model,
    views: dict[tuple[int, int], torch.Tensor],
    weight: int,
    layer: int,
    extents: tuple[int, ...],
    deviation: float,
) -> None:
    """A random matrix's codes and scales; a row's gain is its own."""
    values = torch.empty(extents, device="cuda").normal_(0, deviation)
    values *= torch.empty(extents[0], 1, device="cuda").uniform_(0.8, 1.25)
    codes, scales = quantised(values)
    at, scales_at = model.pointer(weight, layer), model.pointer(SCALES[weight], layer)
    assert at and scales_at, f"no weight {weight} of layer {layer}"
    views[weight, layer] = view(at, extents, E4M3)
    views[SCALES[weight], layer] = view(scales_at, extents[:1], torch.float32)
    views[weight, layer].copy_(codes)
    views[SCALES[weight], layer].copy_(scales[:, 0])


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """x [heads, tokens, head_dim], halves."""
    frequencies = torch.tensor(shape.frequencies(), dtype=torch.float64, device=x.device)
    angles = torch.arange(x.shape[1], dtype=torch.float64, device=x.device)[:, None] * frequencies
    cosine, sine = angles.cos().float(), angles.sin().float()
    low, high = x.chunk(2, -1)
    return torch.cat((low * cosine - high * sine, low * sine + high * cosine), -1)


def logits(weights: Weights, ids: list[int], *, is_rounded: bool = False) -> torch.Tensor:
    """Teacher-forced logits [tokens, vocab], float32 without tf32; rounded: to bf16 where the card does."""
    torch.backends.cuda.matmul.allow_tf32 = False
    shape, count = weights.shape, len(ids)

    def kept(values: torch.Tensor) -> torch.Tensor:
        return values.bfloat16().float() if is_rounded else values

    def normed(x: torch.Tensor, weight: int, layer: int) -> torch.Tensor:
        out = norm(x, weights[weight, layer], shape.rms_eps)
        return out if weights.has_fp8_matrices else kept(out)  # codes are made of it as it is

    table = weights[EMBEDDING, 0]
    x = table[torch.tensor(ids, device=table.device)].float()
    position = torch.arange(count, device=table.device)
    for i in range(shape.num_layers):
        h = normed(x, ATTN_NORM, i)
        qkv = kept(weights.product(h, QKV, i))
        bias = weights.get(QKV_BIAS, i)
        if bias is not None:
            qkv = qkv + bias
        heads = qkv.view(count, -1, shape.head_dim).transpose(0, 1)
        q, k, v = heads.split((shape.num_heads, shape.num_kv_heads, shape.num_kv_heads))
        q_norm, k_norm = weights.get(Q_NORM, i), weights.get(K_NORM, i)
        if q_norm is not None and k_norm is not None:
            q, k = norm(q, q_norm, shape.rms_eps), norm(k, k_norm, shape.rms_eps)
        q, k, v = kept(rotate(q, shape)), kept(rotate(k, shape)), kept(v)
        if weights.has_fp8_kv:
            k, v = cached(k), cached(v)
        group = shape.num_heads // shape.num_kv_heads
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        seen = position[None, :] <= position[:, None]
        if shape.windows and shape.windows[i]:
            seen = seen & (position[None, :] > position[:, None] - shape.windows[i])
        scores = (q @ k.transpose(1, 2)) * shape.head_dim**-0.5
        scores = scores.masked_fill(~seen, float("-inf"))
        mixed = kept((scores.softmax(-1) @ v).transpose(0, 1).reshape(count, -1))
        x = x + kept(weights.product(mixed, OUT, i))
        h = normed(x, FFN_NORM, i)
        gate, up = kept(weights.product(h, GATE_UP, i)).chunk(2, -1)
        x = x + kept(weights.product(kept(torch.nn.functional.silu(gate) * up), DOWN, i))
    x = kept(norm(x, weights[OUTPUT_NORM, 0], shape.rms_eps))
    return x @ table.float().T if weights.get(HEAD, 0) is None else weights.product(x, HEAD, 0)
