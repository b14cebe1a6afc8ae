"""Rounding of float32 rows to Q4_K, Q5_K and Q6_K, which the `gguf` package reads but does not write.

The plain way: scales from the extremes of each sub-block, no search for better ones. Layouts: GGUF's.
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as TensorType

Array = npt.NDArray[Any]


def quantize(x: Array, kind: TensorType) -> Array:
    """Round x [rows, cols] to `kind`; uint8 [rows, bytes of a row] for a quantised type."""
    if kind == TensorType.Q4_K:
        return quantize_q45_k(x, has_fifth_bit=False)
    if kind == TensorType.Q5_K:
        return quantize_q45_k(x, has_fifth_bit=True)
    if kind == TensorType.Q6_K:
        return quantize_q6_k(x)
    quantized: Array = gguf.quantize(x, kind)
    return quantized


def quantize_q45_k(x: Array, *, has_fifth_bit: bool) -> Array:
    """Round x to Q4_K or Q5_K: 6-bit scale and minimum for 32 values, both under an f16 for 256."""
    groups = x.astype(np.float32).reshape(-1, 8, 32)
    lowest = np.minimum(groups.min(axis=-1), 0)  # [num_blocks, 8]; a minimum is taken off, never added
    largest_code = 31 if has_fifth_bit else 15
    d, scales = six_bits((np.maximum(groups.max(axis=-1), 0) - lowest) / largest_code)
    d_min, minimums = six_bits(-lowest)
    step, offset = (d * scales)[..., None], (d_min * minimums)[..., None]
    codes = np.round((groups + offset) / np.where(step == 0, 1, step))
    q = np.clip(codes, 0, largest_code).astype(np.uint8)
    pairs = (q & 0x0F).reshape(-1, 4, 2, 32)  # two sub-blocks share the bytes of their nibbles
    nibbles = (pairs[:, :, 0] | (pairs[:, :, 1] << 4)).reshape(-1, 128)
    fifth = np.packbits(q >> 4, axis=1, bitorder="little").reshape(-1, 32)
    halves = [d.astype(np.float16).view(np.uint8), d_min.astype(np.float16).view(np.uint8)]
    parts = [*halves, packed_scales(scales, minimums), *([fifth] if has_fifth_bit else []), nibbles]
    return np.concatenate(parts, axis=-1).reshape(x.shape[0], -1)


def six_bits(values: Array) -> tuple[Array, Array]:
    """Write values [num_blocks, 8] >= 0 as unit * code: units [num_blocks, 1] that f16 holds, codes 0..63."""
    unit = (values.max(axis=-1, keepdims=True) / 63).astype(np.float16).astype(np.float32)
    codes = np.round(values / np.where(unit == 0, 1, unit))
    return unit, np.clip(codes, 0, 63).astype(np.uint8)


def packed_scales(scales: Array, minimums: Array) -> Array:
    """Pack two [num_blocks, 8] of 6 bits into 12 bytes; the last four give their high bits to the first."""
    low = [part[:, :4] | (part[:, 4:] >> 4 << 6) for part in (scales, minimums)]
    return np.concatenate([*low, (scales[:, 4:] & 0x0F) | (minimums[:, 4:] << 4)], axis=-1)


def quantize_q6_k(x: Array) -> Array:
    """Round x [rows, cols] to Q6_K, uint8 [rows, cols / 256 * 210]; one scale per 16 values, no search."""
    groups = x.reshape(-1, 16, 16)
    peak = np.abs(groups).max(axis=-1) / 31.0  # [num_blocks, 16]
    d = (peak.max(axis=-1, keepdims=True) / 127.0).astype(np.float16)
    unit = np.where(d == 0, 1, d).astype(np.float32)
    scales = np.clip(np.round(peak / unit), 0, 127).astype(np.int8)
    step = np.where(scales == 0, 1, scales * unit)[..., None]
    q = (np.clip(np.round(groups / step), -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low, high = q & 0x0F, q >> 4
    ql = (low[:, :, 0:2] | (low[:, :, 2:4] << 4)).reshape(-1, 128)
    qh = (high[:, :, 0] | (high[:, :, 1] << 2) | (high[:, :, 2] << 4) | (high[:, :, 3] << 6)).reshape(-1, 64)
    blocks = np.concatenate([ql, qh, scales.view(np.uint8), d.view(np.uint8)], axis=-1)
    return blocks.reshape(x.shape[0], -1)
