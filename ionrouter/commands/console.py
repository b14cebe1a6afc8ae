"""Where tables are printed: as wide as the terminal, and wide enough to be read or searched in a pipe."""

from __future__ import annotations

import sys

from rich.console import Console

PIPE_WIDTH = 160


def make_console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
