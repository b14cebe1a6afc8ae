"""Files of a model hub, through huggingface_hub: its cache layout, resume, tokens and endpoint settings.

Knows the hub's failures and turns them into ours. Knows no GGUF, tokenizer or engine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from ionrouter.engine.download import SourceUnavailable
from ionrouter.engine.sources import HubFile
from ionrouter.errors import ConfigError

# What a folder in Hugging Face form needs to be served; not the originals beside it (.pth, ONNX, ...).
_FOLDER_PATTERNS = ("*.safetensors", "*.json", "*.jinja")


def fetch_hub(hub: HubFile, source: str, cache: Path, *, show_progress: bool) -> Path:
    """Download the file, or the safetensors folder, and return its path in the cache."""
    import huggingface_hub
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    (enable_progress_bars if show_progress else disable_progress_bars)()
    where = cache / "hub"
    if hub.file is not None:
        name = hub.file
        return Path(
            _translated(
                source,
                lambda: huggingface_hub.hf_hub_download(
                    hub.repo, name, revision=hub.revision, cache_dir=where
                ),
            )
        )
    folder = Path(
        _translated(
            source,
            lambda: huggingface_hub.snapshot_download(
                hub.repo,
                revision=hub.revision,
                cache_dir=where,
                allow_patterns=list(_FOLDER_PATTERNS),
                ignore_patterns=["original/*", "onnx/*"],
            ),
        )
    )
    _mark_complete(hub, cache, folder)
    return folder


def locate_hub(hub: HubFile, cache: Path) -> Path | None:
    """Find what `fetch_hub` has finished before, without touching the network."""
    if hub.file is None:
        return _completed_folder(hub, cache)
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(hub.repo, hub.file, cache_dir=cache / "hub", revision=hub.revision)
    return Path(found) if isinstance(found, str) else None


def _translated(source: str, call: Callable[[], str]) -> str:
    """Run one hub call and turn its failure into ours."""
    from huggingface_hub import errors

    # The transport's own error, of whichever HTTP library this release of the hub client is built on.
    transport_error: type[Exception] = errors.HfHubHTTPError.__mro__[1]
    try:
        return call()
    except errors.GatedRepoError as error:
        raise ConfigError(
            f"{source}: access to the repository is gated; accept its terms and set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ConfigError(
            f"{source}: no such repository, or a private one and HF_TOKEN is unset or wrong"
        ) from error
    except (errors.RemoteEntryNotFoundError, errors.RevisionNotFoundError) as error:
        raise ConfigError(f"{source}: the repository has no such file or revision") from error
    except errors.HFValidationError as error:
        raise ConfigError(f"{source}: {error}") from error
    except (
        errors.LocalEntryNotFoundError,
        errors.OfflineModeIsEnabled,
        errors.HfHubHTTPError,
        transport_error,
    ) as error:
        raise SourceUnavailable(
            f"{source}: the model hub cannot be reached (offline?): {str(error).splitlines()[0]}; check the "
            f"network and HF_ENDPOINT, or set `weights:` to the path of a local copy"
        ) from error
    except OSError as error:
        raise ConfigError(f"{source}: {error.strerror or error} while writing to the cache") from error


def _marker(hub: HubFile, cache: Path) -> Path:
    name = f"{hub.repo.replace('/', '--')}@{hub.revision or 'default'}.json"
    return cache / "hub-complete" / name


def _mark_complete(hub: HubFile, cache: Path, folder: Path) -> None:
    """Write down that every file of the folder is here: the hub's cache cannot tell a part from a whole."""
    marker = _marker(hub, cache)
    marker.parent.mkdir(parents=True, exist_ok=True)
    fresh = marker.with_name(f"{marker.name}.{os.getpid()}")
    fresh.write_text(json.dumps({"folder": str(folder)}))
    os.replace(fresh, marker)


def _completed_folder(hub: HubFile, cache: Path) -> Path | None:
    try:
        folder = Path(json.loads(_marker(hub, cache).read_text())["folder"])
    except FileNotFoundError:
        return None
    return folder if folder.is_dir() else None
