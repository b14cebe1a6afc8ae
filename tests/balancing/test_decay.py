"""Decayed mean and median."""

from __future__ import annotations

import random
import statistics

import pytest

from ionrouter.balancing.decay import HALF_LIFE_S, DecayedMean, DecayedMedian


def test_a_mean_starts_at_its_prior_and_moves_as_evidence_comes() -> None:
    mean = DecayedMean()
    assert mean.mean(0.0, prior=0.02, pseudo=20.0) == 0.02
    mean.add(1.0, 0.0)
    assert mean.mean(0.0, prior=0.02, pseudo=20.0) == pytest.approx((0.02 * 20 + 1) / 21)


def test_a_sample_counts_half_after_one_half_life() -> None:
    mean = DecayedMean()
    mean.add(1.0, 0.0)
    assert mean.weight(HALF_LIFE_S) == pytest.approx(0.5)
    mean.add(0.0, HALF_LIFE_S)
    assert mean.mean(HALF_LIFE_S, 0.0, 0.0) == pytest.approx(0.5 / 1.5)


def test_reading_never_changes_the_state_and_a_clock_that_steps_back_forgets_nothing() -> None:
    mean = DecayedMean()
    mean.add(3.0, 100.0)
    before = repr(mean)
    assert mean.mean(1e6, 1.0, 1.0) == pytest.approx(1.0)
    assert mean.mean(0.0, 0.0, 0.0) == 3.0
    assert repr(mean) == before


def test_a_median_is_within_a_bin_of_the_true_one() -> None:
    rng = random.Random(7)
    values = [rng.lognormvariate(5, 1) for _ in range(2000)]
    median = DecayedMedian()
    for value in values:
        median.add(value, 0.0)
    assert median.median(0.0, prior=300, pseudo=0) == pytest.approx(statistics.median(values), rel=0.06)


def test_a_median_forgets_and_stays_bounded() -> None:
    median = DecayedMedian()
    for i in range(5000):
        median.add(random.Random(i).uniform(1, 1e5), float(i))
    assert len(median._bins) < 150
    for i in range(100):
        median.add(10, 5000 + i * 100.0)
    assert median.median(15000, prior=300, pseudo=3) == pytest.approx(10, rel=0.06)


def test_an_empty_median_is_its_prior() -> None:
    assert DecayedMedian().median(0.0, prior=300.0, pseudo=3.0) == 300.0
