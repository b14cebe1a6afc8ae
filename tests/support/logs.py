"""Tests that set up logs leave them as they were."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog


@contextmanager
def restored_logs() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, kind = root.handlers, root.level, logging.getLoggerClass()
    try:
        yield
    finally:
        structlog.reset_defaults()
        root.handlers, root.level = handlers, level
        logging.setLoggerClass(kind)
        logging.captureWarnings(False)
