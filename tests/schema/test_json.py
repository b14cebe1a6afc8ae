"""What can be read can be written again, or is known to be nested too deep."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ionrouter.schema import json
from tests.support.odd_answers import nested


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"a": [1, "x", None]}, {"a": [1, "x", None]}),
        ([math.nan, {"a": math.inf}], [None, {"a": None}]),
        (["\ud800", math.nan], ["\ud800", None]),
    ],
)
def test_finite_is_what_would_be_read_again(value: Any, written: Any) -> None:
    assert json.finite(value) == written == json.loads(json.dumps(value))


@pytest.mark.parametrize("levels", [1, 100, json.MAX_LEVELS])
def test_what_is_shallow_can_be_written_wherever_it_stands(levels: int) -> None:
    for value in (nested(levels), [{"a": nested(levels - 2)}, "\ud800"]):
        assert json.is_shallow(value)
        json.dumps({"choices": [{"message": {"details": [value]}}]})
        assert json.finite(value) == value


@pytest.mark.parametrize("levels", [json.MAX_LEVELS + 1, 300, 480, 600, 900])
def test_what_is_not_has_no_finite_form_that_could_not_be_written(levels: int) -> None:
    assert not json.is_shallow(nested(levels))
    for value in (nested(levels), [nested(levels), "\ud800"]):
        if (written := json.finite(value)) is not None:
            json.dumps({"choices": [{"logprobs": {"content": [written]}}]})


def test_long_integers_can_be_read_exactly() -> None:
    assert json.loads_exactly("[92233720368547758099]") == [92233720368547758099]
    assert json.dumps([92233720368547758099]) == b"[92233720368547758099]"
