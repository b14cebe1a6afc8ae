"""`ionrouter pull`: the weights of a local model into the cache, before a server needs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ionrouter.engine import weights
from ionrouter.errors import ConfigError
from ionrouter.reload import load_table
from ionrouter.routing.resolve import resolve
from ionrouter.settings import Settings


def fetch_all(settings: Settings, model: str) -> Iterator[Path]:
    """Fetch the weights of each local endpoint of a model; raises ConfigError for one that has none."""
    table = load_table(settings.config_path, os.environ, settings.cache_dir / "lists")
    route = resolve(table, model)
    if route is None:
        raise ConfigError(f"no model '{model}' in {settings.config_path}")
    locals_ = [endpoint.local for endpoint in route.endpoints if endpoint.local is not None]
    if not locals_:
        raise ConfigError(f"{route.id} has no local endpoint, so there is nothing to fetch")
    for local in locals_:
        yield weights.fetch(local.weights, local.sha256, cache=settings.cache_dir, progress=True)
