"""Random models: the same weights from a seed wherever they are made, and a folder anybody could load."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as FastTokenizer

from ionrouter.engine import _ion, tokenizer, weights
from ionrouter.engine.device import Device
from ionrouter.engine.loading import EngineSettings, load_from, weight_bytes
from ionrouter.engine.random_model import SHAPES, config_of, prepared, write_folder
from ionrouter.engine.sources import RandomModel, parse_source
from ionrouter.errors import ConfigError
from tests.support.cuda_double import Double, Weight, double_path
from tests.support.tiny_llama import Array

IDS = [3, 500, 77, 1000, 260]
QWEN2 = {**SHAPES["tiny"], "model_type": "qwen2", "tie_word_embeddings": False}
QWEN3 = {**SHAPES["tiny"], "model_type": "qwen3"}


def logits(model: _ion.Model | _ion.CudaModel, ids: Sequence[int] = IDS) -> Array:
    return np.asarray(model.logits(list(ids)))


def random_model(seed: int, config: object = None) -> _ion.Model:
    return _ion.Model.random(json.dumps(config or config_of("tiny")), seed, "exact")


@pytest.mark.parametrize("config", [None, QWEN2, QWEN3], ids=["llama", "qwen2", "qwen3"])
def test_a_seed_gives_one_model_and_its_logits_tell_tokens_apart(config: object) -> None:
    first, again, other = (logits(random_model(seed, config)) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1
    assert np.isfinite(first).all() and 0.2 < first.std() < 20
    assert len(set(first.argmax(1))) > 1


def test_a_written_folder_is_the_same_model(tmp_path: Path) -> None:
    write_folder("tiny", 7, tmp_path)
    settings = EngineSettings(str(tmp_path), numerics="exact")
    loaded = load_from(tmp_path, settings, Device("cpu"))
    np.testing.assert_array_equal(logits(loaded.model), logits(random_model(7)))
    assert loaded.template is not None


def test_weights_lie_where_the_recipe_says(tmp_path: Path) -> None:
    write_folder("tiny", 7, tmp_path)
    found = as_floats(tmp_path / "model.safetensors")
    matrix = found["model.layers.0.mlp.gate_proj.weight"]
    assert matrix.shape == (128, 64)
    scale = (3 / 64) ** 0.5
    assert abs(matrix.mean()) < 0.01 and 0.9 * scale < np.abs(matrix).max() <= scale * 1.01
    assert abs(matrix.std() - 64**-0.5) < 0.01
    norm = found["model.norm.weight"]
    assert 0.5 <= norm.min() < 0.7 and 1.3 < norm.max() <= 1.5


def as_floats(path: Path) -> dict[str, Array]:
    import torch
    from safetensors.torch import load_file as load_torch

    return {name: tensor.to(torch.float32).numpy() for name, tensor in load_torch(str(path)).items()}


def test_a_gpu_makes_the_weights_that_the_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = double_path()
    monkeypatch.setenv("IONROUTER_CUDA_LIBRARY", str(path))
    config = json.dumps(QWEN2)
    _ion.write_random_model(str(tmp_path / "x.safetensors"), config, 11)
    from_file = _ion.CudaModel.load_safetensors([str(tmp_path / "x.safetensors")], config)
    double = Double(path)
    parts = [(weight, layer) for weight in Weight for layer in (0,)]
    wanted = {part: double.weight(*part) for part in parts}
    made = _ion.CudaModel.random(config, 11)
    for part in parts:
        found = double.weight(*part)
        assert (found is None) == (wanted[part] is None), part
        if found is not None:
            np.testing.assert_array_equal(found, wanted[part], err_msg=part[0].name)
    embedding_bytes = 1024 * 64 * 2
    assert made.streamed_bytes == made.weight_bytes - embedding_bytes == from_file.streamed_bytes


def test_bytes_that_a_step_reads_leave_out_an_embedding_of_its_own() -> None:
    tied, own = random_model(1), random_model(1, QWEN2)
    assert tied.streamed_bytes == tied.weight_bytes
    assert own.streamed_bytes == own.weight_bytes - 1024 * 64 * 2


@pytest.mark.parametrize("shape", ["tiny", "smollm2-135m"])
def test_the_vocabulary_is_whole_and_text_survives_it(shape: str, tmp_path: Path) -> None:
    folder = prepared(shape, tmp_path)
    assert prepared(shape, tmp_path) == folder
    read, size = tokenizer.from_folder(folder), SHAPES[shape]["vocab_size"]
    table = read.token_bytes(size)
    assert read.num_tokens == len(table) == size
    assert all(table[:-3]) and table[-3:] == [b"", b"", b""]
    assert len(set(table[:-3])) == size - 3
    text = "Ein Ärger, 12 <|im_end|>\n"
    assert read.text_of(read.encode(text)) == text
    assert read.stop_ids == (size - 1,)
    FastTokenizer.from_file(str(folder / "tokenizer.json"))  # as others read it


def test_what_a_model_will_take_is_known_before_it_is_made(tmp_path: Path) -> None:
    for shape in ("tiny", "smollm2-135m"):
        planned = weight_bytes(EngineSettings(f"random:{shape}"), tmp_path)
        made = random_model(0, config_of(shape)).weight_bytes
        assert planned * 0.99 < made < 2.2 * planned, "exact numerics may keep them wider"
    assert abs(weight_bytes(EngineSettings("random:qwen2.5-7b"), tmp_path) - 15.23e9) < 0.02e9
    assert weight_bytes(EngineSettings("random:nobody"), tmp_path) == 0


def test_notations() -> None:
    assert parse_source("random:qwen2.5-7b?seed=12") == RandomModel("qwen2.5-7b", 12)
    assert parse_source("random:tiny") == RandomModel("tiny", 0)
    for bad in ("random:", "random:a b", "random:tiny?seed=x", "random:tiny?type=q8", "random:../x"):
        with pytest.raises(ConfigError, match="random:SHAPE"):
            parse_source(bad)


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such shape; known: qwen2"):
        weights.fetch("random:qwen9", None, cache=tmp_path, progress=False)
    with pytest.raises(ConfigError, match="random weights have none"):
        weights.fetch("random:tiny", "0" * 64, cache=tmp_path, progress=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write to the cache"):
        weights.fetch("random:tiny", None, cache=tmp_path / "file", progress=False)
    with pytest.raises(ConfigError, match="file"):
        write_folder("tiny", 0, tmp_path / "file")


def test_the_memory_is_read_at_a_believable_speed() -> None:
    assert 1e8 < _ion.read_bandwidth(1) < 1e13
