"""How much of an answer an effort may think. OpenRouter's table and formula."""

from __future__ import annotations

# Share of max_tokens that an effort may think.
EFFORT_SHARES = {"xhigh": 0.95, "high": 0.8, "medium": 0.5, "low": 0.2, "minimal": 0.1}
DEFAULT_EFFORT = "medium"
LEAST_BUDGET, MOST_BUDGET = 1024, 128_000  # tokens


def budget_of(effort: str, most: int) -> int | None:
    """Tokens that an effort may think of `most` in all; 0 where none fit, None for an unknown effort."""
    share = EFFORT_SHARES["xhigh"] if effort == "max" else EFFORT_SHARES.get(effort)
    if share is None:
        return None
    budget = max(min(int(most * share), MOST_BUDGET), LEAST_BUDGET)
    return budget if budget < most else 0
