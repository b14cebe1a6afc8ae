"""The test double of libion_cuda (tests/engine_ext/models/cuda_double.cpp) as Python asks it."""

from __future__ import annotations

import ctypes
from enum import IntEnum, auto
from pathlib import Path

import numpy as np

from tests.support.cxx import ROOT, built
from tests.support.tiny_llama import Array


class Weight(IntEnum):
    """IonCudaWeight."""

    EMBEDDING = 0
    HEAD = auto()
    OUTPUT_NORM = auto()
    ATTN_NORM = auto()
    QKV = auto()
    QKV_BIAS = auto()
    Q_NORM = auto()
    K_NORM = auto()
    OUTPUT = auto()
    FFN_NORM = auto()
    GATE_UP = auto()
    DOWN = auto()
    QKV_SCALE = auto()
    OUTPUT_SCALE = auto()
    GATE_UP_SCALE = auto()
    DOWN_SCALE = auto()
    HEAD_SCALE = auto()


_MATRICES = {Weight.QKV, Weight.OUTPUT, Weight.GATE_UP, Weight.DOWN}  # of a layer
_VECTORS = {name for name in Weight if name.name.endswith(("NORM", "BIAS", "SCALE"))}


class Config(ctypes.Structure):
    """IonCudaConfig."""

    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_size")
        ),
        ("vocab_size", ctypes.c_int32),
        ("rms_eps", ctypes.c_float),
        ("has_qkv_bias", ctypes.c_int32),
        ("has_qk_norm", ctypes.c_int32),
        ("is_head_tied", ctypes.c_int32),
        ("rope_frequencies", ctypes.POINTER(ctypes.c_double)),
        ("windows", ctypes.POINTER(ctypes.c_int32)),
        ("matrix_type", ctypes.c_int32),
        ("head_type", ctypes.c_int32),
        ("kv_type", ctypes.c_int32),
    ]


def double_path() -> Path:
    """Build the double; IONROUTER_CUDA_LIBRARY is to name it."""
    return built(ROOT / "tests/engine_ext/models", "model_tests") / "libcuda_double.so"


class Double:
    """The double that this process has loaded, and what its newest model was given."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))  # the same one that _ion opens
        self._library.cuda_double_weight.restype = ctypes.c_void_p
        self._library.cuda_double_largest_write.restype = ctypes.c_int64
        self._library.cuda_double_config.restype = ctypes.POINTER(Config)

    def fail_next(self, call: str) -> None:
        self._library.cuda_double_fail(call.encode())

    def config(self) -> Config:
        found: Config = self._library.cuda_double_config().contents
        return found

    def largest_write(self) -> int:
        """Bytes that one call brought at most."""
        return int(self._library.cuda_double_largest_write())

    def is_deterministic(self) -> bool:
        """Whether the newest runner was asked to be."""
        return bool(self._library.cuda_double_is_deterministic())

    def frequencies(self) -> Array:
        config = self.config()
        return np.array(config.rope_frequencies[: config.head_dim // 2])

    def weight(self, weight: Weight, layer: int = 0) -> Array | None:
        """Bits of bfloat16 as uint16 [rows, cols], with fp8 codes as uint8, or float32 [size].

        None where there is no such weight.
        """
        rows, row_bytes, is_whole = ctypes.c_int64(), ctypes.c_int64(), ctypes.c_int32()
        out = (ctypes.byref(rows), ctypes.byref(row_bytes), ctypes.byref(is_whole))
        at = self._library.cuda_double_weight(int(weight), layer, *out)
        if at is None:
            return None
        assert is_whole.value, f"{weight.name} of layer {layer}: a row was written never or twice"
        data = ctypes.string_at(at, rows.value * row_bytes.value)
        if weight in _VECTORS:
            return np.frombuffer(data, np.float32)
        types = {Weight.HEAD: self.config().head_type, **dict.fromkeys(_MATRICES, self.config().matrix_type)}
        return np.frombuffer(data, np.uint8 if types.get(weight) else np.uint16).reshape(rows.value, -1)


def bf16(values: Array) -> Array:
    """Round float32 to bfloat16, ties to even, by the neighbours' distances; bits as uint16."""
    low = (values.view(np.uint32) >> 16).astype(np.uint16)  # towards zero
    high = low + np.uint16(1)
    down, up = as_float(low).astype(np.float64), as_float(high).astype(np.float64)
    to_low, to_high = np.abs(values - down), np.abs(up - values)
    takes_high = (to_high < to_low) | ((to_high == to_low) & (low % 2 == 1))
    return np.where(takes_high, high, low)


def as_float(bits: Array) -> Array:
    """Widen bfloat16 bits to float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def e4m3_values() -> Array:
    """The values of codes 0 to 126, ascending, from the format's definition; 127 is NaN."""
    return np.array([(8 * (c > 7) + c % 8) * 2.0 ** (max(c // 8, 1) - 10) for c in range(127)])


def e4m3(values: Array) -> tuple[Array, Array]:
    """Codes and scales of rows of float32: the nearest value, of two the even code, by distances."""
    scales = np.abs(values).max(1) / np.float32(448)
    factors = np.float32(448) / np.abs(values).max(1)
    grid, scaled = e4m3_values(), values * factors[:, None]
    magnitudes = np.abs(scaled).astype(np.float64)
    high = np.searchsorted(grid, magnitudes).clip(1, 126)
    low = high - 1
    to_low, to_high = magnitudes - grid[low], grid[high] - magnitudes
    takes_high = (to_high < to_low) | ((to_high == to_low) & (high % 2 == 0))
    codes = np.where(takes_high, high, low) | np.where(np.signbit(scaled), 0x80, 0)
    return codes.astype(np.uint8), scales


def e4m3_floats(codes: Array) -> Array:
    """Widen codes to float32."""
    return (e4m3_values()[codes & 0x7F] * np.where(codes & 0x80, -1, 1)).astype(np.float32)
