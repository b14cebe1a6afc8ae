"""Embedding vectors in their two forms: lists of numbers, and base64 of little-endian float32.

`WrittenVector` is one that was checked, with both forms at hand: nobody has to look at its numbers again.
"""

from __future__ import annotations

import base64
import binascii
import math
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import orjson
from msgspec import Meta, Struct, ValidationError, convert
from msgspec.json import Decoder


class WrittenVector(Struct, frozen=True):
    """`text` is the JSON of its numbers, as the upstream wrote them; `packed` the same as float32."""

    text: bytes
    packed: bytes


class WrittenRows(Struct, frozen=True):
    """The rows of a large answer, whose `embedding` are WrittenVectors, in the form that was asked for."""

    rows: Sequence[Mapping[str, Any]]
    is_base64: bool

    def num_bytes(self) -> int:
        """How long all pieces are together."""
        frames = sum(len(orjson.dumps({**row, "embedding": 0})) - 1 for row in self.rows)
        return frames + sum(map(self._length, self.rows)) + len(self.rows) - 1

    def pieces(self) -> Iterator[bytes]:
        """The JSON of the list's items, with the commas between them."""
        form = base64_of if self.is_base64 else json_of
        for position, row in enumerate(self.rows):
            piece = orjson.dumps({**row, "embedding": form(row["embedding"])})
            yield b"," + piece if position else piece

    def _length(self, row: Mapping[str, Any]) -> int:
        vector: WrittenVector = row["embedding"]
        return -(-len(vector.packed) // 3) * 4 + 2 if self.is_base64 else len(vector.text)


LARGE = 256 * 1024  # bytes of JSON: what takes no more is written at once
Vector = Sequence[float] | str | WrittenVector

# Halfway from float32's maximum to the next power of two: from here on a number rounds to infinity. The
# maximum itself is often written 3.4028235e38, which is above it.
_TOO_LARGE = float.fromhex("0x1.ffffffp127")
Numbers = Annotated[list[Annotated[float, Meta(gt=-_TOO_LARGE, lt=_TOO_LARGE)]], Meta(min_length=1)]


_DECODER = Decoder(Numbers)


def is_vector(value: Any) -> bool:
    """Ask whether parsed JSON is a vector in either form: numbers that float32 holds, no truth values."""
    if isinstance(value, WrittenVector):
        return True
    try:
        return bool(numbers_of(value) if isinstance(value, str) else convert(value, Numbers))
    except (ValidationError, ValueError):
        return False


def written(text: bytes) -> WrittenVector:
    """Check the JSON of a vector in either form; raises ValueError (DecodeError) for what is none."""
    if not text.startswith(b'"'):
        return WrittenVector(text, _packed(_DECODER.decode(text)))
    numbers = numbers_of(text[1:-1].decode("ascii"))
    return WrittenVector(orjson.dumps(numbers), _packed(numbers))


def numbers_of(vector: Sequence[float] | str) -> list[float]:
    """Give the numbers; raises ValueError for text that is not base64 of finite float32."""
    if not isinstance(vector, str):
        return list(vector)
    try:
        data = base64.b64decode(vector, validate=True)
    except binascii.Error:
        raise ValueError("not base64") from None
    if not data or len(data) % 4:
        raise ValueError(f"{len(data)} bytes are no float32 values")
    values = array("f", data)
    if sys.byteorder == "big":
        values.byteswap()
    if not all(map(math.isfinite, values)):
        raise ValueError("not finite")
    return values.tolist()


def rows_in(encoding: str, rows: Sequence[Mapping[str, Any]]) -> WrittenRows | list[dict[str, Any]]:
    """Rows with their vectors as `float` or `base64`; those of a large answer are written as they leave."""
    vectors = [row["embedding"] for row in rows]
    are_written = all(isinstance(vector, WrittenVector) for vector in vectors)
    if are_written and sum(len(vector.text) for vector in vectors) > LARGE:
        return WrittenRows(rows, is_base64=encoding == "base64")
    form = base64_of if encoding == "base64" else json_of
    return [{**row, "embedding": form(row["embedding"])} for row in rows]


def json_of(vector: Vector) -> list[float] | orjson.Fragment:
    """What is written as a list of numbers."""
    return orjson.Fragment(vector.text) if isinstance(vector, WrittenVector) else numbers_of(vector)


def base64_of(vector: Vector) -> str:
    """Write as base64; text is taken to be that already."""
    if isinstance(vector, str):
        return vector
    packed = vector.packed if isinstance(vector, WrittenVector) else _packed(vector)
    return base64.b64encode(packed).decode("ascii")


def num_dimensions(vector: Vector) -> int:
    """Count its numbers."""
    if isinstance(vector, WrittenVector):
        return len(vector.packed) // 4
    if not isinstance(vector, str):
        return len(vector)
    return (len(vector) // 4 * 3 - vector.count("=")) // 4


def _packed(numbers: Sequence[float]) -> bytes:
    values = array("f", numbers)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()
