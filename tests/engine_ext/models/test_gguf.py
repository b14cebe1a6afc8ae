"""GGUF files: what is read, and that no broken file does more than raise ValueError."""

import random
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as TensorType

from ionrouter.engine import _ion
from tests.support.tiny_llama import TinyLlama, write_gguf

SHAPE = TinyLlama(num_layers=1, hidden_size=32, num_heads=2, num_kv_heads=1, ffn_size=32, vocab_size=50)


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, SHAPE, SHAPE.weights(1), TensorType.Q8_0)
    return path


def pack_string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def header(num_tensors: int, pairs: list[bytes], version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, len(pairs)) + b"".join(pairs)


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return pack_string(key) + struct.pack("<I", kind) + value


def metadata_of(tmp_path: Path, content: bytes) -> dict[str, Any]:
    path = tmp_path / "file.gguf"
    path.write_bytes(content)
    return _ion.gguf_metadata(str(path))


def test_every_value_type_is_read(tmp_path: Path) -> None:
    pairs = [
        pair(b"u8", 0, struct.pack("<B", 200)),
        pair(b"i8", 1, struct.pack("<b", -100)),
        pair(b"u16", 2, struct.pack("<H", 60000)),
        pair(b"i16", 3, struct.pack("<h", -30000)),
        pair(b"u32", 4, struct.pack("<I", 4_000_000_000)),
        pair(b"i32", 5, struct.pack("<i", -2_000_000_000)),
        pair(b"f32", 6, struct.pack("<f", 0.5)),
        pair(b"bool", 7, b"\x01"),
        pair(b"string", 8, pack_string("Ġ→".encode())),
        pair(b"ints", 9, struct.pack("<IQ3i", 5, 3, 1, -2, 3)),
        pair(b"texts", 9, struct.pack("<IQ", 8, 2) + pack_string(b"a") + pack_string(b"")),
        pair(
            b"nested",
            9,
            struct.pack("<IQ", 9, 2) + struct.pack("<IQ2B", 0, 2, 1, 2) + struct.pack("<IQ", 7, 0),
        ),
        pair(b"u64", 10, struct.pack("<Q", 2**64 - 1)),
        pair(b"i64", 11, struct.pack("<q", -(2**63))),
        pair(b"f64", 12, struct.pack("<d", 0.1)),
    ]
    for version in (2, 3):
        assert metadata_of(tmp_path, header(0, pairs, version)) == {
            "u8": 200,
            "i8": -100,
            "u16": 60000,
            "i16": -30000,
            "u32": 4_000_000_000,
            "i32": -2_000_000_000,
            "f32": 0.5,
            "bool": True,
            "string": "Ġ→",
            "ints": [1, -2, 3],
            "texts": ["a", ""],
            "nested": [[1, 2], []],
            "u64": 2**64 - 1,
            "i64": -(2**63),
            "f64": 0.1,
        }


def test_metadata_equals_what_the_gguf_package_reads(tiny_path: Path) -> None:
    theirs = {k: f.contents() for k, f in gguf.GGUFReader(str(tiny_path)).fields.items() if "GGUF." not in k}
    assert _ion.gguf_metadata(str(tiny_path)) == theirs


def test_text_that_is_not_utf8_survives(tmp_path: Path) -> None:
    read = metadata_of(tmp_path, header(0, [pair(b"k\xff", 8, pack_string(b"\xc4"))]))
    assert {
        k.encode("utf-8", "surrogateescape"): v.encode("utf-8", "surrogateescape") for k, v in read.items()
    } == {b"k\xff": b"\xc4"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated"),
        (b"GGUF", "truncated"),
        (b"\x7fELF" + bytes(60), "not a GGUF file"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "metadata entries cannot fit"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "tensors cannot fit"),
        (header(0, [struct.pack("<Q", 2**63) + b"key of some length"]), "metadata entry 0.*truncated"),
        (header(0, [pair(b"key", 13, b"")]), "'key'.*unknown value type 13"),
        (header(0, [pair(b"key", 9, struct.pack("<IQ", 0, 2**62))]), "'key'.*array elements cannot fit"),
        (header(0, [pair(b"key", 9, struct.pack("<IQ", 8, 2**61))]), "'key'.*array elements cannot fit"),
        (header(0, [pair(b"key", 9, struct.pack("<IQ", 9, 1) * 10)]), "nested deeper"),
        (header(0, [pair(b"k", 0, b"\0")] * 2), "'k'.*twice"),
        (header(0, [pair(b"\xff\n", 13, b"")]), r"'\\xff\\x0a'.*unknown value type"),
        (
            header(1, [pair(b"general.alignment", 4, struct.pack("<I", 3))])
            + pack_string(b"t")
            + struct.pack("<IQIQ", 1, 1, 0, 0)
            + bytes(64),
            "alignment is not a power of two",
        ),
        (header(1, []) + pack_string(b"t") + struct.pack("<I", 5) + bytes(64), "'t'.*5 dimensions"),
        (header(1, []) + pack_string(b"t") + struct.pack("<IQIQ", 1, 0, 0, 0) + bytes(64), "'t'.*size 0"),
        (header(1, []) + pack_string(b"t") + struct.pack("<IQIQ", 1, 33, 8, 0) + bytes(64), "'t'.*multiple"),
        (
            header(1, []) + pack_string(b"t") + struct.pack("<I2QIQ", 2, 576, 1, 12, 0) + bytes(512),
            "tensor 't'.*rows of 576 values, not a multiple of Q4_K's 256",
        ),
        (
            header(1, []) + pack_string(b"t") + struct.pack("<I2QIQ", 2, 576, 1, 13, 0) + bytes(512),
            "tensor 't'.*rows of 576 values, not a multiple of Q5_K's 256",
        ),
        (
            header(1, []) + pack_string(b"t") + struct.pack("<IQIQ", 1, 4, 0, 7) + bytes(64),
            "'t'.*not aligned",
        ),
        (
            header(1, []) + pack_string(b"t") + struct.pack("<IQIQ", 1, 4, 0, 64) + bytes(64),
            "'t'.*tensor data",
        ),
        (
            header(1, []) + pack_string(b"t") + struct.pack("<I4QIQ", 4, *[2**40] * 4, 0, 0) + bytes(64),
            "'t'.*larger than any file",
        ),
    ],
)
def test_a_broken_file_is_named_with_its_fault(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        _ion.gguf_metadata(str(path))


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot open .*absent\.gguf'.*No such file"):
        _ion.gguf_metadata(str(tmp_path / "absent.gguf"))
    with pytest.raises(ValueError, match="not a regular file"):
        _ion.gguf_metadata(str(tmp_path))


def test_every_truncation_is_refused(tiny_path: Path, tmp_path: Path) -> None:
    whole = tiny_path.read_bytes()
    path = tmp_path / "cut.gguf"
    data_at = whole.rindex(b"blk.0.ffn_down") + 100
    for size in [*range(data_at), *range(data_at, len(whole), 97)]:
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError):
            _ion.Model.load_gguf(str(path), threads=1)


def test_flipped_bytes_are_read_or_refused_but_never_crash(tiny_path: Path, tmp_path: Path) -> None:
    """A load that succeeds must also compute: sizes that the header lies about would read out of bounds."""
    whole = bytearray(tiny_path.read_bytes())
    rng = random.Random(7)
    path = tmp_path / "flipped.gguf"
    num_refused = 0
    for _ in range(2000):
        broken = bytearray(whole)
        for _ in range(rng.choice((1, 1, 1, 2, 8))):
            broken[rng.randrange(min(len(broken), 2500))] = rng.choice(
                (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
            )
        path.write_bytes(broken)
        try:
            model = _ion.Model.load_gguf(str(path), threads=1)
        except ValueError:
            num_refused += 1
        else:
            model.logits([1, 2, 3])
    assert 200 < num_refused < 2000


def test_a_type_that_is_not_supported_is_named_with_its_tensor(tmp_path: Path) -> None:
    shape = TinyLlama(num_layers=1, hidden_size=256, num_heads=4, num_kv_heads=4, head_dim=64, ffn_size=256)
    path = tmp_path / "q3.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in shape.gguf_metadata().items():
        writer.add_float32(key, value) if isinstance(value, float) else writer.add_uint32(key, value)
    for name, value in shape.weights(1).items():
        if name == "blk.0.ffn_up.weight":
            raw = np.zeros((256, 110), dtype=np.uint8)
            writer.add_tensor(name, raw, raw_dtype=TensorType.Q3_K)
        else:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert _ion.gguf_metadata(str(path))["llama.block_count"] == 1
    message = r"'blk\.0\.ffn_up\.weight' has type Q3_K.*supported: F32, .*Q4_K, Q5_K, Q6_K, BF16\)"
    with pytest.raises(ValueError, match=message):
        _ion.Model.load_gguf(str(path))
