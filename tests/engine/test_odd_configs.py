"""Small files of a model that cannot be right: the load ends with an error that names file and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ionrouter.engine.loading import EngineSettings, LoadedModel, load_model
from ionrouter.errors import ConfigError
from tests.support.tiny_model import write_tiny_folder, write_tiny_model

NUMBER, TEXT, BOOL = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.STRING, gguf.GGUFValueType.BOOL
ODD: list[Any] = [5, [], {"463": "<x>"}, {"x": {"content": "<x>"}}, {"463": {"content": 5}}]
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "config.json": [
        *(({"rope_scaling": value}, "'rope_scaling' is not an object") for value in (5, [], "linear", False)),
        ({"rope_parameters": 7}, "'rope_parameters' is not an object"),
        ({"rope_parameters": {"rope_type": "default"}, "rope_scaling": 5}, "'rope_scaling' is not an object"),
        ({"rope_scaling": {"type": ["linear"]}}, "'type' is a list"),
        ({"rope_scaling": {"type": "linear", "factor": 1e300}}, "'factor' is not below 1048576"),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
            "for 'full_attention' is not supported",
        ),
        ({"partial_rotary_factor": 0.5}, "'partial_rotary_factor' is 0.5"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "'partial_rotary_factor' is 0.25"),
        ({"rope_theta": [1e4]}, "'rope_theta' is a list"),
        ({"num_key_value_heads": [2, 2]}, "'num_key_value_heads' is a list"),
        ({"head_dim": {}}, "'head_dim' is an object"),
        ({"hidden_act": ["silu"]}, "'hidden_act' is a list"),
        ({"rms_norm_eps": 1e300}, "'rms_norm_eps' is not below 1"),
        ({"rms_norm_eps": 1e-300}, "'rms_norm_eps' is 0 as a float"),
        *(({"tie_word_embeddings": v}, "'tie_word_embeddings' is not true or false") for v in ("false", 1)),
        ({"model_type": "mistral", "sliding_window": [4]}, "'sliding_window' is a list"),
        ({"sliding_window": 4, "use_sliding_window": "true"}, "'use_sliding_window' is not true or false"),
        *(({"eos_token_id": v}, f"eos_token_id: {v!r} is no token id") for v in (-5, "2", 2.0, True)),
    ],
    "generation_config.json": [
        ({"eos_token_id": [2, "</s>"]}, "eos_token_id: '</s>' is no token id"),
    ],
    "tokenizer_config.json": [
        *(
            ({key: value}, f"{key}: neither text nor an object with `content`")
            for key in ("bos_token", "eos_token")
            for value in (5, [], {}, {"content": 5})
        ),
        ({"eos_token": "<nope>"}, "eos_token: tokenizer.json has no token '<nope>'"),
        *(({"added_tokens_decoder": value}, "added_tokens_decoder: not an object of ids") for value in ODD),
        ({"add_bos_token": "yes"}, "add_bos_token: not true or false"),
        *(({"chat_template": value}, "chat_template: neither text nor") for value in (5, {"a": "b"}, False)),
        ({"chat_template": [{"name": "default", "template": 5}]}, "chat_template: an entry without"),
        ({"chat_template": ["x"]}, "chat_template: an entry without"),
    ],
}
IN_GGUF: list[tuple[str, Any, str]] = [
    ("tokenizer.ggml.eot_token_id", ("</s>", TEXT), "'</s>' is no token id"),
    ("tokenizer.ggml.add_bos_token", ("no", TEXT), "not true or false"),
    ("tokenizer.chat_template", (5, NUMBER), "not text"),
    ("tokenizer.ggml.tokens", ("abc", TEXT), "not a list of texts"),
    ("tokenizer.ggml.token_type", (7, NUMBER), "not a list of numbers"),
    ("llama.attention.head_count_kv", ([2, 2], gguf.GGUFValueType.ARRAY, NUMBER), "is a list"),
    ("llama.rope.scaling.type", (["linear"], gguf.GGUFValueType.ARRAY, TEXT), "is a list"),
]
TAKEN: dict[str, list[dict[str, Any]]] = {
    "config.json": [
        {"quantization_config": None, "rope_scaling": None, "head_dim": None, "sliding_window": None},
        {"eos_token_id": [2, -1], "bos_token_id": None, "pad_token_id": -1},
        {"bos_token_id": 99999},  # nobody reads it
        {"pad_token_id": 463},  # files are about whose padding has no row; nothing is padded here
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}},
    ],
    "tokenizer_config.json": [
        {"bos_token": None, "add_bos_token": None, "chat_template": None},
        {"eos_token": {"content": "<|im_end|>", "lstrip": False}},
        {"chat_template": [{"name": "tool_use", "template": "x"}]},
    ],
}


def _changed(folder: Path, name: str, change: dict[str, Any]) -> Path:
    path = write_tiny_folder(folder / "model") / name
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | change))
    return path.parent


def _load(path: Path) -> LoadedModel:
    return load_model(EngineSettings(str(path)), cache=path.parent, progress=False)


@pytest.mark.parametrize(
    ("name", "change", "told"), [(name, *case) for name, cases in REFUSED.items() for case in cases]
)
def test_a_value_that_cannot_be_right_is_told(tmp_path: Path, name: str, change: Any, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        _load(_changed(tmp_path, name, change))
    assert f"{name}: " in str(refused.value) and told in str(refused.value)


@pytest.mark.parametrize(("name", "change"), [(name, c) for name, cases in TAKEN.items() for c in cases])
def test_what_files_are_about_with_is_taken(tmp_path: Path, name: str, change: Any) -> None:
    assert _load(_changed(tmp_path, name, change)).tokenizer.stop_ids == (2,)


def test_a_head_of_its_own_must_be_there(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "model", edit=lambda weights: weights.pop("output.weight"))
    with pytest.raises(ConfigError, match=r"'lm_head.weight' is missing, .*'tie_word_embeddings' is false"):
        _load(folder)


def test_bos_of_the_post_processor_is_found_by_an_object_too(tmp_path: Path) -> None:
    folder = _changed(tmp_path, "tokenizer_config.json", {"bos_token": {"content": "<|im_start|>"}})
    data = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(data | {"post_processor": {"single": "<|im_start|>"}}))
    assert _load(folder).tokenizer.adds_bos


@pytest.mark.parametrize(("key", "value", "told"), IN_GGUF)
def test_metadata_that_cannot_be_right_is_told(tmp_path: Path, key: str, value: Any, told: str) -> None:
    found = gguf.GGUFReader(write_tiny_model(tmp_path / "tiny.gguf"))
    writer = gguf.GGUFWriter(path := tmp_path / "odd.gguf", "llama")
    for name, known in found.fields.items():
        if not name.startswith("GGUF.") and name not in (key, "general.architecture"):
            writer.add_key_value(name, known.contents(), *known.types[:2])
    writer.add_key_value(key, *value)
    for tensor in found.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConfigError) as refused:
        _load(path)
    assert key in str(refused.value) and told in str(refused.value)
