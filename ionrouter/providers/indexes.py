"""The place of a choice, a call or a vector as upstreams write it: a number or its digits. Judges nothing."""

from __future__ import annotations

from typing import Any

_NUM_DIGITS = 6
MAX_INDEX = 10**_NUM_DIGITS


def read_index(value: Any) -> int | None:
    """Return the number; None: there is none, or none that could be a place."""
    if value.__class__ is int:  # nearly always
        return value if 0 <= value < MAX_INDEX else None
    if isinstance(value, float):
        return int(value) if 0 <= value < MAX_INDEX and value.is_integer() else None
    if isinstance(value, str) and len(value) <= _NUM_DIGITS and value.isdecimal():
        return int(value)
    return None
