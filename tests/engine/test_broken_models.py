"""Model files that are broken, served by the real command: what the server's owner and a client are told."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as TensorType

from ionrouter.engine.loading import EngineSettings, load_model
from ionrouter.errors import ConfigError
from tests.support.server import Server, running_server
from tests.support.tiny_llama import TinyLlama, write_gguf
from tests.support.tiny_model import write_tiny_folder, write_tiny_model
from tests.support.tiny_tokenizer import metadata

pytestmark = pytest.mark.xdist_group("broken-models")


def _overwritten(path: Path, at: int, data: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[at : at + len(data)] = data
    path.write_bytes(whole)


def _changed(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None takes a key away."""
    found = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))


def bad_magic(folder: Path) -> Path:
    path = write_tiny_model(folder / "bad_magic.gguf")
    _overwritten(path, 0, b"GGML")
    return path


def wrong_version(folder: Path) -> Path:
    path = write_tiny_model(folder / "wrong_version.gguf")
    _overwritten(path, 4, b"\x09\0\0\0")
    return path


def truncated_gguf(folder: Path) -> Path:
    path = write_tiny_model(folder / "truncated_gguf.gguf")
    os.truncate(path, path.stat().st_size - 1000)
    return path


def truncated_safetensors(folder: Path) -> Path:
    path = write_tiny_folder(folder / "truncated_safetensors", num_shards=2)
    shard = path / "model-00002-of-00002.safetensors"
    os.truncate(shard, shard.stat().st_size - 1000)
    return path


def _too_narrow(weights: dict[str, Any]) -> None:
    weights["blk.1.ffn_up.weight"] = weights["blk.1.ffn_up.weight"][:64]


def wrong_shape_gguf(folder: Path) -> Path:
    return write_tiny_model(folder / "wrong_shape_gguf.gguf", edit=_too_narrow)


def wrong_shape_safetensors(folder: Path) -> Path:
    return write_tiny_folder(folder / "wrong_shape_safetensors", num_shards=2, edit=_too_narrow)


def _without_keys(weights: dict[str, Any]) -> None:
    del weights["blk.1.attn_k.weight"]


def missing_tensor(folder: Path) -> Path:
    return write_tiny_model(folder / "missing_tensor.gguf", edit=_without_keys)


def missing_tensor_safetensors(folder: Path) -> Path:
    return write_tiny_folder(folder / "missing_tensor_safetensors", edit=_without_keys)


def unknown_pre(folder: Path) -> Path:
    return write_tiny_model(folder / "unknown_pre.gguf", pre="klingon")


def missing_shard(folder: Path) -> Path:
    path = write_tiny_folder(folder / "missing_shard", num_shards=3)
    (path / "model-00002-of-00003.safetensors").unlink()
    return path


def config_without_key(folder: Path) -> Path:
    path = write_tiny_folder(folder / "config_without_key")
    _changed(path / "config.json", num_hidden_layers=None)
    return path


def config_not_json(folder: Path) -> Path:
    path = write_tiny_folder(folder / "config_not_json")
    (path / "config.json").write_text('{"model_type": "llama",')
    return path


def no_config(folder: Path) -> Path:
    path = write_tiny_folder(folder / "no_config")
    (path / "config.json").unlink()
    return path


def tokenizer_without_vocabulary(folder: Path) -> Path:
    path = write_tiny_folder(folder / "tokenizer_without_vocabulary")
    model = json.loads((path / "tokenizer.json").read_text())["model"]
    _changed(path / "tokenizer.json", model={key: model[key] for key in model if key != "vocab"})
    return path


def id_beyond_all(folder: Path) -> Path:
    """A place is kept for every id below the largest: four gigabytes of nothing."""
    path = write_tiny_folder(folder / "id_beyond_all")
    token = {"id": 1_000_000_000, "content": "<far>", "special": True}
    _changed(path / "tokenizer.json", added_tokens=[token])
    return path


def id_below_all(folder: Path) -> Path:
    path = write_tiny_folder(folder / "id_below_all")
    model = json.loads((path / "tokenizer.json").read_text())["model"]
    _changed(path / "tokenizer.json", model=model | {"vocab": model["vocab"] | {"he": -1}})
    return path


def end_beyond_all(folder: Path) -> Path:
    path = write_tiny_model(folder / "end_beyond_all.gguf")
    key = b"tokenizer.ggml.eos_token_id"
    _overwritten(path, path.read_bytes().index(key) + len(key) + 4, b"\0\0\0\x80")
    return path


def end_beyond_all_generated(folder: Path) -> Path:
    path = write_tiny_folder(folder / "end_beyond_all_generated")
    (path / "generation_config.json").write_text('{"eos_token_id": [2, -7]}')
    return path


def fifo_gguf(folder: Path) -> Path:
    os.mkfifo(path := folder / "fifo_gguf.gguf")
    return path


def fifo_shard(folder: Path) -> Path:
    return _as_fifo(write_tiny_folder(folder / "fifo_shard"), "model.safetensors")


def fifo_named_shard(folder: Path) -> Path:
    """One of several that the index names."""
    path = write_tiny_folder(folder / "fifo_named_shard", num_shards=3)
    return _as_fifo(path, "model-00002-of-00003.safetensors")


def fifo_config(folder: Path) -> Path:
    return _as_fifo(write_tiny_folder(folder / "fifo_config"), "config.json")


def fifo_tokenizer(folder: Path) -> Path:
    return _as_fifo(write_tiny_folder(folder / "fifo_tokenizer"), "tokenizer.json")


def fifo_template(folder: Path) -> Path:
    return _as_fifo(write_tiny_folder(folder / "fifo_template"), "chat_template.jinja")


def device_index(folder: Path) -> Path:
    path = write_tiny_folder(folder / "device_index")
    (path / "model.safetensors.index.json").symlink_to("/dev/zero")
    return path


def folder_generation_config(folder: Path) -> Path:
    path = write_tiny_folder(folder / "folder_generation_config")
    (path / "generation_config.json").mkdir()
    return path


def _as_fifo(folder: Path, name: str) -> Path:
    """Nobody will ever write into it."""
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    return folder


def split_gguf(folder: Path) -> Path:
    path, data = folder / "split_gguf.gguf", metadata() | {"split.count": 2}
    shape = TinyLlama(vocab_size=len(data["tokenizer.ggml.tokens"]))
    write_gguf(path, shape, shape.weights(1), TensorType.F32, **data)
    return path


def folder_of_gguf(folder: Path) -> Path:
    path = folder / "folder_of_gguf"
    path.mkdir()
    write_tiny_model(path / "large.gguf")
    (path / "small.gguf").symlink_to("large.gguf")
    return path


def little_memory(folder: Path) -> Path:
    return write_tiny_model(folder / "little_memory.gguf")


def absurd_memory(folder: Path) -> Path:
    return write_tiny_model(folder / "absurd_memory.gguf")


MEMORY = {little_memory: "400GiB", absurd_memory: "900TiB"}

# How each comes about, and what has to be told beside the file's name.
BROKEN = {
    bad_magic: ["bad_magic.gguf", "not a GGUF file (wrong magic)"],
    wrong_version: ["wrong_version.gguf", "GGUF version 9 is not supported (2, 3)"],
    truncated_gguf: ["truncated_gguf.gguf", "tensor 'blk.", "truncated or corrupt"],
    truncated_safetensors: ["model-00002-of-00002.safetensors'", "tensor 'model.", "truncated or corrupt"],
    wrong_shape_gguf: [
        "wrong_shape_gguf.gguf",
        "'blk.1.ffn_up.weight': shape [96, 64] wanted, [64, 64] found",
    ],
    wrong_shape_safetensors: [
        "of-00002.safetensors': tensor 'model.layers.1.mlp.up_proj.weight'",
        "shape [96, 64] wanted, [64, 64] found",
    ],
    missing_tensor: ["missing_tensor.gguf", "tensor 'blk.1.attn_k.weight' [32, 64] is missing"],
    missing_tensor_safetensors: [
        "missing_tensor_safetensors",
        "'model.layers.1.self_attn.k_proj.weight'",
        "missing",
    ],
    unknown_pre: ["unknown_pre.gguf", "tokenizer.ggml.pre: unknown pre-tokenizer 'klingon'; known: "],
    missing_shard: ["missing_shard", "model-00002-of-00003.safetensors: missing", "tensor 'model."],
    config_without_key: ["config_without_key", "config.json: ", "'num_hidden_layers'"],
    config_not_json: ["config_not_json", "config.json: JSON at byte "],
    no_config: ["no_config", "no config.json"],
    tokenizer_without_vocabulary: ["tokenizer_without_vocabulary", "tokenizer.json: malformed", "vocab"],
    id_beyond_all: [
        "id_beyond_all",
        "tokenizer.json: the id of '<far>' is 1000000000, outside [0, 16777216)",
    ],
    id_below_all: ["id_below_all", "tokenizer.json: the id of 'he' is -1, outside [0, 16777216)"],
    end_beyond_all: ["end_beyond_all.gguf", "tokenizer.ggml.eos_token_id: 2147483648 is no token id"],
    end_beyond_all_generated: ["generation_config.json: eos_token_id: -7 is no token id"],
    fifo_gguf: ["fifo_gguf.gguf", "this is a FIFO; expected a file or a folder"],
    fifo_named_shard: ["fifo_named_shard", "model-00002-of-00003.safetensors: this is a FIFO"],
    fifo_shard: ["fifo_shard", "model.safetensors' is not a regular file"],
    fifo_config: ["fifo_config", "config.json: this is a FIFO; expected a file"],
    fifo_tokenizer: ["fifo_tokenizer", "tokenizer.json: this is a FIFO"],
    fifo_template: ["fifo_template", "chat_template.jinja: this is a FIFO"],
    device_index: ["device_index", "model.safetensors.index.json: this is a device"],
    folder_generation_config: ["folder_generation_config", "generation_config.json: this is a folder"],
    split_gguf: ["split_gguf.gguf", "split.count: this is one of 2 files", "join them first"],
    folder_of_gguf: ["folder_of_gguf", "tokenizer.json: missing", "name one: large.gguf, small.gguf"],
    little_memory: [
        "little_memory.gguf",
        "too little memory for the KV cache: ",
        "bytes needed, ",
        " available",
    ],
    absurd_memory: [
        "absurd_memory.gguf",
        "too little memory for the KV cache: ",
        "bytes needed, ",
        " available",
    ],
}
NAMES = {make: make.__name__.replace("_", "-") for make in BROKEN}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One sound model among all the broken ones."""
    folder = tmp_path_factory.mktemp("broken")
    paths = {NAMES[make]: make(folder) for make in BROKEN} | {
        "sound": write_tiny_model(folder / "sound.gguf")
    }
    lines = [f"  {name}: {{ endpoints: [ {{ provider: ion, weights: {path}" for name, path in paths.items()]
    memory = {NAMES[make]: kv_memory for make, kv_memory in MEMORY.items()}
    routes = ["providers: { ion: { type: ion } }", "models:"]
    routes += [
        f"{line}, kv_memory: {memory.get(name, '16MiB')} }} ] }}"
        for line, name in zip(lines, paths, strict=True)
    ]
    with running_server(folder, "\n".join(routes), wait_until_ready=False) as running:
        running.wait_for_event("server_ready")
        yield running


@pytest.mark.parametrize("make", BROKEN, ids=NAMES.values())
def test_a_broken_file_is_told_everywhere_and_takes_nothing_else_down(server: Server, make: Any) -> None:
    name, words = NAMES[make], BROKEN[make]
    status, health = server.get("/health")
    assert (status, health["status"]) == (200, "ok")
    (local,) = [local for local in health["local"] if local["endpoint"] == f"ion/{name}"]
    assert local["ready"] is False
    (card,) = server.get(f"/api/v1/models/{name}/endpoints")[1]["data"]["endpoints"]
    assert (card["status"], card["unavailable"]) == (-5, local["reason"])
    assert [model["id"] for model in server.get("/api/v1/models")[1]["data"]] == ["sound"]
    status, answer = server.chat(model=name)
    error = answer["error"]
    assert (status, error["code"], error["metadata"]["error_type"]) == (503, 503, "provider_overloaded")
    assert error["availability"]["code"] == "temporarily_unavailable"
    assert server.chat(model=name, stream=True)[0] == 503
    events = server.events("engine_load_failed")
    failed = [event for event in events if Path(event["weights"]).stem == make.__name__]
    assert len(failed) == 1
    for text in (local["reason"], error["message"], failed[0]["error"]):
        assert all(word in text for word in words), text
    assert server.chat(model="sound", max_tokens=3, ignore_eos=True)[0] == 200
    assert server.get("/livez")[0] == 200


def test_no_broken_file_is_taken_for_a_fault_of_the_server(server: Server) -> None:
    (sound,) = server.get("/api/v1/models/sound/endpoints")[1]["data"]["endpoints"]
    assert (sound["status"], sound["unavailable"]) == (0, None)
    assert len(server.events("engine_load_failed")) == len(BROKEN)
    assert not server.events("engine_crashed")
    assert "Traceback" not in server.log


def test_a_file_that_was_mended_serves_after_a_reload(tmp_path: Path) -> None:
    path = truncated_gguf(tmp_path)
    endpoint = f"{{ provider: ion, weights: {path}, kv_memory: 16MiB }}"
    routes = f"providers: {{ ion: {{ type: ion }} }}\nmodels: {{ m: {{ endpoints: [ {endpoint} ] }} }}\n"
    with running_server(tmp_path, routes, wait_until_ready=False) as server:
        server.wait_for_event("server_ready")
        status, health = server.get("/health")
        assert (status, health["status"]) == (503, "unavailable")
        status, answer = server.chat()
        assert (status, "truncated or corrupt" in answer["error"]["message"]) == (503, True)
        assert server.get("/api/v1/models")[1]["data"] == []
        write_tiny_model(path)
        assert server.post("/api/v1/admin/reload", {}, key=server.management_key())[0] == 200
        server.wait_for("/health", 200)
        assert server.chat(max_tokens=3, ignore_eos=True)[0] == 200
        assert [model["id"] for model in server.get("/api/v1/models")[1]["data"]] == ["m"]


def test_a_repository_that_holds_its_weights_twice_is_read_once(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "twice", num_shards=2)
    other = write_tiny_folder(tmp_path / "other")
    os.rename(other / "model.safetensors", folder / "consolidated.safetensors")
    assert load_model(EngineSettings(str(folder)), cache=tmp_path, progress=False).config["num_layers"] == 2


@pytest.mark.parametrize("places", [{"a": 3}, {"a": "../b.safetensors"}, [], {"a": ""}])
def test_an_index_that_is_none_is_told(tmp_path: Path, places: Any) -> None:
    folder = write_tiny_folder(tmp_path / "odd")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(ConfigError, match=r"odd: model\.safetensors\.index\.json: weight_map is not"):
        load_model(EngineSettings(str(folder)), cache=tmp_path, progress=False)


def test_a_damaged_file_loads_or_is_told_and_is_nothing_else(tmp_path: Path) -> None:
    """Vocabulary, merges, template and sizes lie in the header: flip bytes all over it."""
    whole = write_tiny_model(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "flipped.gguf"
    rng = random.Random(3)
    num_refused = 0
    for _ in range(150):
        broken = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 8))):
            broken[rng.randrange(20_000)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        path.write_bytes(broken)
        try:
            load_model(EngineSettings(str(path)), cache=tmp_path, progress=False)
        except ConfigError as error:
            num_refused += 1
            assert "flipped.gguf" in str(error)
    assert 10 < num_refused < 150


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_folder_with_a_key_less_loads_or_is_told_and_is_nothing_else(tmp_path: Path, name: str) -> None:
    folder = write_tiny_folder(tmp_path / "folder")
    whole = json.loads((folder / name).read_text())
    inner = whole.get("model", {}) if name == "tokenizer.json" else {}
    variants = [{k: v for k, v in whole.items() if k != gone} for gone in whole]
    variants += [whole | {"model": {k: v for k, v in inner.items() if k != gone}} for gone in inner]
    variants += [whole | {key: value} for key in whole for value in (None, 7, "x", [1], {"y": 2})]
    for variant in variants:
        (folder / name).write_text(json.dumps(variant))
        try:
            load_model(EngineSettings(str(folder)), cache=tmp_path, progress=False)
        except ConfigError as error:
            assert "folder" in str(error)
