"""Played worlds log nothing: thousands of requests that nobody reads."""

from __future__ import annotations

import pytest

from ionrouter import log


@pytest.fixture(autouse=True)
def silent(same_log: None) -> None:
    """Keep the log to errors; `same_log` puts it back."""
    log.configure(log_format="console", level="error", cache=False)
