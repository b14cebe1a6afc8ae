"""Numbers of the command line: one out of its range is told by its option, before anything starts."""

from __future__ import annotations

import math

from ionrouter.errors import ConfigError


def require_range(option: str, value: int, least: int, most: int | None = None) -> None:
    """Raise ConfigError unless `least` <= value <= `most`."""
    if value < least:
        raise ConfigError(f"{option}: at least {least}")
    if most is not None and value > most:
        raise ConfigError(f"{option}: at most {most}")


def require_positive(option: str, value: float) -> None:
    """Raise ConfigError for 0, less, and what is no number: float() reads nan and inf too."""
    if not (value > 0 and math.isfinite(value)):
        raise ConfigError(f"{option}: a number above 0")
