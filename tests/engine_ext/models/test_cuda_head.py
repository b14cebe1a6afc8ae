"""What a GPU's library is given with an fp8 head, made of the files' head or embedding; seen by a double."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as TensorType

from ionrouter.engine import _ion
from tests.support.cuda_double import Double, Weight, as_float, bf16, double_path, e4m3
from tests.support.tiny_llama import Array, TinyLlama, write_gguf, write_safetensors

OWN = TinyLlama(num_kv_heads=2, vocab_size=203)
TIED = TinyLlama(num_kv_heads=2, vocab_size=203, is_tied=True)


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    path = double_path()
    monkeypatch.setenv("IONROUTER_CUDA_LIBRARY", str(path))
    return Double(path)


def load(path: Path, shape: TinyLlama = OWN, **precisions: str) -> Any:
    return _ion.CudaModel.load_safetensors([str(path)], shape.config_json(), **precisions)


def check_head(double: Double, rows: Array, embedding: Array) -> None:
    """The head is codes of `rows`, the embedding bf16, both float32 as the file has them."""
    codes, scales = e4m3(rows)
    found = double.weight(Weight.HEAD)
    assert found is not None and found.dtype == np.uint8
    np.testing.assert_array_equal(found, codes)
    np.testing.assert_array_equal(double.weight(Weight.HEAD_SCALE), scales)
    np.testing.assert_array_equal(double.weight(Weight.EMBEDDING), bf16(embedding))
    assert (double.config().head_type, double.config().is_head_tied) == (1, 0)


@pytest.mark.parametrize("shape", [OWN, TIED])
@pytest.mark.parametrize("kind", [TensorType.F32, TensorType.BF16, TensorType.Q8_0])
def test_a_gguf_s_head_or_its_embedding_is_quantised(
    tmp_path: Path, double: Double, shape: TinyLlama, kind: TensorType
) -> None:
    weights = shape.weights(1)
    write_gguf(tmp_path / "x.gguf", shape, weights, kind)
    model = _ion.CudaModel.load_gguf(str(tmp_path / "x.gguf"), head_precision="fp8")
    embedding, head = (
        gguf.dequantize(gguf.quantize(weights[name], kind), kind)
        for name in ("token_embd.weight", "token_embd.weight" if shape.is_tied else "output.weight")
    )
    check_head(double, head, embedding)
    assert (model.precision, model.head_precision, model.kv_precision) == ("bf16", "fp8", "bf16")
    assert (double.config().matrix_type, double.config().kv_type) == (0, 0)


@pytest.mark.parametrize("precision", ["auto", "bf16", "fp8"])
@pytest.mark.parametrize("shape", [OWN, TIED])
def test_a_safetensors_head_is_quantised_whatever_the_matrices_are(
    tmp_path: Path, double: Double, shape: TinyLlama, precision: str
) -> None:
    weights = shape.weights(2)
    write_safetensors(tmp_path / "x.safetensors", weights, "F32")
    load(tmp_path / "x.safetensors", shape, precision=precision, head_precision="fp8")
    head = weights["token_embd.weight" if shape.is_tied else "output.weight"]
    check_head(double, head, weights["token_embd.weight"])
    down = weights["blk.1.ffn_down.weight"]
    wanted = e4m3(down)[0] if precision == "fp8" else bf16(down)
    np.testing.assert_array_equal(double.weight(Weight.DOWN, 1), wanted)
    assert double.config().matrix_type == (precision == "fp8")


def test_a_head_is_bf16_unless_asked_otherwise(tmp_path: Path, double: Double) -> None:
    for shape in (OWN, TIED):
        write_safetensors(tmp_path / "x.safetensors", shape.weights(2), "BF16")
        for precision in ("auto", "fp8"):
            assert load(tmp_path / "x.safetensors", shape, precision=precision).head_precision == "bf16"
            assert (double.config().head_type, double.config().is_head_tied) == (0, shape.is_tied)
            assert double.weight(Weight.HEAD_SCALE) is None


@pytest.mark.parametrize("is_tied", [True, False])
def test_random_weights_have_the_head_that_the_same_file_has(
    tmp_path: Path, double: Double, is_tied: bool
) -> None:
    shape = TinyLlama(num_kv_heads=2, vocab_size=203, is_tied=is_tied)
    config = shape.config_json()
    _ion.CudaModel.random(config, 3)
    embedding, head = double.weight(Weight.EMBEDDING), double.weight(Weight.HEAD)
    qkv = double.weight(Weight.QKV)
    assert embedding is not None and (head is None) == is_tied
    model = _ion.CudaModel.random(config, 3, head_precision="fp8")
    check_head(double, as_float(embedding if head is None else head), as_float(embedding))
    np.testing.assert_array_equal(double.weight(Weight.QKV), qkv)
    assert (model.precision, model.head_precision) == ("bf16", "fp8")


def test_a_step_reads_the_head_s_codes_and_never_the_embedding(tmp_path: Path, double: Double) -> None:
    values = OWN.vocab_size * OWN.hidden_size
    codes = values + 4 * OWN.vocab_size
    for shape in (OWN, TIED):
        write_safetensors(tmp_path / "x.safetensors", shape.weights(2), "BF16")
        wide = load(tmp_path / "x.safetensors", shape)
        narrow = load(tmp_path / "x.safetensors", shape, head_precision="fp8")
        assert narrow.weight_bytes - narrow.streamed_bytes == 2 * values
        assert wide.streamed_bytes - narrow.streamed_bytes == 2 * values - codes
        more = codes if shape.is_tied else codes - 2 * values
        assert narrow.weight_bytes - wide.weight_bytes == more


def test_large_heads_come_in_pieces(tmp_path: Path, double: Double) -> None:
    shape = TinyLlama(num_layers=1, vocab_size=80_000, hidden_size=256, head_dim=64, is_tied=True)
    weights = shape.weights(1)
    write_safetensors(tmp_path / "x.safetensors", weights, "F32")
    load(tmp_path / "x.safetensors", shape, head_precision="fp8")
    found = double.weight(Weight.HEAD)
    assert found is not None
    rows = [0, 32_767, 32_768, 65_535, 65_536, 79_999]
    np.testing.assert_array_equal(found[rows], e4m3(weights["token_embd.weight"][rows])[0])
    assert double.largest_write() <= 16 << 20


@pytest.mark.parametrize("shape", [OWN, TIED])
def test_what_is_not_finite_is_refused_by_name(tmp_path: Path, double: Double, shape: TinyLlama) -> None:
    weights = shape.weights(3)
    weights["token_embd.weight" if shape.is_tied else "output.weight"][5, 7] = np.inf
    write_safetensors(tmp_path / "x.safetensors", weights)
    name = "model.embed_tokens.weight" if shape.is_tied else "lm_head.weight"
    with pytest.raises(ValueError, match=f"tensor '{name}' holds values that are not finite"):
        load(tmp_path / "x.safetensors", shape, head_precision="fp8")
    assert load(tmp_path / "x.safetensors", shape).head_precision == "bf16"
