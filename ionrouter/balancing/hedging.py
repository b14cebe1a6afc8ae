"""When a slow attempt gets a rival, and how many may: "The Tail at Scale" (Dean, Barroso, 2013).

Asks the endpoint's own measurements; starts nothing and calls no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ionrouter.balancing.health import Health
from ionrouter.balancing.share_budget import ShareBudget
from ionrouter.routing.table import Hedge

MIN_SAMPLES = 20  # recent answers, before their 95th percentile says anything
QUANTILE = 0.95


def patience_s(hedge: Hedge, health: Health, stream: bool, now: float) -> float | None:
    """Seconds without an answer after which an endpoint is slow; None while nobody can tell.

    Streamed: the 95th percentile of its times to the first token, else of its whole answers' times.
    """
    if hedge.after_s is not None:
        return max(hedge.after_s, hedge.floor_s)
    sketch = health.recent(now, stream).sketches.get("ttft_s" if stream else "duration_s")
    if sketch is None or sketch.count < MIN_SAMPLES:
        return None
    measured = sketch.quantile(QUANTILE)
    return None if measured is None else max(measured, hedge.floor_s)


@dataclass(slots=True)
class HedgeBook:
    """Every hedged model's budget."""

    _budgets: dict[str, ShareBudget] = field(default_factory=dict)

    def of(self, model_id: str) -> ShareBudget:
        """Find a model's budget, or start one."""
        return self._budgets.setdefault(model_id, ShareBudget())

    def keep(self, model_ids: frozenset[str]) -> None:
        """Drop the budgets of all other models."""
        self._budgets = {name: budget for name, budget in self._budgets.items() if name in model_ids}

    def counts(self) -> dict[str, tuple[int, int]]:
        """For each model: second attempts begun, and those that the budget refused."""
        return {name: (b.num_taken, b.num_refused) for name, b in self._budgets.items()}
