"""The kernels' C++ tests, built once into build/kernel_tests; and dequantisation against the gguf package.

Knows no kernel: each executable says on its own what failed (tests/engine_ext/check.h).
"""

from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.support.cxx import ROOT, built, run
from tests.support.k_quants import quantize

HERE = Path(__file__).parent
EXECUTABLES = sorted(source.stem for source in HERE.glob("test_*.cpp"))
QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


@pytest.fixture(scope="session")
def build() -> Path:
    return built(HERE, "kernel_tests")


@pytest.mark.parametrize("name", EXECUTABLES)
def test_the_kernels_do_what_their_tests_say(build: Path, name: str) -> None:
    run(build / name)


@pytest.mark.parametrize("isa", ["avx2", "avx512vnni"])
def test_an_instruction_set_is_among_those_compared(build: Path, isa: str) -> None:
    compared = run(build / "dequantize").decode().split()
    assert compared[0] == "scalar"
    if isa not in compared:
        pytest.skip(f"this CPU has no {isa}: its kernels were built, but not compared with the scalar ones")


def dequantized(build: Path, dtype: str, raw: bytes, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return [n, k] dequantised from the file layout, and through packing."""
    out = run(build / "dequantize", dtype, str(n), str(k), given=raw)
    both = np.frombuffer(out, dtype=np.float32).reshape(2, n, k)
    return both[0], both[1]


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_random_blocks_dequantize_to_the_bits_of_the_gguf_package(build: Path, dtype: str) -> None:
    kind = gguf.GGMLQuantizationType[dtype]
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    n, k = 37, 2 * 256
    rng = np.random.default_rng(11)
    raw = rng.integers(0, 256, size=(n, k // block_size, block_bytes), dtype=np.uint8)
    # A scale of random bits may be NaN, which compares with nothing: keep the exponent's top bit clear.
    scales = {"Q6_K": (209,)} | dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (1, 3))
    for at in scales.get(dtype, (1,)):
        raw[:, :, at] &= 0xBF
    want = gguf.quants.dequantize(raw.reshape(n, -1), kind)
    for got in dequantized(build, dtype, raw.tobytes(), n, k):
        assert np.array_equal(got.view(np.uint32), want.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16", "F32"])
def test_rows_that_the_gguf_package_quantized_come_back(build: Path, dtype: str) -> None:
    kind = gguf.GGMLQuantizationType[dtype]
    n, k = 19, 96
    values = np.random.default_rng(12).normal(size=(n, k)).astype(np.float32)
    raw = gguf.quants.quantize(values, kind)
    want = gguf.quants.dequantize(raw, kind).astype(np.float32)
    for got in dequantized(build, dtype, raw.tobytes(), n, k):
        assert np.array_equal(got, want)
        assert np.abs(got - values).max() < 0.5


@pytest.mark.parametrize(("dtype", "codes"), [("Q4_K", 15), ("Q5_K", 31), ("Q6_K", 62)])
def test_rows_rounded_to_a_k_type_come_back(build: Path, dtype: str, codes: int) -> None:
    kind = gguf.GGMLQuantizationType[dtype]
    n, k = 19, 768
    values = np.random.default_rng(13).normal(size=(n, k)).astype(np.float32)
    raw = quantize(values, kind)
    want = gguf.quants.dequantize(raw, kind).astype(np.float32)
    for got in dequantized(build, dtype, raw.tobytes(), n, k):
        assert np.array_equal(got.view(np.uint32), want.view(np.uint32))
        # Half a step, and as much again for scales and minimums of 6 bits.
        assert np.abs(got - values).max() < np.ptp(values) / codes


def test_every_kernel_test_is_found() -> None:
    assert {"test_matmul", "test_attention", "test_sampler", "test_philox"} <= set(EXECUTABLES)


def test_the_kernels_include_no_python_and_no_torch() -> None:
    folder = ROOT / "engine_ext" / "kernels"
    sources = [path for suffix in ("*.h", "*.cpp") for path in folder.rglob(suffix)]
    assert len(sources) > 20
    for source in sources:
        includes = [line for line in source.read_text().splitlines() if line.startswith("#include")]
        for word in ("torch", "ATen", "c10", "pybind11", "Python.h", "core/", "models/"):
            assert not any(word in line for line in includes), f"{source.name} includes {word}"
