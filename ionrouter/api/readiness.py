"""Whether this process should get traffic, and why not. Knows no HTTP."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


class Phase(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


@dataclass(slots=True)
class Readiness:
    """The phase, whether anything could answer now, and what a person wants to know besides."""

    phase: Phase = Phase.STARTING
    can_serve: Callable[[], bool] = lambda: True
    details: Callable[[bool], Mapping[str, Any]] = lambda whole: {}  # whole: with places on disk

    @property
    def status(self) -> str:
        """One word: ok, starting, draining, or unavailable (started, and nothing can serve)."""
        if self.phase is not Phase.READY:
            return str(self.phase.value)
        return "ok" if self.can_serve() else "unavailable"

    @property
    def is_ready(self) -> bool:
        return self.status == "ok"
