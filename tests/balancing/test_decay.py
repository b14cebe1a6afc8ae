"""Decayed mean and median."""

from __future__ import annotations

import math
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


@pytest.mark.parametrize("elapsed_s", [-5.0, 0.0, 1e-9, 0.1, 299.9, 1e9, float("inf")])
def test_a_mean_weighs_its_samples_as_its_weight_says(elapsed_s: float) -> None:
    mean = DecayedMean(half_life_s=30.0)
    mean.add(0.7, 10.0)
    weight = mean.weight(10.0 + elapsed_s)
    assert mean.mean(10.0 + elapsed_s, 0.02, 20.0) == (0.7 * weight + 0.02 * 20.0) / (weight + 20.0)
    mean.add(0.2, 10.0 + elapsed_s)
    assert mean.weight(10.0 + elapsed_s) == weight + 1.0


def test_a_median_answers_with_the_middle_of_a_bin_or_with_its_prior() -> None:
    median = DecayedMedian()
    for value in (0, 1, 20, 21, 21, 400):
        median.add(value, 0.0)
    middles = {math.exp(number * math.log(1.1)) for number in range(100)}
    assert set(median._bins) <= middles and median._bins[1.0] == 2.0
    assert median.median(0.0, prior=300, pseudo=0) in middles
    assert median.median(1e6, prior=300, pseudo=3) == 300
