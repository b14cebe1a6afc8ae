"""Peak EWMA."""

from __future__ import annotations

import pytest

from ionrouter.balancing.peak_ewma import DECAY_S, FADE_S, PeakEwma


def test_bad_news_is_believed_at_once_and_good_news_slowly() -> None:
    ewma = PeakEwma()
    ewma.observe(1.0, 0.0)
    ewma.observe(5.0, 1.0)
    assert ewma.value == 5.0
    ewma.observe(1.0, 1.0 + DECAY_S)
    assert ewma.value == pytest.approx(5 * 0.3679 + 1 * 0.6321, rel=1e-3)


def test_a_burst_of_good_samples_pulls_it_down_though_no_time_passes() -> None:
    ewma = PeakEwma()
    ewma.observe(5.0, 0.0)
    for _ in range(50):
        ewma.observe(1.0, 0.0)
    assert ewma.value == pytest.approx(1.0, abs=0.1)


def test_it_fades_towards_the_prior_without_samples() -> None:
    ewma = PeakEwma()
    assert ewma.estimate(0.0, prior=2.0) == 2.0
    ewma.observe(10.0, 0.0)
    assert ewma.estimate(0.0, prior=2.0) == 10.0
    assert ewma.estimate(FADE_S, prior=2.0) == pytest.approx(2 + 8 * 0.3679, rel=1e-3)
    assert ewma.estimate(100 * FADE_S, prior=2.0) == pytest.approx(2.0)


def test_reading_never_changes_the_state() -> None:
    ewma = PeakEwma()
    ewma.observe(10.0, 0.0)
    ewma.estimate(1e9, 1.0)
    assert (ewma.value, ewma.at) == (10.0, 0.0)
