"""What a GPU's library is given with fp8, quantised at load or as checkpoints hold it; seen by a double."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as TensorType
from safetensors.torch import save_file

from ionrouter.engine import _ion
from tests.support.cuda_double import Double, Weight, bf16, double_path, e4m3, e4m3_floats
from tests.support.ion_engine import make_engine
from tests.support.tiny_llama import Array, TinyLlama, json_name, write_gguf, write_safetensors

SHAPE = TinyLlama(num_kv_heads=2, vocab_size=203)
BLOCKS = TinyLlama(num_kv_heads=2, vocab_size=203, hidden_size=192, num_heads=12, ffn_size=160)
JOINED = {
    Weight.QKV: ("attn_q", "attn_k", "attn_v"),
    Weight.OUTPUT: ("attn_output",),
    Weight.GATE_UP: ("ffn_gate", "ffn_up"),
    Weight.DOWN: ("ffn_down",),
}
PRODUCTS = [part for parts in JOINED.values() for part in parts]


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    path = double_path()
    monkeypatch.setenv("IONROUTER_CUDA_LIBRARY", str(path))
    return Double(path)


def load(path: Path, shape: TinyLlama = SHAPE, precision: str = "auto", **more: Any) -> Any:
    return _ion.CudaModel.load_safetensors([str(path)], shape.config_json(), precision=precision, **more)


def found_codes(double: Double, weight: Weight, layer: int) -> tuple[Array, Array]:
    codes = double.weight(weight, layer)
    scales = double.weight(Weight[f"{weight.name}_SCALE"], layer)
    assert codes is not None and scales is not None and codes.dtype == np.uint8
    return codes, scales


def check_quantised(double: Double, weights: Mapping[str, Array], shape: TinyLlama = SHAPE) -> None:
    """Every layer's matrices are codes of `weights` (float32), the rest is as without fp8."""
    for layer in range(shape.num_layers):
        for weight, parts in JOINED.items():
            rows = np.concatenate([weights[f"blk.{layer}.{part}.weight"] for part in parts])
            codes, scales = found_codes(double, weight, layer)
            wanted_codes, wanted_scales = e4m3(rows)
            np.testing.assert_array_equal(codes, wanted_codes, err_msg=weight.name)
            np.testing.assert_array_equal(scales, wanted_scales, err_msg=weight.name)
    for weight, name in ((Weight.EMBEDDING, "token_embd.weight"), (Weight.HEAD, "output.weight")):
        np.testing.assert_array_equal(double.weight(weight), bf16(weights[name]))


def fp8_file(
    path: Path, weights: Mapping[str, Array], scales: Mapping[str, Array | torch.Tensor], **more: torch.Tensor
) -> Path:
    """A checkpoint: what has scales is codes (uint8 in `weights`), the rest BF16."""
    tensors: dict[str, torch.Tensor] = {}
    for name, value in weights.items():
        if value.dtype == np.uint8:
            tensors[json_name(name)] = torch.from_numpy(value.copy()).view(torch.float8_e4m3fn)
        else:
            tensors[json_name(name)] = torch.from_numpy(value).bfloat16()
    for name, scale in scales.items():
        tensors[json_name(name)] = torch.from_numpy(scale) if isinstance(scale, np.ndarray) else scale
    save_file(tensors | more, path / "x.safetensors")
    return path / "x.safetensors"


def checkpoint(shape: TinyLlama, seed: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Random codes of all layers' products, no NaN; the other weights in float32 that BF16 holds."""
    rng = np.random.default_rng(seed)
    weights = {
        name: torch.from_numpy(w).bfloat16().float().numpy() for name, w in shape.weights(seed).items()
    }
    codes = {}
    for name in weights:
        if name.split(".")[2:3] and name.split(".")[2] in PRODUCTS:
            drawn = rng.integers(0, 256, weights[name].shape, np.uint8)
            codes[name] = np.where(drawn & 0x7F == 0x7F, 0x11, drawn).astype(np.uint8)
    return weights | codes, codes


@pytest.mark.parametrize("kind", [TensorType.F32, TensorType.BF16, TensorType.Q8_0])
def test_a_gguf_is_quantised_by_row_and_joined(tmp_path: Path, double: Double, kind: TensorType) -> None:
    weights = SHAPE.weights(1)
    write_gguf(tmp_path / "x.gguf", SHAPE, weights, kind)
    model = _ion.CudaModel.load_gguf(str(tmp_path / "x.gguf"), threads=2, precision="fp8")
    stored = {
        name: value if value.ndim == 1 else gguf.dequantize(gguf.quantize(value, kind), kind)
        for name, value in weights.items()
    }
    check_quantised(double, stored)
    assert (model.precision, double.config().matrix_type) == ("fp8", 1)


@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_safetensors_are_quantised(tmp_path: Path, double: Double, dtype: str) -> None:
    weights = SHAPE.weights(2)
    write_safetensors(tmp_path / "x.safetensors", weights, dtype)
    load(tmp_path / "x.safetensors", precision="fp8")
    half = {name: value.astype(np.float16).astype(np.float32) for name, value in weights.items()}
    check_quantised(double, half if dtype == "F16" else weights)


def test_without_being_asked_bf16_stays_bf16(tmp_path: Path, double: Double) -> None:
    write_safetensors(tmp_path / "x.safetensors", SHAPE.weights(2), "BF16")
    model = load(tmp_path / "x.safetensors")
    assert (model.precision, double.config().matrix_type) == ("bf16", 0)
    assert double.weight(Weight.QKV_SCALE) is None


def test_fp8_takes_half_the_bytes_of_a_layer(tmp_path: Path, double: Double) -> None:
    write_safetensors(tmp_path / "x.safetensors", SHAPE.weights(2), "BF16")
    apart = load(tmp_path / "x.safetensors").weight_bytes
    apart -= load(tmp_path / "x.safetensors", precision="fp8").weight_bytes
    hidden, ffn, qkv = SHAPE.hidden_size, SHAPE.ffn_size, 128
    values, rows = hidden * (qkv + hidden + 3 * ffn), qkv + 2 * hidden + 2 * ffn
    assert apart == SHAPE.num_layers * (values - 4 * rows)


def test_rounding_of_codes(tmp_path: Path, double: Double) -> None:
    """With a largest value of 448 the scale is 1: codes' values stay, halves go to the even code."""
    weights = SHAPE.weights(3)
    rows = weights["blk.0.attn_output.weight"]
    codes = np.concatenate([np.arange(127), 0x80 + np.arange(1, 127)]).astype(np.uint8)
    rows[:4] = 0
    rows[:4].reshape(-1)[: len(codes)] = e4m3_floats(codes)
    rows[:4, -1] = 448
    rows[4] = 0
    rows[5, :8] = [448, 1.0625, 1.1875, 2.0**-10, 3 * 2.0**-10, 2.0**-10 * 1.001, -1.0625, 432]
    rows[6, :2], rows[6, 2:] = [1e-38, -1e-39], 0
    write_safetensors(tmp_path / "x.safetensors", weights)
    load(tmp_path / "x.safetensors", precision="fp8")
    found, scales = found_codes(double, Weight.OUTPUT, 0)
    assert list(scales[:7]) == [1] * 7
    flat = rows[:4].reshape(-1)
    np.testing.assert_array_equal(e4m3_floats(found[:4]).reshape(-1), flat)
    assert not found[4].any()
    assert [hex(code) for code in found[5, :8]] == [
        *("0x7e", "0x38", "0x3a", "0x0", "0x2", "0x1", "0xb8", "0x7e")
    ]
    assert not (found[6] & 0x7F).any()


def test_what_is_not_finite_is_refused_by_name(tmp_path: Path, double: Double) -> None:
    weights = SHAPE.weights(3)
    weights["blk.1.ffn_up.weight"][5, 7] = np.inf
    write_safetensors(tmp_path / "x.safetensors", weights)
    with pytest.raises(ValueError, match=r"tensor 'model.layers.1.mlp.up_proj.weight' holds values"):
        load(tmp_path / "x.safetensors", precision="fp8")
    assert load(tmp_path / "x.safetensors", precision="bf16").precision == "bf16"


@pytest.mark.parametrize(
    ("end", "dtype", "shape"),
    [
        ("weight_scale", torch.bfloat16, "rows and 1"),
        ("weight_scale", torch.float32, "rows"),
        ("weight_scale", torch.float32, "1"),
        ("weight_scale", torch.float16, ""),
        ("weight_scale_inv", torch.float32, "rows"),
    ],
)
def test_codes_of_a_checkpoint_stay(
    tmp_path: Path, double: Double, end: str, dtype: torch.dtype, shape: str
) -> None:
    weights, codes = checkpoint(SHAPE, 4)
    scales: dict[str, torch.Tensor] = {}
    for number, (name, value) in enumerate(codes.items()):
        extents = {"rows": (len(value),), "rows and 1": (len(value), 1), "1": (1,), "": ()}[shape]
        torch.manual_seed(number)
        scales[name.removesuffix("weight") + end] = (torch.rand(extents) * 0.01 + 0.001).to(dtype)
    inputs = {"model.layers.0.mlp.down_proj.input_scale": torch.ones(1)}
    model = load(fp8_file(tmp_path, weights, scales, **inputs))
    assert model.precision == "fp8"
    for layer in range(SHAPE.num_layers):
        for weight, parts in JOINED.items():
            names = [f"blk.{layer}.{part}." for part in parts]
            found, found_scales = found_codes(double, weight, layer)
            np.testing.assert_array_equal(found, np.concatenate([codes[f"{name}weight"] for name in names]))
            wanted = [
                np.broadcast_to(scales[name + end].float().numpy().reshape(-1), len(codes[f"{name}weight"]))
                for name in names
            ]
            np.testing.assert_array_equal(found_scales, np.concatenate(wanted))


AS_BLOCKS = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
}
AS_ROWS = {
    "quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "strategy": "channel"}}},
    "ignore": ["lm_head"], "kv_cache_scheme": None, "transform_config": {},
}  # fmt: skip


def load_as(tmp_path: Path, kind: dict[str, Any]) -> Any:
    """Load codes with what published config.json files say of them."""
    weights, codes = checkpoint(SHAPE, 4)
    scales = {name.removesuffix("weight") + "weight_scale": torch.ones(1) for name in codes}
    config = json.loads(SHAPE.config_json()) | {"quantization_config": kind}
    return _ion.CudaModel.load_safetensors([str(fp8_file(tmp_path, weights, scales))], json.dumps(config))


@pytest.mark.parametrize("kind", [AS_BLOCKS, AS_ROWS])
def test_folders_that_say_they_are_fp8_are_read(tmp_path: Path, double: Double, kind: dict[str, Any]) -> None:
    assert load_as(tmp_path, kind).precision == "fp8"


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ({"quant_method": "gptq", "bits": 4}, "quantised safetensors of 'gptq' are not supported"),
        (
            AS_ROWS | {"format": "pack-quantized"},
            "of 'compressed-tensors in pack-quantized' are not supported",
        ),
        (AS_ROWS | {"transform_config": {"config_groups": {"R1": {}}}}, "'transform_config' of"),
    ],
)
def test_other_quantised_folders_are_refused_by_name(
    tmp_path: Path, double: Double, kind: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        load_as(tmp_path, kind)


def block_scaled(codes: Array, scales: Array) -> Array:
    n, k = codes.shape
    return e4m3_floats(codes) * scales.repeat(128, 0)[:n].repeat(128, 1)[:, :k]


@pytest.mark.parametrize("precision", ["auto", "bf16"])
def test_scales_of_blocks_become_scales_of_rows(tmp_path: Path, double: Double, precision: str) -> None:
    weights, codes = checkpoint(BLOCKS, 5)
    rng, scales = np.random.default_rng(1), {}
    for name, value in codes.items():
        grid = tuple((extent + 127) // 128 for extent in value.shape)
        scales[f"{name}_scale_inv"] = rng.uniform(0.001, 0.02, grid).astype(np.float32)
    model = load(fp8_file(tmp_path, weights, scales), BLOCKS, precision)
    values = {
        name: block_scaled(codes[name], scales[f"{name}_scale_inv"]) if name in codes else value
        for name, value in weights.items()
    }
    if precision == "auto":
        check_quantised(double, values, BLOCKS)
    else:
        down = double.weight(Weight.DOWN, 1)
        np.testing.assert_array_equal(down, bf16(values["blk.1.ffn_down.weight"]))
    assert model.precision == {"auto": "fp8", "bf16": "bf16"}[precision]


@pytest.mark.parametrize("head_precision", ["bf16", "fp8"])
def test_layers_left_in_bf16_are_quantised_beside_codes_and_a_head_of_codes_is_what_it_shall_be(
    tmp_path: Path, double: Double, head_precision: str
) -> None:
    weights, codes = checkpoint(SHAPE, 6)
    plain = SHAPE.weights(6)["blk.0.attn_output.weight"]
    weights["blk.0.attn_output.weight"] = torch.from_numpy(plain).bfloat16().float().numpy()
    del codes["blk.0.attn_output.weight"]
    weights["output.weight"] = codes["output.weight"] = np.full((203, 64), 0x38, np.uint8)
    scales = {f"{name}_scale": np.full(len(value), 0.5, np.float32) for name, value in codes.items()}
    load(fp8_file(tmp_path, weights, scales), head_precision=head_precision)
    found, found_scales = found_codes(double, Weight.OUTPUT, 0)
    wanted, wanted_scales = e4m3(weights["blk.0.attn_output.weight"])
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(found_scales, wanted_scales)
    if head_precision == "bf16":
        np.testing.assert_array_equal(double.weight(Weight.HEAD), bf16(np.full((203, 64), 0.5, np.float32)))
    else:  # as it lies in the file: quantised anew it would be codes of 448
        head, head_scales = found_codes(double, Weight.HEAD, 0)
        assert (head == 0x38).all() and (head_scales == 0.5).all()


@pytest.mark.parametrize(
    ("name", "scale", "fault"),
    [
        ("", torch.ones(1), "but there is no 'model.layers.0.self_attn.q_proj.weight_scale'"),
        (
            "blk.0.attn_q.weight_scale",
            torch.ones(3),
            r"F32, BF16 or F16 of \[1\], \[64, 1\] or \[1, 1\] wanted, F32 \[3\] found",
        ),
        ("blk.0.attn_q.weight_scale", torch.ones(64, dtype=torch.int32), r"wanted, I32 \[64\] found"),
        ("blk.0.attn_norm.weight_scale", torch.ones(64), "is not part of a llama decoder"),
    ],
)
def test_scales_that_cannot_be_are_refused_by_name(
    tmp_path: Path, double: Double, name: str, scale: torch.Tensor, fault: str
) -> None:
    weights, codes = checkpoint(SHAPE, 7)
    scales: dict[str, torch.Tensor] = {
        f"{code}_scale": torch.ones(1) for code in codes if code != "blk.0.attn_q.weight"
    }
    if name == "blk.0.attn_norm.weight_scale":
        scales["blk.0.attn_q.weight_scale"] = torch.ones(1)
    with pytest.raises(ValueError, match=fault):
        load(fp8_file(tmp_path, weights, scales | ({name: scale} if name else {})))


def test_the_cpu_says_that_it_does_not_compute_codes(tmp_path: Path) -> None:
    weights, codes = checkpoint(SHAPE, 8)
    scales = {f"{name}_scale": np.ones(1, np.float32) for name in codes}
    path = fp8_file(tmp_path, weights, scales)
    with pytest.raises(ValueError, match="has type F8_E4M3, which is computed on a GPU alone"):
        _ion.Model.load_safetensors([str(path)], SHAPE.config_json())


def test_an_older_gpu_is_refused(tmp_path: Path, double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DOUBLE_COMPUTE", "86")
    write_safetensors(tmp_path / "x.safetensors", SHAPE.weights(1), "BF16")
    with pytest.raises(ValueError, match=r"compute capability 8.9 or more; Double GPU has 8.6"):
        load(tmp_path / "x.safetensors", precision="fp8")
    assert load(tmp_path / "x.safetensors").precision == "bf16"


def test_another_precision_is_refused(tmp_path: Path, double: Double) -> None:
    write_safetensors(tmp_path / "x.safetensors", SHAPE.weights(1), "BF16")
    with pytest.raises(ValueError, match="precision 'int4' is none of auto, bf16, fp8"):
        load(tmp_path / "x.safetensors", precision="int4")


def kv_type(double: Double) -> int:
    return int(double.config().kv_type)


def test_kv_is_bf16_unless_asked_otherwise_whatever_the_matrices_are(tmp_path: Path, double: Double) -> None:
    write_safetensors(tmp_path / "x.safetensors", SHAPE.weights(2), "BF16")
    for precision in ("auto", "bf16", "fp8"):
        assert load(tmp_path / "x.safetensors", precision=precision).kv_precision == "bf16"
        assert kv_type(double) == 0
        load(tmp_path / "x.safetensors", precision=precision, kv_precision="fp8")
        assert kv_type(double) == 1
        assert double.config().matrix_type == (precision == "fp8")


@pytest.mark.parametrize("source", ["gguf", "safetensors", "random"])
def test_kv_of_every_source_may_be_fp8(tmp_path: Path, double: Double, source: str) -> None:
    """A token and head of K or of V is a byte a value and a float: no more of a block, no less."""
    write_gguf(tmp_path / "x.gguf", SHAPE, SHAPE.weights(1), TensorType.BF16)
    write_safetensors(tmp_path / "x.safetensors", SHAPE.weights(1), "BF16")

    def loaded(kv_precision: str) -> Any:
        if source == "gguf":
            return _ion.CudaModel.load_gguf(str(tmp_path / "x.gguf"), kv_precision=kv_precision)
        if source == "random":
            return _ion.CudaModel.random(SHAPE.config_json(), 3, kv_precision=kv_precision)
        return load(tmp_path / "x.safetensors", kv_precision=kv_precision)

    heads = 2 * SHAPE.num_layers * SHAPE.num_kv_heads * 16
    for name, head_bytes in (("bf16", 2 * SHAPE.head_dim), ("fp8", SHAPE.head_dim + 4)):
        model = loaded(name)
        assert (model.kv_precision, kv_type(double)) == (name, name == "fp8")
        assert model.config["kv_block_bytes"] == heads * head_bytes
        assert model.precision == "bf16"


@pytest.mark.parametrize("option", ["head_precision", "kv_precision"])
def test_neither_fp8_head_nor_kv_is_an_older_gpu_s(
    tmp_path: Path, double: Double, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    write_safetensors(tmp_path / "x.safetensors", SHAPE.weights(1), "BF16")
    monkeypatch.setenv("CUDA_DOUBLE_COMPUTE", "86")
    wants = f"^{option} fp8 wants .* 8.9 or more; Double GPU has 8.6; {option}: bf16 computes there"
    with pytest.raises(ValueError, match=wants):
        load(tmp_path / "x.safetensors", **{option: "fp8"})
    assert getattr(load(tmp_path / "x.safetensors", **{option: "bf16"}), option) == "bf16"
    monkeypatch.setenv("CUDA_DOUBLE_COMPUTE", "89")
    assert getattr(load(tmp_path / "x.safetensors", **{option: "fp8"}), option) == "fp8"


@pytest.mark.parametrize("option", ["head_precision", "kv_precision"])
@pytest.mark.parametrize("name", ["auto", "e4m3", ""])
def test_another_precision_of_head_or_kv_is_refused(
    tmp_path: Path, double: Double, option: str, name: str
) -> None:
    write_safetensors(tmp_path / "x.safetensors", SHAPE.weights(1), "BF16")
    with pytest.raises(ValueError, match=f"{option} '{name}' is none of bf16, fp8"):
        load(tmp_path / "x.safetensors", **{option: name})


def test_fp8_kv_has_more_blocks_in_the_same_memory(tmp_path: Path, double: Double) -> None:
    write_safetensors(tmp_path / "x.safetensors", SHAPE.weights(1), "BF16")
    for name, head_bytes in (("bf16", 2 * SHAPE.head_dim), ("fp8", SHAPE.head_dim + 4)):
        model = load(tmp_path / "x.safetensors", kv_precision=name)
        engine = make_engine(model, kv_memory_bytes=1 << 20, max_running=4)
        stats = engine.stats()
        engine.close()
        block_bytes = 2 * SHAPE.num_layers * SHAPE.num_kv_heads * 16 * head_bytes
        assert (stats["blocks_total"], stats["block_bytes"]) == ((1 << 20) // block_bytes, block_bytes)
