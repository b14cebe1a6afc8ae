"""Vectors of an upstream: one for each input, all of one size, in the order of the inputs; or a failure."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.providers.normalise import complete
from ionrouter.schema.vectors import base64_of, numbers_of
from tests.support.normalised import ERRORS


def read(rows: Any, given: Any = "x", **asked: Any) -> list[dict[str, Any]]:
    return list(complete("embeddings", {"data": rows}, ERRORS, {"input": given, **asked}).data)


def fault(rows: Any, given: Any = "x", **asked: Any) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        read(rows, given, **asked)
    return caught.value


def rows_of(*vectors: Any) -> list[dict[str, Any]]:
    return [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]


def test_they_come_in_order_of_index() -> None:
    rows = read([{"embedding": [2.0], "index": 1}, {"embedding": [1.0], "index": 0}], ["a", "b"])
    assert [row["embedding"] for row in rows] == [[1.0], [2.0]]
    assert all(row["object"] == "embedding" for row in rows)


@pytest.mark.parametrize("index", [0, None, "x"])
def test_one_index_on_every_row_says_nothing(index: Any) -> None:
    rows = read([{"embedding": [2.0], "index": index}, {"embedding": [1.0], "index": index}], ["a", "b"])
    assert [(row["index"], row["embedding"]) for row in rows] == [(0, [2.0]), (1, [1.0])]


def test_base64_passes() -> None:
    assert read([{"embedding": "AACAPw=="}])[0]["embedding"] == "AACAPw=="


@pytest.mark.parametrize(
    "vector",
    [
        *([], "", None, [1.0, math.nan], [1.0, "x"], [[1.0]], {"a": 1}, [10**400], "AAA="),
        *(
            [True, 0.5],
            [False],
            [None],
            [1e39],
            [0.5, -3.41e38],
            [10**39],
        ),  # the last three: infinity in base64
    ],
)
def test_what_is_no_vector_is_malformed(vector: Any) -> None:
    assert fault(rows_of(vector)).code == "malformed"


def test_the_largest_float32_is_a_number_as_anybody_writes_it() -> None:
    largest = [3.4028235e38, -3.4028234663852886e38, 1, 10**30, 1e-300]
    assert read(rows_of(largest))[0]["embedding"] == largest
    assert all(map(math.isfinite, numbers_of(base64_of(largest))))


@pytest.mark.parametrize("rows", [[], None, {}, "x"])
def test_no_rows_are_an_empty_answer(rows: Any) -> None:
    assert fault(rows).code == "empty"


@pytest.mark.parametrize(
    ("given", "num_inputs"),
    [("a", 1), (["a", "b"], 2), ([5, 6, 7], 1), ([[5], [6, 7]], 2), ([{"content": []}] * 3, 3)],
)
def test_there_is_one_for_each_input(given: Any, num_inputs: int) -> None:
    assert len(read(rows_of(*[[0.5]] * num_inputs), given)) == num_inputs
    for wrong in (num_inputs + 1, num_inputs - 1):
        assert fault(rows_of(*[[0.5]] * wrong), given).code == ("malformed" if wrong else "empty")


@pytest.mark.parametrize(
    ("rows", "asked", "words"),
    [
        (rows_of([0.5]), {}, "1 vectors for 2 inputs"),
        ([*rows_of([0.5]), None], {}, "embedding 1 is not a list"),
        (rows_of([0.5], [0.5, 1.0]), {}, "vectors of 1 and 2 dimensions"),
        (rows_of([0.5, 1.0], [0.5, 1.0]), {"dimensions": 3}, "2 dimensions where 3 were asked for"),
        (rows_of(*[base64_of([0.5, 1.0])] * 2), {"dimensions": 3}, "2 dimensions where 3 were asked for"),
        ([{"index": 1, "embedding": [0.5]}, {"index": 2, "embedding": [0.5]}], {}, "are not those"),
    ],
    ids=["too few", "no row", "two sizes", "too short", "too short in base64", "no such input"],
)
def test_what_was_not_asked_for_fails_as_the_upstreams_fault(rows: Any, asked: Any, words: str) -> None:
    failure = fault(rows, ["a", "b"], **asked)
    assert (failure.failure, failure.code) == (FailureClass.TRANSIENT, "malformed")
    assert words in failure.message
