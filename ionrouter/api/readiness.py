"""Whether this process should get traffic, and why not. Knows no HTTP."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


class Phase(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


Details = Callable[[], Mapping[str, Any]]


@dataclass(slots=True)
class Readiness:
    """The phase, moved only by app.py, and what a person asking wants to know besides."""

    phase: Phase = Phase.STARTING
    details: Details = field(default=dict)

    @property
    def is_ready(self) -> bool:
        return self.phase is Phase.READY

    def report(self) -> dict[str, Any]:
        """The JSON of GET /health."""
        return {"status": "ok" if self.is_ready else self.phase.value, **self.details()}
