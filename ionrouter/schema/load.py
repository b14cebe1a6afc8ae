"""How busy the local engine is: what the router needs to price waiting in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """A snapshot of one loaded (or loading) local model. Rates are tokens/s, None until measured."""

    ready: bool
    reason: str | None = None  # why not ready: "loading", "failed: ..."; names files, not where they are
    fault: str | None = None  # the reason of a failed load with places on disk: for the server's owner
    has_failed: bool = False  # it could not be loaded, or broke down: waiting does not help
    context_length: int | None = (
        None  # prompt and answer together, once loaded: the model's, or what KV holds
    )
    waiting_tokens: int = 0  # prompt tokens queued and not yet prefilled
    running: int = 0
    waiting: int = 0
    max_running: int = 1
    blocks_free: int = 0
    blocks_total: int = 0
    prefill_rate: float | None = None
    decode_rate: float | None = None  # per sequence, at the current batch
    load_s: float | None = None  # measured time to load, for a cold model
    device: str | None = None  # "cpu" or "cuda", once loaded
    # The engine's own statistics, for who wants to see more; names as in _ion.Engine.stats.
    stats: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def whole_reason(self) -> str | None:
        """What the server's owner is told."""
        return self.fault or self.reason


def context_room(stated: int | None, engines: int | None) -> int | None:
    """The smaller of what routes.yaml says and what the engine inside has room for; either may be unknown."""
    if stated is None or engines is None:
        return engines if stated is None else stated
    return min(stated, engines)
