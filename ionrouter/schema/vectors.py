"""Embedding vectors in their two forms: lists of numbers, and base64 of little-endian float32."""

from __future__ import annotations

import base64
import binascii
import math
import sys
from array import array
from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, ValidationError, convert

Vector = Sequence[float] | str

# Halfway from float32's maximum to the next power of two: from here on a number rounds to infinity. The
# maximum itself is often written 3.4028235e38, which is above it.
_TOO_LARGE = float.fromhex("0x1.ffffffp127")
Numbers = Annotated[list[Annotated[float, Meta(gt=-_TOO_LARGE, lt=_TOO_LARGE)]], Meta(min_length=1)]


def is_vector(value: Any) -> bool:
    """Ask whether parsed JSON is a vector in either form: numbers that float32 holds, no truth values."""
    try:
        return bool(numbers_of(value) if isinstance(value, str) else convert(value, Numbers))
    except (ValidationError, ValueError):
        return False


def numbers_of(vector: Vector) -> list[float]:
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


def base64_of(vector: Vector) -> str:
    """Write as base64; text is taken to be that already."""
    if isinstance(vector, str):
        return vector
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode("ascii")


def num_dimensions(vector: Vector) -> int:
    """Count its numbers."""
    if not isinstance(vector, str):
        return len(vector)
    return (len(vector) // 4 * 3 - vector.count("=")) // 4
