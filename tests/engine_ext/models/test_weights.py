"""What a decoder asks of its files: names, shapes, sizes, memory; every fault names the tensor or key."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as TensorType

from ionrouter.engine import _ion
from tests.support.tiny_llama import TinyLlama, write_gguf, write_safetensors

SHAPE = TinyLlama(num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_size=96, vocab_size=50)


def fault_of_gguf(path: Path, weights: dict[str, Any], **metadata: Any) -> str:
    write_gguf(path / "x.gguf", SHAPE, weights, TensorType.F32, **metadata)
    with pytest.raises(ValueError) as caught:
        _ion.Model.load_gguf(str(path / "x.gguf"), threads=1)
    return str(caught.value)


def test_a_wrong_shape_says_wanted_and_found(tmp_path: Path) -> None:
    weights = SHAPE.weights(1)
    weights["blk.1.ffn_up.weight"] = weights["blk.1.ffn_up.weight"][:64]
    assert fault_of_gguf(tmp_path, weights) == (
        "tensor 'blk.1.ffn_up.weight': shape [96, 64] wanted, [64, 64] found"
    )


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    weights = SHAPE.weights(1)
    del weights["blk.1.attn_k.weight"]
    assert "tensor 'blk.1.attn_k.weight' [32, 64] is missing" in fault_of_gguf(tmp_path, weights)


def test_a_tensor_that_the_decoder_would_not_read_is_refused(tmp_path: Path) -> None:
    weights = SHAPE.weights(1)
    weights["blk.0.attn_sinks.weight"] = weights["output_norm.weight"]
    assert "'blk.0.attn_sinks.weight' is not part of a llama decoder" in fault_of_gguf(tmp_path, weights)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.block_count", None, "no 'llama.block_count'"),
        ("llama.block_count", 1, "'blk.1.attn_k.weight' is not part of a llama decoder of 1 layers"),
        ("llama.block_count", 3, "3 layers announced"),
        ("llama.block_count", 1_000_000, "1000000 layers announced"),
        ("llama.block_count", 2**31, "'llama.block_count' is 2147483648, outside"),
        ("llama.embedding_length", 0, "'llama.embedding_length' is 0, outside"),
        ("llama.embedding_length", "64", "not a whole number"),
        ("llama.attention.head_count_kv", 3, "4 query heads cannot share 3"),
        ("llama.attention.key_length", 32, "different sizes"),
        ("llama.attention.layer_norm_rms_epsilon", 0.0, "not positive"),
        ("llama.rope.freq_base", float("nan"), "not positive and finite"),
        ("llama.rope.dimension_count", 8, "rotating part of a head"),
        ("llama.rope.scaling.type", "yarn", "'yarn' is not supported"),
        ("llama.expert_count", 8, "experts"),
        ("llama.vocab_size", 51, "shape [51, 64] wanted, [50, 64] found"),
    ],
)
def test_metadata_that_makes_no_sense_is_refused_by_key(
    tmp_path: Path, key: str, value: Any, message: str
) -> None:
    assert message in fault_of_gguf(tmp_path, SHAPE.weights(1), **{key: value})


def test_an_odd_head_is_refused(tmp_path: Path) -> None:
    odd = {
        "llama.attention.key_length": 15,
        "llama.attention.value_length": 15,
        "llama.rope.dimension_count": 15,
    }
    assert "head size 15 is odd" in fault_of_gguf(tmp_path, SHAPE.weights(1), **odd)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "mamba2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match=r"architecture 'mamba2' is not supported \(supported: llama"):
        _ion.Model.load_gguf(str(tmp_path / "x.gguf"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "architecture 'gpt2' is not supported"),
        ({"model_type": 3}, "'model_type' is not a string"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantised safetensors"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rope type 'dynamic'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "low_freq_factor"),
        ({"num_hidden_layers": -1}, "outside"),
        ({"vocab_size": 1.5}, "not a whole number"),
        ({"sliding_window": "wide"}, "'sliding_window' is not a whole number"),
        ({"sliding_window": 100, "layer_types": ["full_attention"]}, "'layer_types' is not a list of 2"),
        (
            {"sliding_window": 100, "layer_types": ["full_attention", "chunked"]},
            "'layer_types' has 'chunked'",
        ),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_by_key(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write_safetensors(tmp_path / "x.safetensors", SHAPE.weights(1))
    config = json.dumps(json.loads(SHAPE.config_json()) | change)
    with pytest.raises(ValueError, match=message):
        _ion.Model.load_safetensors([str(tmp_path / "x.safetensors")], config)


def test_a_vocabulary_size_may_come_from_the_embedding(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", SHAPE, SHAPE.weights(1), TensorType.F16, llama__vocab_size=None)
    assert _ion.Model.load_gguf(str(tmp_path / "x.gguf")).config["vocab_size"] == 50


def test_too_little_memory_says_the_bytes_needed(tmp_path: Path) -> None:
    """A sparse file whose embedding alone is 1 TB: mapped without cost, refused before allocating."""
    rows = 2**24
    wide = TinyLlama(
        num_layers=1, hidden_size=2**14, num_heads=64, num_kv_heads=64, head_dim=256, vocab_size=rows
    )
    q = wide.num_heads * wide.head_dim
    shapes = {
        "model.embed_tokens.weight": [rows, 2**14],
        "lm_head.weight": [1],
        "model.norm.weight": [2**14],
        "model.layers.0.input_layernorm.weight": [2**14],
        "model.layers.0.post_attention_layernorm.weight": [2**14],
        "model.layers.0.self_attn.q_proj.weight": [q, 2**14],
        "model.layers.0.self_attn.k_proj.weight": [q, 2**14],
        "model.layers.0.self_attn.v_proj.weight": [q, 2**14],
        "model.layers.0.self_attn.o_proj.weight": [2**14, q],
        "model.layers.0.mlp.gate_proj.weight": [96, 2**14],
        "model.layers.0.mlp.up_proj.weight": [96, 2**14],
        "model.layers.0.mlp.down_proj.weight": [2**14, 96],
    }
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path = tmp_path / "sparse.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + at)
    config = json.dumps(json.loads(wide.config_json()) | {"tie_word_embeddings": True})
    with pytest.raises(ValueError, match=r"weights: 11\d{11} bytes needed, \d+ available"):
        _ion.Model.load_safetensors([str(path)], config)


def test_numerics_must_be_one_of_three(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", SHAPE, SHAPE.weights(1), TensorType.F32)
    with pytest.raises(ValueError, match="numerics: 'best' is none of 'fast', 'deterministic', 'exact'"):
        _ion.Model.load_gguf(str(tmp_path / "x.gguf"), numerics="best")


def test_logits_refuse_tokens_outside_the_vocabulary(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", SHAPE, SHAPE.weights(1), TensorType.F32)
    model = _ion.Model.load_gguf(str(tmp_path / "x.gguf"))
    with pytest.raises(ValueError, match="id 50 outside the vocabulary of 50"):
        model.logits([1, 50])
    with pytest.raises(ValueError, match="tokens: empty"):
        model.logits([])
