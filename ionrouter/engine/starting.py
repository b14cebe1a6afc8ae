"""From settings to a C++ engine that runs: weights, KV memory, second tier. Blocking: for a thread.

Knows what fits beside the process's other engines; knows no requests and no event loop.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ionrouter.engine.kv_memory import (
    Neighbours,
    TooLittleMemory,
    choose_device_kv_bytes,
    choose_kv_bytes,
)
from ionrouter.engine.loading import EngineSettings, LoadedModel, device_of, fetch_weights, load_from
from ionrouter.errors import ConfigError

# On the CPU a few prompt tokens cost nearly what many do: small chunks would cost everybody's time.
MIXED_STEP_RATIO = {"cuda": 1.8, "cpu": 0.0}

# Weights and KV of a model are taken together: who loads next sees what is left. Fetching is not held up.
_one_at_a_time = threading.Lock()


def start_engine(
    settings: EngineSettings, *, cache: Path, progress: bool, neighbours: Callable[[], Neighbours]
) -> tuple[LoadedModel, Any]:
    """Fetch, load and start; returns the model and its `_ion.Engine`. Raises ConfigError."""
    device = device_of(settings)  # what cannot be had is said before anything is fetched
    path = fetch_weights(settings, cache=cache, progress=progress)
    with _one_at_a_time:
        loaded = load_from(path, settings, device)
        return loaded, _start(loaded, settings, neighbours)


def _start(loaded: LoadedModel, settings: EngineSettings, neighbours: Callable[[], Neighbours]) -> Any:
    from ionrouter.engine import _ion

    kv_bytes = settings.kv_memory_bytes or _chosen_kv_bytes(loaded, settings, neighbours())
    table = loaded.tokenizer.token_bytes(int(loaded.config["vocab_size"]))
    ratio = settings.max_mixed_step_ratio
    options = {
        "kv_memory_bytes": kv_bytes,  # 0 on a GPU that nobody shares: the runner takes what it finds
        "max_running": settings.max_running,
        "max_mixed_step_ratio": MIXED_STEP_RATIO[loaded.device.kind] if ratio is None else ratio,
        "cache_identity": loaded.identity,
        "is_deterministic": settings.numerics == "deterministic",
        "tier_bytes": settings.kv_tier_bytes,
        "tier_folder": settings.kv_tier_folder,
    }
    if settings.kv_tier_folder:
        _make_folder(settings.kv_tier_folder)
    try:
        return _ion.Engine(loaded.model, table, list(loaded.tokenizer.stop_ids), options)
    except _ion.MemoryShort as error:
        raise TooLittleMemory(f"{settings.weights}: the engine does not start: {error}") from error
    except (ValueError, MemoryError, RuntimeError) as error:
        raise ConfigError(f"{settings.weights}: the engine does not start: {error}") from error


def _chosen_kv_bytes(loaded: LoadedModel, settings: EngineSettings, neighbours: Neighbours) -> int:
    from ionrouter.engine import _ion

    if loaded.device.kind == "cuda":
        free_bytes = int(_ion.cuda_device()["free_bytes"])
        return choose_device_kv_bytes(
            loaded.config, settings.max_running, free_bytes=free_bytes, neighbours=neighbours
        )
    return choose_kv_bytes(
        loaded.config,
        settings.numerics,
        settings.max_running,
        weight_bytes=loaded.model.weight_bytes,
        free_bytes=_ion.available_memory(),
        neighbours=neighbours,
    )


def _make_folder(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"kv_tier: the folder {path} cannot be made: {error.strerror}") from error
