"""How many paced streams a gateway holds: neither late events nor missing ones are taken for held."""

from __future__ import annotations

import pytest

from ionrouter.benchmark import proxies
from ionrouter.benchmark.load import Figures
from ionrouter.benchmark.processes import Target

PER_S = 50
NOBODY = Target("made up", "http://127.0.0.1:9/")


def held(monkeypatch: pytest.MonkeyPatch, *, most_events: float = 1e9, late_from: int = 10_000) -> int:
    """A gateway that passes `most_events` a second on and is late from a number of streams."""

    def load(_: Target, kind: str, streams: int, seconds: float) -> tuple[Figures, float]:
        assert kind == "paced"
        events = int(min(streams * PER_S, most_events) * seconds)
        gaps = {"p99.9": 150.0 if streams >= late_from else 25.0}
        return Figures(seconds=seconds, num_events=events, gap_ms=gaps), 0.0

    monkeypatch.setattr(proxies, "load", load)
    return proxies.streams_held(NOBODY, 2.0, lambda _: None)


def test_gaps_end_the_ramp(monkeypatch: pytest.MonkeyPatch) -> None:
    assert held(monkeypatch, late_from=100) == 80


def test_events_that_stay_away_end_the_ramp_though_gaps_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    assert held(monkeypatch, most_events=10_000) == 220  # 10,000 of 11,000 is over nine tenths, of 12,000 not


def test_who_passes_everything_on_holds_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert held(monkeypatch) == proxies.MAX_STREAMS
