"""`exact` and `fast` on tiny random decoders against the float32 reference and against transformers.

`exact`: every position by itself, max |ours - reference| / max |reference| over the vocabulary.
`fast`: all positions together, |ours - reference| / |reference| in Euclidean norm.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as TensorType

from ionrouter.engine import _ion
from ionrouter.engine.reference import Reference
from tests.support import tiny_transformers
from tests.support.ion_engine import generate, make_engine
from tests.support.k_quants import quantize
from tests.support.logit_quality import euclidean_error
from tests.support.tiny_llama import TinyLlama, json_name, write_gguf, write_safetensors

EXACT_TOLERANCE = 1e-4
FAST_TOLERANCE = 2.5e-2
TIE_GAP = 1e-3  # a greedy step whose reference top-2 gap is smaller may differ, and ends the comparison
LENGTHS = (1, 2, 15, 16, 17, 33, 130, 300)  # around block (16) and attention tile (128) borders

SHAPES = {
    "grouped": TinyLlama(),
    "grouped_tied": TinyLlama(is_tied=True),
    "every_head_its_own": TinyLlama(num_heads=4, num_kv_heads=4),
    "one_kv_head": TinyLlama(num_heads=6, num_kv_heads=1, head_dim=32),
    "heads_wider_than_hidden": TinyLlama(num_heads=8, num_kv_heads=2, head_dim=64, is_tied=True),
    "smollm2": TinyLlama(num_heads=9, num_kv_heads=3, head_dim=64, hidden_size=576, rope_theta=100000.0),
    "odd_sizes": TinyLlama(hidden_size=96, head_dim=24, ffn_size=160, vocab_size=1003, rms_eps=1e-6),
}
TYPES = (
    TensorType.F32,
    TensorType.F16,
    TensorType.BF16,
    TensorType.Q8_0,
    TensorType.Q4_0,
    TensorType.Q4_1,
    TensorType.Q5_0,
    TensorType.Q5_1,
    TensorType.Q4_K,
    TensorType.Q5_K,
    TensorType.Q6_K,
)
K_TYPES = (TensorType.Q4_K, TensorType.Q5_K, TensorType.Q6_K)


def prompt_of(length: int, vocab_size: int, seed: int = 0) -> list[int]:
    rng = random.Random(length * 1000 + seed)
    return [rng.randrange(vocab_size) for _ in range(length)]


def logits_of(model: _ion.Model, tokens: list[int], chunk: int = 0) -> np.ndarray[Any, Any]:
    return np.asarray(model.logits(tokens, chunk))


def relative_error(ours: np.ndarray[Any, Any], reference: torch.Tensor) -> float:
    """Return the largest over the positions."""
    theirs = reference.numpy()
    return float((np.abs(ours - theirs).max(-1) / np.abs(theirs).max(-1)).max())


def gguf_of(folder: Path, shape: TinyLlama, tensor_type: TensorType, seed: int = 5) -> Path:
    path = folder / f"{tensor_type.name}.gguf"
    write_gguf(path, shape, shape.weights(seed), tensor_type)
    return path


def shape_for(tensor_type: TensorType, is_tied: bool) -> TinyLlama:
    if tensor_type in K_TYPES:
        return TinyLlama(hidden_size=256, num_heads=4, head_dim=64, ffn_size=512, is_tied=is_tied)
    return TinyLlama(is_tied=is_tied)


def assert_greedy_equals(reference: Reference, prompt: list[int], ids: list[int]) -> None:
    """Each id is the reference's choice after those before it, until a near-tie is decided otherwise."""
    logits = reference.logits(prompt + ids[:-1])[len(prompt) - 1 :]
    top = logits.topk(2, dim=-1)
    for step, chosen in enumerate(ids):
        if chosen == int(top.indices[step, 0]):
            continue
        gap = float(top.values[step, 0] - top.values[step, 1])
        assert gap < TIE_GAP, f"step {step}: {chosen} instead of {int(top.indices[step, 0])}, gap {gap}"
        return


@pytest.mark.parametrize("name", SHAPES)
def test_exact_logits_equal_the_reference_for_any_shape(tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    write_safetensors(tmp_path / "x.safetensors", shape.weights(1))
    reference = Reference.from_safetensors([tmp_path / "x.safetensors"], shape.config_json())
    model = _ion.Model.load_safetensors([str(tmp_path / "x.safetensors")], shape.config_json(), "exact")
    for length in LENGTHS:
        prompt = prompt_of(length, shape.vocab_size)
        assert relative_error(logits_of(model, prompt), reference.logits(prompt)) < EXACT_TOLERANCE


@pytest.mark.parametrize("is_tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("tensor_type", TYPES, ids=lambda t: t.name)
def test_exact_logits_equal_the_reference_for_any_gguf_type(
    tmp_path: Path, tensor_type: TensorType, is_tied: bool
) -> None:
    shape = shape_for(tensor_type, is_tied)
    path = gguf_of(tmp_path, shape, tensor_type)
    model = _ion.Model.load_gguf(str(path), "exact")
    prompt = prompt_of(150, shape.vocab_size)
    error = relative_error(logits_of(model, prompt), Reference.from_gguf(path).logits(prompt))
    assert error < EXACT_TOLERANCE


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_exact_logits_equal_the_reference_for_any_safetensors_type(tmp_path: Path, dtype: str) -> None:
    shape = TinyLlama()
    write_safetensors(tmp_path / "x.safetensors", shape.weights(2), dtype)
    reference = Reference.from_safetensors([tmp_path / "x.safetensors"], shape.config_json())
    model = _ion.Model.load_safetensors([str(tmp_path / "x.safetensors")], shape.config_json(), "exact")
    prompt = prompt_of(50, shape.vocab_size)
    assert relative_error(logits_of(model, prompt), reference.logits(prompt)) < EXACT_TOLERANCE


@pytest.mark.parametrize("tensor_type", TYPES, ids=lambda t: t.name)
def test_exact_greedy_equals_the_reference_over_64_tokens(tmp_path: Path, tensor_type: TensorType) -> None:
    shape = shape_for(tensor_type, is_tied=False)
    path = gguf_of(tmp_path, shape, tensor_type)
    reference = Reference.from_gguf(path)
    engine = make_engine(_ion.Model.load_gguf(str(path), "exact"), num_blocks=256)
    prompts = [prompt_of(length, shape.vocab_size, 7) for length in (1, 15, 16, 17, 40, 129)]
    for prompt, answer in zip(prompts, generate(engine, prompts, max_tokens=64), strict=True):
        assert (len(answer.ids), answer.finish) == (64, 2)
        assert_greedy_equals(reference, prompt, answer.ids)
    engine.close()


@pytest.mark.parametrize("tensor_type", TYPES, ids=lambda t: t.name)
def test_fast_logits_stay_near_the_reference(tmp_path: Path, tensor_type: TensorType) -> None:
    shape = shape_for(tensor_type, is_tied=False)
    path = gguf_of(tmp_path, shape, tensor_type)
    model = _ion.Model.load_gguf(str(path), "fast")
    prompt = prompt_of(150, shape.vocab_size)
    assert (
        euclidean_error(logits_of(model, prompt), Reference.from_gguf(path).logits(prompt)) < FAST_TOLERANCE
    )


ROPES: dict[str, dict[str, Any]] = {
    "plain": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


@pytest.mark.parametrize("is_tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("rope", ROPES)
def test_exact_logits_equal_transformers(tmp_path: Path, rope: str, is_tied: bool) -> None:
    """A third opinion: neither Ion nor its reference had a hand in this one."""
    torch.manual_seed(3)
    theirs = tiny_transformers.made("Llama", rope_parameters=ROPES[rope], tie_word_embeddings=is_tied)
    paths, text = tiny_transformers.saved(theirs, tmp_path)
    prompt = prompt_of(200, 211)
    with torch.inference_mode():
        wanted = theirs(torch.tensor([prompt])).logits[0]
    assert relative_error(logits_of(_ion.Model.load_safetensors(paths, text, "exact"), prompt), wanted) < 1e-4
    assert relative_error(Reference.from_safetensors(paths, text).logits(prompt).numpy(), wanted) < 1e-4


FAMILIES: dict[str, dict[str, Any]] = {
    "Mistral": {"sliding_window": None},
    "Qwen2": {},  # biases on Q, K and V
    "Qwen3": {"head_dim": 24},  # norms on every head of Q and K
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families_beside_llama_equal_transformers(tmp_path: Path, family: str) -> None:
    torch.manual_seed(4)
    is_tied = family == "Qwen2"
    theirs = tiny_transformers.made(
        family, num_hidden_layers=2, tie_word_embeddings=is_tied, **FAMILIES[family]
    )
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name.endswith("bias") or "norm" in name:  # initialised to zeros and ones, which hide mistakes
                parameter.add_(torch.randn_like(parameter) * 0.3)
    paths, text = tiny_transformers.saved(theirs, tmp_path)
    prompt = prompt_of(100, 211)
    with torch.inference_mode():
        wanted = theirs(torch.tensor([prompt])).logits[0]
    assert relative_error(logits_of(_ion.Model.load_safetensors(paths, text, "exact"), prompt), wanted) < 1e-4


def test_the_older_spelling_of_rope_scaling_is_the_same(tmp_path: Path) -> None:
    shape = TinyLlama()
    write_safetensors(tmp_path / "x.safetensors", shape.weights(1))
    old = json.loads(shape.config_json()) | {"rope_theta": 500000.0, "rope_scaling": ROPES["llama3"]}
    new = json.loads(shape.config_json()) | {"rope_parameters": ROPES["llama3"]}
    prompt = prompt_of(100, shape.vocab_size)
    logits = [
        logits_of(_ion.Model.load_safetensors([str(tmp_path / "x.safetensors")], json.dumps(c)), prompt)
        for c in (old, new)
    ]
    assert (logits[0] == logits[1]).all()


def test_rope_factors_of_a_gguf_are_used(tmp_path: Path) -> None:
    shape = TinyLlama()
    weights = shape.weights(1) | {"rope_freqs.weight": np.linspace(1, 8, 8, dtype=np.float32)}
    write_gguf(tmp_path / "x.gguf", shape, weights, TensorType.F32)
    model = _ion.Model.load_gguf(str(tmp_path / "x.gguf"), "exact")
    prompt = prompt_of(100, shape.vocab_size)
    reference = Reference.from_gguf(tmp_path / "x.gguf").logits(prompt)
    assert relative_error(logits_of(model, prompt), reference) < EXACT_TOLERANCE
    plain = gguf_of(tmp_path, shape, TensorType.F32, seed=1)
    assert relative_error(logits_of(model, prompt), Reference.from_gguf(plain).logits(prompt)) > 1e-2


def test_weights_of_different_types_mix_in_one_file(tmp_path: Path) -> None:
    """As in the default model: a Q8_0 embedding that is also the head, over Q4_1 layers."""
    import gguf

    shape = TinyLlama(is_tied=True)
    weights = shape.weights(9)
    kinds = [TensorType.Q8_0, TensorType.Q4_1, TensorType.F16, TensorType.Q4_0, TensorType.F32]
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    for key, value in shape.gguf_metadata().items():
        writer.add_float32(key, value) if isinstance(value, float) else writer.add_uint32(key, value)
    for i, (name, value) in enumerate(weights.items()):
        kind = TensorType.F32 if value.ndim == 1 else kinds[i % len(kinds)]
        writer.add_tensor(name, gguf.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = _ion.Model.load_gguf(str(tmp_path / "x.gguf"), "exact")
    prompt = prompt_of(60, shape.vocab_size)
    reference = Reference.from_gguf(tmp_path / "x.gguf").logits(prompt)
    assert relative_error(logits_of(model, prompt), reference) < EXACT_TOLERANCE


def types_of_a_medium_mix(weights: dict[str, Any], base: TensorType) -> dict[str, TensorType]:
    """Mix as llama.cpp's Q4_K_M and Q5_K_M do: the head and some of attn_v and ffn_down are Q6_K."""
    better = {"blk.0.attn_v.weight", "blk.1.ffn_down.weight", "output.weight"}
    if "output.weight" not in weights:
        better.add("token_embd.weight")
    return {name: TensorType.Q6_K if name in better else base for name in weights}


def rounded(weights: dict[str, Any], kinds: dict[str, TensorType]) -> dict[str, torch.Tensor]:
    """Return the values that a file of these types holds, by safetensors name."""
    import gguf

    return {
        json_name(name): torch.from_numpy(
            value if value.ndim == 1 else gguf.dequantize(quantize(value, kinds[name]), kinds[name])
        )
        for name, value in weights.items()
    }


def assert_equal_transformers(
    path: Path, shape: TinyLlama, weights: dict[str, Any], kinds: dict[str, TensorType]
) -> None:
    """Compare both numerics of a file of these types with transformers over float32 of the same values."""
    write_gguf(path, shape, weights, kinds)
    theirs = tiny_transformers.with_weights(json.loads(shape.config_json()), rounded(weights, kinds))
    exact, fast = (_ion.Model.load_gguf(str(path), numerics) for numerics in ("exact", "fast"))
    for length in LENGTHS:
        prompt = prompt_of(length, shape.vocab_size)
        with torch.inference_mode():
            wanted = theirs(torch.tensor([prompt])).logits[0]
        assert relative_error(logits_of(exact, prompt), wanted) < EXACT_TOLERANCE
        assert euclidean_error(logits_of(fast, prompt), wanted) < FAST_TOLERANCE


@pytest.mark.parametrize("is_tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("base", [TensorType.Q4_K, TensorType.Q5_K], ids=lambda t: t.name)
def test_k_types_mixed_in_one_layer_equal_transformers(
    tmp_path: Path, base: TensorType, is_tied: bool
) -> None:
    """Layer 0 multiplies Q and K of one type and V of another at once; transformers has float32."""
    shape = shape_for(base, is_tied)
    weights = shape.weights(6)
    assert_equal_transformers(tmp_path / "x.gguf", shape, weights, types_of_a_medium_mix(weights, base))


LEGACY_MIXES = {
    # What llama.cpp writes where no K type fits, as in most of SmolLM2-135M: Q5_0 for Q4_K, Q5_1 for Q5_K.
    "as_q4_k_m": (TensorType.Q5_0, TensorType.Q8_0, TensorType.Q4_K),
    "as_q5_k_m": (TensorType.Q5_1, TensorType.Q8_0, TensorType.Q5_K),
}


def types_where_no_k_type_fits(weights: dict[str, Any], mix: str) -> dict[str, TensorType]:
    """Name a K type for rows of a multiple of 256 values; for the others what stands in for it."""
    low, high, k_type = LEGACY_MIXES[mix]
    better = {"blk.0.attn_v.weight", "output.weight"}
    if "output.weight" not in weights:
        better.add("token_embd.weight")
    return {
        name: k_type if value.shape[-1] % 256 == 0 else high if name in better else low
        for name, value in weights.items()
    }


@pytest.mark.parametrize("is_tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("mix", LEGACY_MIXES)
def test_types_that_stand_in_for_k_types_equal_transformers(tmp_path: Path, mix: str, is_tied: bool) -> None:
    """Rows of 96 values cannot be of a K type, rows of 512 are; transformers has float32."""
    shape = TinyLlama(hidden_size=96, head_dim=24, ffn_size=512, is_tied=is_tied)
    weights = shape.weights(8)
    kinds = types_where_no_k_type_fits(weights, mix)
    assert {kind for name, kind in kinds.items() if weights[name].ndim == 2} == set(LEGACY_MIXES[mix])
    assert_equal_transformers(tmp_path / "x.gguf", shape, weights, kinds)
