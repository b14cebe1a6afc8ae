"""Places as upstreams write them; what could be none is none, whatever it is."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ionrouter.providers.indexes import MAX_INDEX, read_index


@pytest.mark.parametrize(("told", "index"), [(0, 0), (7, 7), ("3", 3), (2.0, 2), (MAX_INDEX - 1, 999_999)])
def test_a_number_or_its_digits(told: Any, index: int) -> None:
    assert read_index(told) == index


@pytest.mark.parametrize(
    "told",
    [
        None,
        True,
        -1,
        MAX_INDEX,
        2**63,
        1.5,
        1e308,
        math.inf,
        math.nan,
        "",
        "x",
        "-1",
        "²",
        "9" * 5000,
        [0],
        {},
    ],
    ids=lambda told: repr(told)[:8],
)
def test_what_is_no_place(told: Any) -> None:
    assert read_index(told) is None
