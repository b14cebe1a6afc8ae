"""The percentile sketch."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ionrouter.stats.sketch import ALPHA, MAX_BINS, Sketch, merged

VALUES = st.lists(st.floats(min_value=1e-3, max_value=600.0), min_size=1, max_size=200)


def of(values: list[float]) -> Sketch:
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    return sketch


@given(VALUES, st.sampled_from([0.0, 0.5, 0.75, 0.9, 0.99, 1.0]))
def test_any_percentile_is_within_one_percent(values: list[float], q: float) -> None:
    exact = sorted(values)[math.floor(q * (len(values) - 1))]
    got = of(values).quantile(q)
    assert got is not None and abs(got - exact) <= ALPHA * exact * (1 + 1e-9)


@pytest.mark.parametrize("percentile", [10, 25, 29, 50, 58, 75, 90, 95, 99])
def test_a_whole_rank_is_that_samples_from_either_end(percentile: int) -> None:
    sketch = of([float(value) for value in range(1, 102)])
    for q, rank in ((percentile / 100, percentile), (1 - percentile / 100, 100 - percentile)):
        got = sketch.quantile(q)
        assert got is not None and abs(got - (rank + 1)) <= ALPHA * (rank + 1) * (1 + 1e-9)


@given(VALUES, VALUES)
def test_merging_is_the_same_as_adding_everything_to_one(left: list[float], right: list[float]) -> None:
    assert merged([of(left), of(right)]) == of(left + right)


@given(VALUES)
def test_packing_loses_nothing(values: list[float]) -> None:
    assert Sketch.unpack(of(values).pack()) == of(values)


def test_bins_stay_bounded_and_high_percentiles_exact_when_values_spread_wide() -> None:
    rng = random.Random(7)
    values = [10 ** rng.uniform(-6, 6) for _ in range(20_000)]
    sketch = of(values)
    assert len(sketch.bins) <= MAX_BINS
    assert sketch.count == sum(sketch.bins.values()) == 20_000
    exact = sorted(values)[math.floor(0.99 * 19_999)]
    assert sketch.quantile(0.99) == pytest.approx(exact, rel=ALPHA * 1.01)


def test_merging_wide_sketches_stays_bounded() -> None:
    low, high = of([10**-k for k in range(6)] * 50), of([1.02**k for k in range(600)])
    total = merged([low, high])
    assert len(total.bins) <= MAX_BINS and total.count == low.count + high.count


def test_an_empty_sketch_has_no_percentiles() -> None:
    assert Sketch().quantile(0.5) is None
    assert Sketch.unpack(Sketch().pack()) == Sketch()


def test_what_is_not_finite_is_refused_and_zero_is_not() -> None:
    sketch = Sketch()
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            sketch.add(value)
    sketch.add(0.0)
    assert sketch.quantile(0.5) == 0.0


def test_packed_sketches_merge_as_open_ones_do_even_when_bins_run_out() -> None:
    rng = random.Random(5)
    into, packed = Sketch(), Sketch()
    for spread in (0.5, 3.0, 6.0):
        part = Sketch()
        for _ in range(400):
            part.add(rng.lognormvariate(0, spread))
        into.merge(part)
        packed.merge_packed(part.pack())
    assert packed == into
    assert len(packed.bins) == MAX_BINS


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01\x05\x00\x00", b"\x09\x00\x00"])
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        Sketch.unpack(data)
