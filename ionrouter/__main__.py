"""`python -m ionrouter` is `ionrouter`."""

from ionrouter.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
