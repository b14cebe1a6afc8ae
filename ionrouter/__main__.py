"""Where `ionrouter` and `python -m ionrouter` begin: before what takes half a second to import."""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Run one command; returns the exit code."""
    _open_standard_streams()
    if sys.argv[1:2] == ["serve"]:  # a reload that is asked for while we import must not end the process
        signal.signal(signal.SIGHUP, lambda *_: None)  # no SIG_IGN: see ionrouter.process.ignore_hangups
    from ionrouter import cli

    return cli.main()


def _open_standard_streams() -> None:
    """Give a process that was started without one of its standard streams /dev/null instead.

    Else the next file that is opened, a database or the event loop's own, takes its number, and what is
    written to stderr with it; libuv ends a process that closes such a file.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", closefd=False))


if __name__ == "__main__":
    raise SystemExit(main())
