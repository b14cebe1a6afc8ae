"""Vectors as numbers and as base64, both ways."""

from __future__ import annotations

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ionrouter.schema.vectors import base64_of, num_dimensions, numbers_of

_FLOATS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40)


@given(_FLOATS)
def test_both_forms_say_the_same(values: list[float]) -> None:
    text = base64_of(values)
    assert base64.b64decode(text) == struct.pack(f"<{len(values)}f", *values)
    assert numbers_of(text) == values
    assert num_dimensions(text) == num_dimensions(values) == len(values)
    assert base64_of(text) == text
    assert numbers_of(values) == values


@pytest.mark.parametrize(
    "text", ["", "????", "AAA=", base64.b64encode(struct.pack("<f", float("nan"))).decode()]
)
def test_what_is_no_vector_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"base64|float32|finite"):
        numbers_of(text)
