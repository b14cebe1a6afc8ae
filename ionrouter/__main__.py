"""Where `ionrouter` and `python -m ionrouter` begin: before what takes half a second to import."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run one command; returns the exit code."""
    if sys.argv[1:2] == ["serve"]:  # a reload that is asked for while we import must not end the process
        signal.signal(signal.SIGHUP, lambda *_: None)  # no SIG_IGN: see ionrouter.process.ignore_hangups
    from ionrouter import cli

    return cli.main()


if __name__ == "__main__":
    raise SystemExit(main())
