"""docs/routing.md names every filter, strategy, sort and failure class, with the figures in the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from ionrouter.balancing import affinity, circuit_breaker, cost, health, strategies
from ionrouter.balancing.screen import FILTERS
from ionrouter.balancing.select import ESTIMATE_ERROR
from ionrouter.balancing.strategies import SORTS, STRATEGIES
from ionrouter.errors import FailureClass
from ionrouter.routing.table import BreakerRules, RoutingSettings

PAGE = (Path(__file__).parents[2] / "docs" / "routing.md").read_text()
TEXT = " ".join(PAGE.split())


@pytest.mark.parametrize("name", [name for name, _ in FILTERS])
def test_every_filter_has_its_row(name: str) -> None:
    assert f"| `{name}` |" in PAGE


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_has_its_row(name: str) -> None:
    assert f"| `{name}` |" in PAGE


@pytest.mark.parametrize("name", SORTS)
def test_every_sort_is_named(name: str) -> None:
    assert f"`{name}`" in TEXT.split("`provider.sort` (")[1].split(")")[0]


@pytest.mark.parametrize("failure", FailureClass)
def test_every_failure_class_has_its_row(failure: FailureClass) -> None:
    assert f"| `{failure.value}` |" in PAGE


@pytest.mark.parametrize(
    "figure",
    [
        f"Priors {cost.PRIOR_FAIL_BEFORE} and {cost.PRIOR_FAIL_AFTER}, worth {cost.PSEUDO_REQUESTS:g}",
        f"else {cost.PRIOR_TTFT_S:g} s and {cost.PRIOR_THROUGHPUT:g} tokens/s",
        f"recent answers, {cost.PRIOR_NUM_OUT:g} at first",
        f"`spread` ({RoutingSettings().spread})",
        f"`explore` ({RoutingSettings().explore:.0%})",
        f"at most {strategies.MAX_WARMING} requests at a time",
        f"an outage in the last {health.OUTAGE_S:g} s goes last",
        f"after {BreakerRules().max_failures} failures in a row",
        f"at least {circuit_breaker.MIN_SAMPLES:g} recent requests",
        f"`cooldown` seconds ({BreakerRules().cooldown_s:g}; 0: never)",
        f"up to {BreakerRules().max_cooldown_s / 60:g} minutes",
        f"queue is under {affinity.MAX_QUEUE_S:g} s",
        f"within {affinity.MAX_SCORE_RATIO:g} times the best",
        f"Kept for {affinity.TTL_S / 60:g} idle minutes",
    ],
)
def test_the_figures_are_those_of_the_code(figure: str) -> None:
    assert figure in TEXT


def test_a_quarter_is_the_estimates_error() -> None:
    assert ESTIMATE_ERROR == 0.25 and "a quarter shorter" in TEXT
