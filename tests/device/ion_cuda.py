"""libion_cuda's C interface (engine_ext/cuda/ion_cuda.h) for Python, by ctypes alone."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import (
    POINTER,
    byref,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass, field

from precisions import MATRIX_TYPES, has_fp8_head, has_fp8_kv, matrix_precision

EMBEDDING, HEAD, OUTPUT_NORM, ATTN_NORM, QKV, QKV_BIAS, Q_NORM, K_NORM, OUT, FFN_NORM, GATE_UP, DOWN = range(
    12
)
SCALES = {QKV: 12, OUT: 13, GATE_UP: 14, DOWN: 15, HEAD: 16}  # with fp8, a float for each row
SAMPLE, GRAMMAR = 1, 4
MAX_LOGPROBS = 20


class CConfig(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads")),
        *((name, c_int32) for name in ("head_dim", "ffn_size", "vocab_size")),
        ("rms_eps", c_float),
        *((name, c_int32) for name in ("has_qkv_bias", "has_qk_norm", "is_head_tied")),
        ("rope_frequencies", POINTER(c_double)),
        ("windows", POINTER(c_int32)),
        *((name, c_int32) for name in ("matrix_type", "head_type", "kv_type")),
    ]


class CDevice(ctypes.Structure):
    _fields_ = [
        ("name", c_char * 256),
        *((name, c_int32) for name in ("compute_major", "compute_minor", "num_sms")),
        *((name, c_int32) for name in ("driver_version", "runtime_version")),
        ("total_bytes", c_int64),
        ("free_bytes", c_int64),
        ("is_coherent", c_int32),
    ]


class COptions(ctypes.Structure):
    _fields_ = [
        (name, c_int32)
        for name in (
            "max_slots",
            "max_tokens_per_step",
            "num_blocks",
            "context_length",
            "num_host_blocks",
            "use_graphs",
            "use_streams",
            "decode_warps",
            "is_deterministic",
        )
    ]


class CRow(ctypes.Structure):
    _fields_ = [(name, c_int32) for name in ("slot", "start", "count", "flags")]


class CSampling(ctypes.Structure):
    _fields_ = [
        *((name, c_float) for name in ("temperature", "top_p", "min_p", "top_a")),
        *((name, c_float) for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")),
        *((name, c_int32) for name in ("top_k", "min_tokens", "num_logprobs")),
        ("seed", c_uint64),
    ]


class CJoin(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("slot", "num_ids", "num_prompt")),
        ("ids", POINTER(c_int32)),
        ("sampling", CSampling),
        *((name, c_int32) for name in ("num_stop_ids", "num_biases")),
        ("stop_ids", POINTER(c_int32)),
        ("bias_ids", POINTER(c_int32)),
        ("biases", POINTER(c_float)),
    ]


class CAppended(ctypes.Structure):
    _fields_ = [(name, c_int32) for name in ("slot", "index", "block")]


class CCopy(ctypes.Structure):
    _fields_ = [(name, c_int32) for name in ("from_", "to")]


class CStep(ctypes.Structure):
    _fields_ = [
        ("epoch", c_uint64),
        *((name, c_int32) for name in ("num_rows", "num_leaves", "num_joins", "num_blocks", "num_copies")),
        ("rows", POINTER(CRow)),
        ("leaves", POINTER(c_int32)),
        ("joins", POINTER(CJoin)),
        ("blocks", POINTER(CAppended)),
        ("copies", POINTER(CCopy)),
    ]


class CMask(ctypes.Structure):
    _fields_ = [("slot", c_int32), ("num_words", c_int32), ("words", POINTER(c_uint32))]


class CSample(ctypes.Structure):
    _fields_ = [
        ("id", c_int32),
        ("is_finite", c_int32),
        ("logprob", c_float),
        ("num_top", c_int32),
        ("top_ids", c_int32 * MAX_LOGPROBS),
        ("top_logprobs", c_float * MAX_LOGPROBS),
    ]


class CResult(ctypes.Structure):
    _fields_ = [
        ("epoch", c_uint64),
        ("num_samples", c_int32),
        ("slots", POINTER(c_int32)),
        ("samples", POINTER(CSample)),
        ("seconds", c_double),
    ]


@dataclass(frozen=True)
class Shape:
    """A decoder's sizes; `windows` a layer, empty for none."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    rms_eps: float = 1e-6
    rope_theta: float = 1e6
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    is_head_tied: bool = False
    windows: tuple[int, ...] = ()

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    def frequencies(self) -> list[float]:
        half = self.head_dim // 2
        return [self.rope_theta ** (-i / half) for i in range(half)]


@dataclass
class Sampling:
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_a: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    min_tokens: int = 0
    num_logprobs: int = -1
    stop_ids: Sequence[int] = ()
    bias: dict[int, float] = field(default_factory=dict)


class CudaError(RuntimeError):
    """What ion_cuda_error says."""


class Library:
    """The loaded library."""

    def __init__(self, path: str) -> None:
        self.c = ctypes.CDLL(path)
        for name, result in (
            ("ion_cuda_error", c_char_p),
            ("ion_cuda_model_create", c_void_p),
            ("ion_cuda_model_pointer", c_void_p),
            ("ion_cuda_model_bytes", c_int64),
            ("ion_cuda_block_bytes", c_int64),
            ("ion_cuda_runner_create", c_void_p),
            ("ion_cuda_copy_out", c_uint64),
            ("ion_cuda_copy_in", c_uint64),
        ):
            getattr(self.c, name).restype = result
        for name in ("ion_cuda_model_destroy", "ion_cuda_runner_destroy"):
            getattr(self.c, name).argtypes = [c_void_p]
            getattr(self.c, name).restype = None
        self.c.ion_cuda_model_pointer.argtypes = [c_void_p, c_int, c_int32]
        self.c.ion_cuda_runner_create.argtypes = [c_void_p, c_void_p]
        self.c.ion_cuda_submit.argtypes = [c_void_p, c_void_p]
        self.c.ion_cuda_upload_masks.argtypes = [c_void_p, c_uint64, c_void_p, c_int32]
        self.c.ion_cuda_poll.argtypes = [c_void_p, c_void_p, c_int32]
        self.c.ion_cuda_copy_out.argtypes = [c_void_p, c_int32, c_int32]
        self.c.ion_cuda_copy_in.argtypes = [c_void_p, c_int32, c_int32]
        self.c.ion_cuda_copy_state.argtypes = [c_void_p, c_uint64, c_int32]
        self.c.ion_cuda_logits.argtypes = [c_void_p, c_void_p, c_int32, c_int32, c_int32, c_void_p]

    def fail(self) -> CudaError:
        return CudaError(self.c.ion_cuda_error().decode())

    def device(self) -> CDevice:
        out = CDevice()
        if self.c.ion_cuda_device(0, byref(out)) != 0:
            raise self.fail()
        return out


class Model:
    """Weights on the card; `pointer` says where, for filling them there."""

    def __init__(self, library: Library, shape: Shape, blaslt: str | None, precision: str = "bf16") -> None:
        self.library, self.shape, self.precision = library, shape, precision
        frequencies = (c_double * (shape.head_dim // 2))(*shape.frequencies())
        windows = (c_int32 * shape.num_layers)(*shape.windows) if shape.windows else None
        config = CConfig(
            shape.num_layers,
            shape.hidden_size,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.ffn_size,
            shape.vocab_size,
            shape.rms_eps,
            shape.has_qkv_bias,
            shape.has_qk_norm,
            shape.is_head_tied and not has_fp8_head(precision),
            frequencies,
            windows,
            MATRIX_TYPES.index(matrix_precision(precision)),
            int(has_fp8_head(precision)),
            int(has_fp8_kv(precision)),
        )
        self.block_bytes = library.c.ion_cuda_block_bytes(byref(config))
        self.handle = library.c.ion_cuda_model_create(byref(config), 0, blaslt.encode() if blaslt else None)
        if not self.handle:
            raise library.fail()

    def close(self) -> None:
        self.library.c.ion_cuda_model_destroy(self.handle)

    def tile(self) -> None:
        """Make the tiled copies, where the shape allows."""
        if self.library.c.ion_cuda_model_tile(c_void_p(self.handle)) != 0:
            raise self.library.fail()

    def pointer(self, weight: int, layer: int = 0) -> int | None:
        return self.library.c.ion_cuda_model_pointer(self.handle, weight, layer)

    def logits(self, ids: Sequence[int], chunk: int, *, streams: bool = True) -> ctypes.Array[c_float]:
        """Teacher-forced logits, [len(ids), vocab] flat."""
        out = (c_float * (len(ids) * self.shape.vocab_size))()
        given = (c_int32 * len(ids))(*ids)
        if self.library.c.ion_cuda_logits(self.handle, given, len(ids), chunk, int(streams), out) != 0:
            raise self.library.fail()
        return out


@dataclass
class Joined:
    """A sequence that joins."""

    slot: int
    ids: Sequence[int]
    sampling: Sampling
    num_prompt: int | None = None


class Runner:
    """Steps, as core/runner.h has them."""

    def __init__(self, model: Model, **options: int) -> None:
        self.model, self.library = model, model.library
        given = {"num_host_blocks": 0, "use_graphs": 1, "use_streams": 1, "decode_warps": 0}
        given |= {"is_deterministic": 0, **options}
        self.handle = self.library.c.ion_cuda_runner_create(model.handle, byref(COptions(**given)))
        if not self.handle:
            raise self.library.fail()
        self.epoch = 0

    def close(self) -> None:
        self.library.c.ion_cuda_runner_destroy(self.handle)

    def submit(
        self,
        rows: Sequence[tuple[int, int, int, int]],
        *,
        joins: Sequence[Joined] = (),
        leaves: Sequence[int] = (),
        blocks: Sequence[tuple[int, int, int]] = (),
        copies: Sequence[tuple[int, int]] = (),
    ) -> int:
        """Rows are (slot, start, count, flags), blocks (slot, index, block); gives the epoch."""
        self.epoch += 1
        made = [c_join(joined) for joined in joins]
        step = CStep(
            self.epoch,
            len(rows),
            len(leaves),
            len(joins),
            len(blocks),
            len(copies),
            (CRow * len(rows))(*(CRow(*row) for row in rows)),
            (c_int32 * len(leaves))(*leaves),
            (CJoin * len(joins))(*made),
            (CAppended * len(blocks))(*(CAppended(*block) for block in blocks)),
            (CCopy * len(copies))(*(CCopy(*copy) for copy in copies)),
        )
        if self.library.c.ion_cuda_submit(self.handle, byref(step)) != 0:
            raise self.library.fail()
        return self.epoch

    def upload_masks(self, epoch: int, masks: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Masks are (slot, words)."""
        keep = [(c_uint32 * len(words))(*words) for _, words in masks]
        made = [CMask(slot, len(words), word) for (slot, words), word in zip(masks, keep, strict=True)]
        given = (CMask * len(made))(*made)
        if self.library.c.ion_cuda_upload_masks(self.handle, epoch, given, len(made)) != 0:
            raise self.library.fail()

    def poll(self, wait: bool = True) -> tuple[dict[int, CSample], float] | None:
        """The oldest step's samples by slot, and its seconds on the device."""
        result = CResult()
        status = self.library.c.ion_cuda_poll(self.handle, byref(result), int(wait))
        if status < 0:
            raise self.library.fail()
        if status == 0:
            return None
        samples = {}
        for i in range(result.num_samples):
            copy = CSample()
            ctypes.memmove(byref(copy), byref(result.samples[i]), ctypes.sizeof(CSample))
            samples[result.slots[i]] = copy
        return samples, result.seconds


def c_join(joined: Joined) -> CJoin:
    """Its arrays stay alive through the structure's own references."""
    asked = joined.sampling
    ids = list(joined.ids)
    return CJoin(
        joined.slot,
        len(ids),
        len(ids) if joined.num_prompt is None else joined.num_prompt,
        (c_int32 * len(ids))(*ids),
        CSampling(
            asked.temperature,
            asked.top_p,
            asked.min_p,
            asked.top_a,
            asked.repetition_penalty,
            asked.presence_penalty,
            asked.frequency_penalty,
            asked.top_k,
            asked.min_tokens,
            asked.num_logprobs,
            asked.seed,
        ),
        len(asked.stop_ids),
        len(asked.bias),
        (c_int32 * len(asked.stop_ids))(*asked.stop_ids),
        (c_int32 * len(asked.bias))(*asked.bias),
        (c_float * len(asked.bias))(*asked.bias.values()),
    )
