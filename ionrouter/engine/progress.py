"""How far a long transfer is: a bar on a terminal, sparse log lines elsewhere. Knows nothing of networks."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import structlog

if TYPE_CHECKING:  # nobody who shows no bar needs rich
    from rich.console import Console
    from rich.progress import Progress

_log = structlog.get_logger(__name__)

_LOG_EVERY_S = 10.0


class Meter(Protocol):
    """Told the absolute position, so that a resumed or restarted transfer shows right."""

    def update(self, done_bytes: int, total_bytes: int | None) -> None: ...


class _Silent:
    def update(self, done_bytes: int, total_bytes: int | None) -> None:
        pass


class _Lines:
    """One log line every ten seconds."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._logged_at = time.monotonic()

    def update(self, done_bytes: int, total_bytes: int | None) -> None:
        now = time.monotonic()
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            _log.info(
                "weights_progressed", source=self._label, done_bytes=done_bytes, total_bytes=total_bytes
            )


class _Bar:
    def __init__(self, progress: Progress, label: str) -> None:
        self._progress = progress
        self._task = progress.add_task(label, total=None)

    def update(self, done_bytes: int, total_bytes: int | None) -> None:
        self._progress.update(self._task, completed=done_bytes, total=total_bytes)


@contextmanager
def _shown_again(console: Console) -> Iterator[Console]:
    """Give the terminal its cursor back when the process ends in the middle of a transfer."""

    def show() -> None:
        console.show_cursor(True)

    atexit.register(show)
    try:
        yield console
    finally:
        atexit.unregister(show)


@contextmanager
def meter(label: str, *, show: bool) -> Iterator[Meter]:
    """Open a meter; `show` False is silent, True is a bar if standard error is a terminal, else log lines."""
    if not show:
        yield _Silent()
    elif sys.stderr.isatty():
        from rich import progress as bars
        from rich.console import Console

        columns = (
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.DownloadColumn(),
            bars.TransferSpeedColumn(),
            bars.TimeRemainingColumn(),
        )
        with (
            _shown_again(Console(stderr=True)) as console,
            bars.Progress(*columns, console=console) as progress,
        ):
            yield _Bar(progress, label)
    else:
        yield _Lines(label)
