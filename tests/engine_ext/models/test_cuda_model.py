"""What a GPU's library is given of a model's files, seen by a test double; and who is missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as TensorType

from ionrouter.engine import _ion
from tests.support.cuda_double import Double, Weight, as_float, bf16, double_path
from tests.support.ion_engine import generate, make_engine
from tests.support.tiny_llama import Array, TinyLlama, interleave, write_gguf, write_safetensors

SHAPE = TinyLlama(num_kv_heads=2, vocab_size=203)


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    path = double_path()
    monkeypatch.setenv("IONROUTER_CUDA_LIBRARY", str(path))
    return Double(path)


def load_gguf(
    path: Path, weights: dict[str, Array], kind: TensorType, shape: TinyLlama = SHAPE, **data: Any
) -> Any:
    write_gguf(path / "x.gguf", shape, weights, kind, **data)
    return _ion.CudaModel.load_gguf(str(path / "x.gguf"), threads=2)


def load_safetensors(path: Path, weights: dict[str, Array], dtype: str = "F32", **config: Any) -> Any:
    write_safetensors(path / "x.safetensors", weights, dtype)
    text = json.dumps(json.loads(SHAPE.config_json()) | config)
    return _ion.CudaModel.load_safetensors([str(path / "x.safetensors")], text)


def joined(weights: dict[str, Array], *names: str) -> Array:
    return np.concatenate([weights[name] for name in names])


def check_all(double: Double, weights: dict[str, Array], shape: TinyLlama = SHAPE) -> None:
    """Compare every weight of the double with `weights` (float32, by GGUF name), bit for bit."""

    def check(weight: Weight, layer: int, wanted: Array) -> None:
        found = double.weight(weight, layer)
        assert found is not None
        np.testing.assert_array_equal(
            found, wanted if wanted.ndim == 1 else bf16(wanted), err_msg=weight.name
        )

    check(Weight.EMBEDDING, 0, weights["token_embd.weight"])
    check(Weight.OUTPUT_NORM, 0, weights["output_norm.weight"])
    if "output.weight" in weights:
        check(Weight.HEAD, 0, weights["output.weight"])
    for layer in range(shape.num_layers):
        at = f"blk.{layer}."
        check(Weight.ATTN_NORM, layer, weights[at + "attn_norm.weight"])
        check(Weight.FFN_NORM, layer, weights[at + "ffn_norm.weight"])
        check(Weight.QKV, layer, joined(weights, *(f"{at}attn_{part}.weight" for part in "qkv")))
        check(Weight.OUTPUT, layer, weights[at + "attn_output.weight"])
        check(Weight.GATE_UP, layer, joined(weights, at + "ffn_gate.weight", at + "ffn_up.weight"))
        check(Weight.DOWN, layer, weights[at + "ffn_down.weight"])


def stored(weights: dict[str, Array], kind: TensorType) -> dict[str, Array]:
    """What a file of this type holds of `weights`: quantised and back, by the format's own package."""
    return {
        name: value if value.ndim == 1 else gguf.dequantize(gguf.quantize(value, kind), kind)
        for name, value in weights.items()
    }


@pytest.mark.parametrize(
    "kind",
    [
        *(TensorType.F32, TensorType.F16, TensorType.BF16),
        *(TensorType.Q8_0, TensorType.Q4_1, TensorType.Q5_0, TensorType.Q5_1),
    ],
)
def test_a_gguf_arrives_rounded_joined_and_in_half_split_order(
    tmp_path: Path, double: Double, kind: TensorType
) -> None:
    weights = SHAPE.weights(1)
    model = load_gguf(tmp_path, weights, kind)
    check_all(double, stored(weights, kind))
    assert double.config().is_head_tied == 0
    assert model.weight_bytes > 0
    assert (
        model.config["kv_block_bytes"] == 2 * SHAPE.num_layers * SHAPE.num_kv_heads * SHAPE.head_dim * 16 * 2
    )


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_safetensors_arrive_as_they_lie(tmp_path: Path, double: Double, dtype: str) -> None:
    weights = SHAPE.weights(2)
    load_safetensors(tmp_path, weights, dtype)
    if dtype == "F16":
        weights = {name: value.astype(np.float16).astype(np.float32) for name, value in weights.items()}
    if dtype == "BF16":  # norms too
        weights = {name: as_float(bf16(value)) for name, value in weights.items()}
    check_all(double, weights)


def test_rounding_goes_to_the_nearest_and_of_two_to_the_even(tmp_path: Path, double: Double) -> None:
    weights = SHAPE.weights(3)
    bits = np.array(
        [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0xBF818000, 0x7F7FFFFF, 0x00008000, 0], np.uint32
    )
    weights["output.weight"][0, :8] = bits.view(np.float32)
    weights["output.weight"][1, :3] = [np.nan, np.inf, -np.inf]
    load_gguf(tmp_path, weights, TensorType.F32)
    head = double.weight(Weight.HEAD)
    assert head is not None
    assert [hex(b) for b in head[0, :8]] == [
        *("0x3f80", "0x3f82", "0x3f81", "0x3f80", "0xbf82", "0x7f80", "0x0", "0x0")
    ]
    assert np.isnan(as_float(head[1, :1]))[0]
    assert list(as_float(head[1, 1:3])) == [np.inf, -np.inf]


def test_a_tied_head_is_the_embedding(tmp_path: Path, double: Double) -> None:
    shape = TinyLlama(is_tied=True)
    weights = shape.weights(1)
    load_gguf(tmp_path, weights, TensorType.F16, shape)
    assert double.config().is_head_tied == 1
    assert double.weight(Weight.HEAD) is None
    check_all(double, stored(weights, TensorType.F16), shape)


def test_biases_of_q_k_and_v_are_joined_and_missing_ones_are_zeros(tmp_path: Path, double: Double) -> None:
    weights = SHAPE.weights(1)
    q_size, kv_size = SHAPE.num_heads * SHAPE.head_dim, SHAPE.num_kv_heads * SHAPE.head_dim
    q, v = np.arange(q_size, dtype=np.float32), 100 + np.arange(kv_size, dtype=np.float32)
    load_safetensors(tmp_path, weights | {"blk.0.attn_q.bias": q, "blk.0.attn_v.bias": v})
    assert double.config().has_qkv_bias == 1
    found = double.weight(Weight.QKV_BIAS, 0)
    np.testing.assert_array_equal(found, np.concatenate([q, np.zeros(kv_size), v]))
    np.testing.assert_array_equal(double.weight(Weight.QKV_BIAS, 1), np.zeros(q_size + 2 * kv_size))


def test_a_gguf_s_biases_of_q_and_k_are_reordered_as_its_rows_are(tmp_path: Path, double: Double) -> None:
    q_size, kv_size = SHAPE.num_heads * SHAPE.head_dim, SHAPE.num_kv_heads * SHAPE.head_dim
    q, k = np.arange(q_size, dtype=np.float32), 100 + np.arange(kv_size, dtype=np.float32)
    in_file = {
        "blk.1.attn_q.bias": interleave(q, SHAPE.num_heads),
        "blk.1.attn_k.bias": interleave(k, SHAPE.num_kv_heads),
    }
    load_gguf(tmp_path, SHAPE.weights(1) | in_file, TensorType.F32)
    found = double.weight(Weight.QKV_BIAS, 1)
    np.testing.assert_array_equal(found, np.concatenate([q, k, np.zeros(kv_size)]))


def test_norms_of_the_heads_arrive(tmp_path: Path, double: Double) -> None:
    rng = np.random.default_rng(1)
    norms = {
        f"blk.{layer}.attn_{part}_norm.weight": rng.standard_normal(SHAPE.head_dim).astype(np.float32)
        for layer in range(SHAPE.num_layers)
        for part in "qk"
    }
    load_gguf(tmp_path, SHAPE.weights(1) | norms, TensorType.F32)
    assert double.config().has_qk_norm == 1
    for layer in range(SHAPE.num_layers):
        for part, weight in (("q", Weight.Q_NORM), ("k", Weight.K_NORM)):
            wanted = norms[f"blk.{layer}.attn_{part}_norm.weight"]
            np.testing.assert_array_equal(double.weight(weight, layer), wanted)


def test_a_gguf_s_own_factors_divide_the_frequencies(tmp_path: Path, double: Double) -> None:
    factors = np.array([1, 1, 2, 3, 4, 5, 6, 8], np.float32)
    load_gguf(tmp_path, SHAPE.weights(1) | {"rope_freqs.weight": factors}, TensorType.F32)
    wanted = 10000.0 ** (-np.arange(8) / 8) / factors
    np.testing.assert_allclose(double.frequencies(), wanted, rtol=1e-15)


def test_a_config_that_has_no_bias_gets_none(tmp_path: Path, double: Double) -> None:
    load_safetensors(tmp_path, SHAPE.weights(1))
    assert double.config().has_qkv_bias == double.config().has_qk_norm == 0
    assert double.weight(Weight.QKV_BIAS) is None


def test_sizes_frequencies_and_windows_are_the_config_s(tmp_path: Path, double: Double) -> None:
    rope = {"rope_type": "linear", "factor": 4.0}
    load_safetensors(tmp_path, SHAPE.weights(1), model_type="mistral", sliding_window=64, rope_scaling=rope)
    config = double.config()
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (2, 64, 4, 2)
    assert (config.head_dim, config.ffn_size, config.vocab_size) == (16, 96, 203)
    assert config.rms_eps == np.float32(1e-5)
    assert config.windows[:2] == [64, 64]
    wanted = 10000.0 ** (-np.arange(8) / 8) / 4
    np.testing.assert_allclose(double.frequencies(), wanted, rtol=1e-15)


def test_without_windows_there_is_no_list_of_them(tmp_path: Path, double: Double) -> None:
    load_safetensors(tmp_path, SHAPE.weights(1))
    assert not double.config().windows


@pytest.mark.parametrize("part", ["attn_output", "ffn_gate", "ffn_up", "ffn_down"])
def test_a_bias_without_a_place_is_named(tmp_path: Path, double: Double, part: str) -> None:
    size = SHAPE.ffn_size if part in ("ffn_gate", "ffn_up") else SHAPE.hidden_size
    weights = SHAPE.weights(1) | {f"blk.1.{part}.bias": np.zeros(size, np.float32)}
    with pytest.raises(ValueError, match=rf"tensor 'blk.1.{part}.bias': on CUDA only"):
        load_gguf(tmp_path, weights, TensorType.F32)


def test_norms_of_heads_in_some_layers_only_are_refused(tmp_path: Path, double: Double) -> None:
    norm = np.ones(SHAPE.head_dim, np.float32)
    with pytest.raises(ValueError, match="norms of the heads in some layers only"):
        load_gguf(tmp_path, SHAPE.weights(1) | {"blk.0.attn_q_norm.weight": norm}, TensorType.F32)


def test_files_are_checked_as_the_cpu_checks_them(tmp_path: Path, double: Double) -> None:
    weights = SHAPE.weights(1)
    weights["blk.1.ffn_up.weight"] = weights["blk.1.ffn_up.weight"][:64]
    with pytest.raises(ValueError, match=r"'blk.1.ffn_up.weight': shape \[96, 64\] wanted, \[64, 64\] found"):
        load_gguf(tmp_path, weights, TensorType.F32)


def test_pieces_are_bounded_and_whole(tmp_path: Path, double: Double) -> None:
    """A matrix of 40 MB goes in several writes, each row once (asserted by `weight`)."""
    shape = TinyLlama(num_layers=1, vocab_size=80_000, hidden_size=256, head_dim=64, is_tied=True)
    weights = shape.weights(1)
    load_gguf(tmp_path, weights, TensorType.F32, shape)
    assert double.largest_write() <= 16 << 20
    np.testing.assert_array_equal(double.weight(Weight.EMBEDDING), bf16(weights["token_embd.weight"]))


def test_logits_come_from_the_library(tmp_path: Path, double: Double) -> None:
    model = load_gguf(tmp_path, SHAPE.weights(1), TensorType.F32)
    rows = np.asarray(model.logits([3, 4], chunk=2))
    np.testing.assert_array_equal(rows, np.array([[6], [8]]) + np.arange(SHAPE.vocab_size))
    with pytest.raises(ValueError, match="id 203 outside the vocabulary of 203"):
        model.logits([203])
    double.fail_next("logits")
    with pytest.raises(RuntimeError, match="logits was told to fail"):
        model.logits([1])


def test_an_engine_runs_on_the_library(tmp_path: Path, double: Double) -> None:
    model = load_gguf(tmp_path, SHAPE.weights(1), TensorType.F32)
    engine = make_engine(model, num_blocks=32, max_running=4)
    (answer,) = generate(engine, [[1, 2, 3]], max_tokens=5)
    slot = 0
    assert answer.ids == [(slot * 7 + position * 13 + 5) % SHAPE.vocab_size for position in range(3, 8)]
    with pytest.raises(
        ValueError, match="logprobs: 21 is above 20, the most that this model's device reports"
    ):
        engine.submit([1], max_tokens=1, logprobs=21)
    engine.close()


def test_a_failed_step_ends_its_sequences_and_the_engine_goes_on(tmp_path: Path, double: Double) -> None:
    engine = make_engine(load_gguf(tmp_path, SHAPE.weights(1), TensorType.F32), num_blocks=32, max_running=4)
    double.fail_next("poll")
    (failed,) = generate(engine, [[1, 2, 3]], max_tokens=5)
    assert (failed.finish, failed.error) == (4, "CUDA: poll was told to fail")
    (answer,) = generate(engine, [[1, 2, 3]], max_tokens=5)
    assert len(answer.ids) == 5
    engine.close()


def test_too_little_memory_on_the_gpu_says_the_bytes(
    tmp_path: Path, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_DOUBLE_FREE_BYTES", "1000")
    with pytest.raises(_ion.MemoryShort, match=r"weights on Double GPU: \d+ bytes needed, 1000 available"):
        load_gguf(tmp_path, SHAPE.weights(1), TensorType.F32)


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IONROUTER_CUDA_LIBRARY", str(tmp_path / "nothing.so"))
    with pytest.raises(RuntimeError, match=r"there is no .*/nothing.so: this build has no CUDA part"):
        _ion.cuda_device()
    (tmp_path / "nothing.so").write_text("no library")
    with pytest.raises(RuntimeError, match=r"nothing.so cannot be loaded"):
        _ion.cuda_device()


def test_another_version_of_the_interface_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(double_path(), tmp_path / "other.so")
    monkeypatch.setenv("IONROUTER_CUDA_LIBRARY", str(tmp_path / "other.so"))
    monkeypatch.setenv("CUDA_DOUBLE_ABI", "99")
    with pytest.raises(RuntimeError, match=r"other.so has version 99 of the interface, this build wants \d+"):
        _ion.cuda_device()


def test_a_library_that_lacks_a_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IONROUTER_CUDA_LIBRARY", _ion.__file__)
    with pytest.raises(RuntimeError, match="has no function ion_cuda_abi"):
        _ion.cuda_device()


def test_a_machine_without_a_gpu_says_what_the_driver_says(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _ion.cuda_device()["name"] == "Double GPU"
    monkeypatch.setenv("CUDA_DOUBLE_NO_GPU", "1")
    with pytest.raises(RuntimeError, match="no GPU to compute on: no CUDA-capable device is detected"):
        _ion.cuda_device()
