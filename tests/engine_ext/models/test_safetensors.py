"""Safetensors files: bounds, overlaps, shards, and the strictness of the header's JSON."""

import json
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ionrouter.engine import _ion
from tests.support.tiny_llama import TinyLlama, write_safetensors

SHAPE = TinyLlama(num_layers=1, hidden_size=32, num_heads=2, num_kv_heads=1, ffn_size=32, vocab_size=50)


def load(paths: Sequence[Path], config: str | None = None) -> _ion.Model:
    return _ion.Model.load_safetensors([str(p) for p in paths], config or SHAPE.config_json(), threads=1)


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "num_bytes", "message"),
    [
        (b"", 0, "header: JSON at byte 0"),
        (b"[]", 0, "not an object"),
        (b'{"a":1,}', 0, "expected a string"),
        (b'{"a":{},"a":{}}', 0, "'a' appears twice"),
        (b'{"a":' + b"[" * 100_000, 0, "nested too deeply"),
        (b'{"a":01}', 0, "JSON at byte 6"),
        (b'{"\\ud800":1}', 0, "lone surrogate"),
        (b"{} x", 0, "after the end"),
        ({"t": 3}, 0, "'t': not an object"),
        ({"t": {"dtype": "F32", "shape": [1]}}, 4, "'t': no data_offsets"),
        ({"t": entry("F32", [-1], 0, 4)}, 4, "whole numbers"),
        ({"t": entry("F32", [2], 0, 4)}, 4, r"shape \[2\] needs 8 bytes, its data_offsets hold 4"),
        ({"t": entry("F32", [2**40, 2**40], 0, 4)}, 4, "larger than any file"),
        ({"t": entry("F32", [2], 0, 8)}, 4, "wants bytes up to 8 of the 4"),
        ({"t": entry("F32", [1], 4, 0)}, 4, r"not \[begin, end\]"),
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 4, 8)}, 8, "'b': overlaps"),
        ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, 12, "'b': unused bytes"),
        ({"a": entry("F32", [1], 0, 4)}, 12, "8 unused bytes"),
    ],
)
def test_a_broken_header_is_refused(tmp_path: Path, header: Any, num_bytes: int, message: str) -> None:
    path = write(tmp_path / "x.safetensors", header, bytes(num_bytes))
    with pytest.raises(ValueError, match=message):
        load([path])


def test_a_header_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"\0" * 7, struct.pack("<Q", 2**63), struct.pack("<Q", 9) + b"{}"):
        path = tmp_path / "x.safetensors"
        path.write_bytes(content)
        with pytest.raises(ValueError, match="truncated or foreign"):
            load([path])


def test_shards_make_the_same_model_as_one_file(tmp_path: Path) -> None:
    weights = SHAPE.weights(3)
    write_safetensors(tmp_path / "one.safetensors", weights)
    names = sorted(weights)
    for i in range(3):
        write_safetensors(tmp_path / f"{i}.safetensors", {n: weights[n] for n in names[i::3]})
    one = load([tmp_path / "one.safetensors"])
    three = load([tmp_path / f"{i}.safetensors" for i in range(3)])
    assert one.logits([5, 6, 7]).tobytes() == three.logits([5, 6, 7]).tobytes()
    with pytest.raises(ValueError, match="appears in two"):
        load([tmp_path / "one.safetensors", tmp_path / "0.safetensors"])


def test_a_type_that_is_not_supported_is_named_with_its_tensor(tmp_path: Path) -> None:
    weights = SHAPE.weights(3)
    del weights["output_norm.weight"]
    write_safetensors(tmp_path / "rest.safetensors", weights)
    write(tmp_path / "norm.safetensors", {"model.norm.weight": entry("I64", [32], 0, 256)}, bytes(256))
    with pytest.raises(ValueError, match=r"'model\.norm\.weight' has type I64"):
        load([tmp_path / "rest.safetensors", tmp_path / "norm.safetensors"])


def test_broken_bytes_are_read_or_refused_but_never_crash(tmp_path: Path) -> None:
    path = tmp_path / "tiny.safetensors"
    write_safetensors(path, SHAPE.weights(1))
    whole = path.read_bytes()
    header_end = 8 + struct.unpack("<Q", whole[:8])[0]
    rng = random.Random(11)
    for i in range(1500):
        broken = bytearray(whole)
        if i % 3 == 0:
            broken = broken[: rng.randrange(len(broken))]
        else:
            broken[rng.randrange(header_end)] = rng.randrange(256)
        path.write_bytes(broken)
        try:
            model = load([path])
        except ValueError:
            continue
        model.logits([1, 2, 3])
