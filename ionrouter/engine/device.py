"""Where a model is computed: on the CPU, or on a GPU behind libion_cuda. Asks the machine; loads no model."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ionrouter.errors import ConfigError, Problem

DeviceKind = Literal["cpu", "cuda"]

INSTRUCTION_SETS = ("scalar", "avx2", "avx512vnni")  # of ION_ISA, as dispatch.cpp reads them
_FP8_COMPUTE = (8, 9)  # the first that knows e4m3


@dataclass(frozen=True, slots=True)
class Device:
    """The choice, and what led to it."""

    kind: DeviceKind
    name: str | None = None  # of a GPU: "NVIDIA H100 80GB HBM3"
    why_not_cuda: str | None = None  # where `auto` came to mean the CPU


def choose_device(
    wanted: str, *, numerics: str, kv_tier_folder: str, fp8: Sequence[str] = (), place: str = ""
) -> Device:
    """Turn `device:` of routes.yaml into a device; `place` is the endpoint's, "models.m.endpoints[0]".

    `fp8` names the endpoint's options that are fp8: "kv_precision".
    Raises ConfigError naming place and reason where `cuda` or fp8 is wanted and cannot be had, or naming
    ION_ISA where it has a value that the kernels would pass over.
    """
    reason: str | None = "device is cpu"
    if wanted != "cpu":
        reason = _why_only_cpu(numerics, kv_tier_folder)
        if reason is None:
            try:
                return Device("cuda", name=_gpu(fp8))
            except RuntimeError as error:
                reason = str(error)
    at = f"{place}." if place else ""
    if wanted == "cuda":
        raise ConfigError([Problem(f"{at}device", f"cuda cannot be had: {reason}")])
    if fp8:
        raise ConfigError(
            [Problem(f"{at}{name}", f"fp8 is computed on a GPU alone: {reason}") for name in fp8]
        )
    if (isa := os.environ.get("ION_ISA")) and isa not in INSTRUCTION_SETS:
        raise ConfigError([Problem("ION_ISA", f"'{isa}' is none of {', '.join(INSTRUCTION_SETS)}")])
    return Device("cpu", why_not_cuda=reason if wanted != "cpu" else None)


def _why_only_cpu(numerics: str, kv_tier_folder: str) -> str | None:
    if numerics == "exact":
        return "numerics exact is computed on the CPU alone"
    if kv_tier_folder:
        return "a kv_tier in a file (path) is the CPU's alone"
    return None


def _gpu(fp8: Sequence[str]) -> str:
    """Name the GPU; raises RuntimeError saying what is missing."""
    from ionrouter.engine import _ion

    found = _ion.cuda_device()
    if fp8 and found["compute"] < _FP8_COMPUTE:
        what = "fp8" if fp8[0] == "precision" else f"{fp8[0]} fp8"
        major, minor = found["compute"]
        raise RuntimeError(
            f"{what} wants a GPU of compute capability 8.9 or more; {found['name']} has {major}.{minor}"
        )
    return str(found["name"])


def cublas_lt_path() -> str:
    """Find libcublasLt of the package nvidia-cublas; empty where it is not installed."""
    spec = importlib.util.find_spec("nvidia")  # a namespace of NVIDIA's packages: importing runs nothing
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    patterns = ("cu[0-9]*/lib/libcublasLt.so.[0-9]*", "cublas/lib/libcublasLt.so.[0-9]*")
    found = [path for folder in folders for pattern in patterns for path in folder.glob(pattern)]
    return str(max(found, key=_version)) if found else ""


def _version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name)]
