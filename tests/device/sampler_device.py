"""The CUDA sampler through shims_sampler.cu: requests in device memory, poisoned outputs, samples."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_uint64, c_void_p

import numpy as np
import numpy.typing as npt
import torch
from sampler_reference import Request

MAX_LOGPROBS = 20
POISON = 0xA5
SAMPLE = np.dtype(
    [
        ("id", "<i4"),
        ("is_finite", "<i4"),
        ("logprob", "<f4"),
        ("num_top", "<i4"),
        ("top_ids", "<i4", MAX_LOGPROBS),
        ("top_logprobs", "<f4", MAX_LOGPROBS),
    ]
)
FLOATS = ("temperature", "top_p", "min_p", "top_a")
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
INTEGERS = ("top_k", "min_tokens", "num_logprobs")


class CSlot(ctypes.Structure):
    """SlotSampling of kernels/cuda/sampler.h."""

    _fields_ = [
        *((name, c_float) for name in (*FLOATS, *PENALTIES)),
        *((name, c_int32) for name in INTEGERS),
        ("seed", c_uint64),
        *((name, c_int32) for name in ("num_prompt", "num_stop_ids", "num_biases", "has_counts")),
        *((name, c_void_p) for name in ("stop_ids", "bias_ids", "biases")),
    ]


class CArgs(ctypes.Structure):
    """SampleArgs of kernels/cuda/sampler.h."""

    _fields_ = [
        ("logits", c_void_p),
        ("adjusted", c_void_p),
        ("vocab", c_int32),
        *((name, c_void_p) for name in ("row_slots", "row_positions", "slots", "generated", "prompt_seen")),
        *((name, c_void_p) for name in ("masks", "has_mask", "last_ids", "samples")),
    ]


class Sampler:
    def __init__(self, path: str, device: str = "cuda") -> None:
        self.library = ctypes.CDLL(path)
        self.device = device
        assert self.library.check_slot_bytes() == ctypes.sizeof(CSlot)
        assert self.library.check_sample_bytes() == SAMPLE.itemsize

    def stream(self) -> c_void_p:
        return c_void_p(torch.cuda.current_stream().cuda_stream if self.device == "cuda" else None)

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def sample(self, args: CArgs, num_rows: int) -> None:
        assert self.library.check_sample(ctypes.byref(args), num_rows, self.stream()) == 0

    def reset_counts(self, args: CArgs, slot: int, ids: torch.Tensor, num_prompt: int) -> None:
        call = self.library.check_reset_counts
        pointer = c_void_p(ids.data_ptr())
        assert call(ctypes.byref(args), slot, pointer, ids.numel(), num_prompt, self.stream()) == 0


def words_of(allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    padded = np.zeros((len(allowed) + 31) // 32 * 32, dtype=np.bool_)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view("<u4")


class Batch:
    """Requests (None: a padding row) in device memory; slots are not in row order, outputs are poisoned."""

    def __init__(
        self, sampler: Sampler, requests: Sequence[Request | None], *, is_pinned: bool = False
    ) -> None:
        self.sampler, self.requests = sampler, requests
        vocab = next(len(r.logits) for r in requests if r is not None)
        num_rows, num_words = len(requests), (vocab + 31) // 32
        # Slot 0 is nobody's.
        self.slot_of = [num_rows - i if r is not None else -1 for i, r in enumerate(requests)]
        self.held: list[torch.Tensor] = []
        poison = np.full(vocab, np.nan, np.float32)
        rows = np.stack([poison if r is None else r.logits for r in requests])
        self.last_ids = self.put(np.full(num_rows + 1, -77, np.int32))
        self.generated = self.put(np.full((num_rows + 1, vocab), 777, np.int16))
        samples = torch.full((num_rows * SAMPLE.itemsize,), POISON, dtype=torch.uint8)
        self.samples = samples.pin_memory() if is_pinned else samples.to(sampler.device)
        allowed = [None if r is None else r.allowed for r in requests]
        masks = np.stack([np.zeros(num_words, np.uint32) if a is None else words_of(a) for a in allowed])
        self.args = CArgs(
            logits=self.put(rows).data_ptr(),
            adjusted=self.put(np.full_like(rows, np.nan)).data_ptr(),
            vocab=vocab,
            row_slots=self.put(np.array(self.slot_of, np.int32)).data_ptr(),
            row_positions=self.put(
                np.array([-9 if r is None else r.position for r in requests], np.int32)
            ).data_ptr(),
            slots=self.put(self.slots()).data_ptr(),
            generated=self.generated.data_ptr(),
            prompt_seen=self.put(np.full((num_rows + 1, num_words), -1, np.int32)).data_ptr(),
            last_ids=self.last_ids.data_ptr(),
            samples=self.samples.data_ptr(),
        )
        if any(a is not None for a in allowed):
            self.args.masks = self.put(masks.view(np.int32)).data_ptr()
            self.args.has_mask = self.put(np.array([a is not None for a in allowed], np.int32)).data_ptr()
        self.count()

    def put(self, values: npt.NDArray[np.generic]) -> torch.Tensor:
        self.held.append(torch.from_numpy(np.ascontiguousarray(values)).to(self.sampler.device))
        return self.held[-1]

    def slots(self) -> npt.NDArray[np.uint8]:
        slots = (CSlot * (len(self.requests) + 1))()
        for request, index in zip(self.requests, self.slot_of, strict=True):
            if request is None:
                continue
            slot = slots[index]
            for name in (*FLOATS, *PENALTIES, *INTEGERS, "seed"):
                setattr(slot, name, getattr(request, name))
            slot.num_prompt, slot.has_counts = len(request.prompt), int(request.has_penalties)
            slot.num_stop_ids, slot.num_biases = len(request.stop_ids), len(request.biases)
            if request.stop_ids:
                slot.stop_ids = self.put(np.array(request.stop_ids, np.int32)).data_ptr()
            if request.biases:
                slot.bias_ids = self.put(np.array([*request.biases], np.int32)).data_ptr()
                slot.biases = self.put(np.array([*request.biases.values()], np.float32)).data_ptr()
        return np.frombuffer(bytes(slots), np.uint8).copy()

    def count(self) -> None:
        for request, slot in zip(self.requests, self.slot_of, strict=True):
            if request is not None and request.has_penalties:
                ids = self.put(np.array([*request.prompt, *request.generated], np.int32))
                self.sampler.reset_counts(self.args, slot, ids, len(request.prompt))

    def run(self) -> npt.NDArray[np.void]:
        """The rows' samples. Also compares last ids and counts with them."""
        self.sampler.sample(self.args, len(self.requests))
        self.sampler.wait()
        samples = self.samples.cpu().numpy().view(SAMPLE)
        last_ids, generated = self.last_ids.cpu().numpy(), self.generated.cpu().numpy().view(np.uint16)
        assert last_ids[0] == -77 and (generated[0] == 777).all(), "a slot without a row was written"
        for i, (request, slot) in enumerate(zip(self.requests, self.slot_of, strict=True)):
            if request is None:
                assert set(samples[i].tobytes()) == {POISON}, "a padding row was written"
                continue
            drawn = max(int(samples[i]["id"]), 0)
            assert last_ids[slot] == drawn, f"row {i}: last id {last_ids[slot]}, sampled {drawn}"
            if request.has_penalties:
                ids = np.array([*request.generated, drawn], np.int64)
                wanted = np.minimum(np.bincount(ids, minlength=len(request.logits)), 65535)
                assert (generated[slot] == wanted).all(), f"row {i}: counts"
            else:
                assert (generated[slot] == 777).all(), f"row {i}: counts of a slot that keeps none"
        return samples
