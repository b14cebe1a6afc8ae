"""One URL to one file, resumed where it was cut. Knows HTTP ranges, not packages, hubs or models.

`<target>.part` holds the bytes so far and `<target>.part.json` which representation they belong to
(URL, ETag, Last-Modified, size), so that a later process goes on and never joins two versions.
"""

from __future__ import annotations

import email.message
import errno
import http.client
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ionrouter.engine.progress import Meter
from ionrouter.errors import ConfigError

_PIECE_BYTES = 1 << 20
_MAX_FRUITLESS = 5  # consecutive tries that brought no byte
_RETRY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONTENT_RANGE = re.compile(r"bytes (?P<start>\d+)-\d+/(?P<total>\d+|\*)")


class SourceUnavailable(ConfigError):
    """The place the weights come from cannot be reached now; trying later may help."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to get. `authorization` is for the first host only, never for a redirect's."""

    url: str
    source: str  # as routes.yaml names it, for messages
    authorization: str | None = None
    timeout_s: float = 60.0
    retry_wait_s: float = 0.5  # doubles with every fruitless try


@dataclass(frozen=True, slots=True)
class _Part:
    """The bytes of an earlier try and the validator that proves they are of this representation."""

    size: int
    validator: str | None
    total: int | None


def download(request: Request, target: Path, opener: urllib.request.OpenerDirector, meter: Meter) -> bool:
    """Fetch into `target`; returns whether bytes of an earlier process were used.

    Raises SourceUnavailable when the network gives up, ConfigError for a refusal or a full disk.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = part_path(target)
    is_resumed = part.exists() and part.stat().st_size > 0
    fruitless = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            if _attempt(request, part, opener, meter):
                break
        except (OSError, http.client.HTTPException) as error:
            _raise_if_final(request, part, error)
            after = part.stat().st_size if part.exists() else 0
            fruitless = 0 if after > before else fruitless + 1
            if fruitless >= _MAX_FRUITLESS:
                raise SourceUnavailable(_unreachable(request, error)) from error
            time.sleep(request.retry_wait_s * 2**fruitless)
    os.replace(part, target)
    _facts_path(part).unlink(missing_ok=True)
    return is_resumed


def part_path(target: Path) -> Path:
    """Say where the bytes of an unfinished download of `target` lie."""
    return target.with_name(target.name + ".part")


def discard(target: Path) -> None:
    """Forget a finished or unfinished download."""
    part = part_path(target)
    for path in (target, part, _facts_path(part)):
        path.unlink(missing_ok=True)


def _attempt(request: Request, part: Path, opener: urllib.request.OpenerDirector, meter: Meter) -> bool:
    """Try once; True when the part is whole. False: the server asks for a fresh start."""
    have = _read_part(request, part)
    try:
        response = opener.open(_http_request(request, have), timeout=request.timeout_s)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return _settle_unsatisfiable(error, have, part)
        raise
    with response:
        start = _start_of(response, have)
        total = _total(response, start)
        _write_facts(request, part, response.headers, total)
        with open(part, "r+b" if start else "wb") as file:
            file.seek(start)
            _require_space(request, part, start, total)
            _copy(response, file, start, total, meter)
    return True


def _read_part(request: Request, part: Path) -> _Part:
    """Say what of an earlier try can be continued: nothing without a validator or for another URL."""
    try:
        facts = json.loads(_facts_path(part).read_text())
        size = part.stat().st_size
    except (FileNotFoundError, ValueError):
        return _Part(0, None, None)
    if facts.get("url") != request.url:
        return _Part(0, None, None)
    return _Part(size, facts.get("validator"), facts.get("total"))


def _http_request(request: Request, have: _Part) -> urllib.request.Request:
    out = urllib.request.Request(
        request.url, headers={"User-Agent": "ionrouter", "Accept-Encoding": "identity"}
    )
    if request.authorization is not None:
        out.add_unredirected_header("Authorization", request.authorization)
    if have.size:
        out.add_header("Range", f"bytes={have.size}-")
        if have.validator is not None:
            out.add_header("If-Range", have.validator)
    return out


def _start_of(response: Any, have: _Part) -> int:
    """Say where this answer's bytes go: after ours for a matching 206, else at 0 (Range was ignored)."""
    if response.status != 206:
        return 0
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    total = None if match is None or match["total"] == "*" else int(match["total"])
    if match is None or int(match["start"]) != have.size or (have.total is not None and total != have.total):
        raise http.client.HTTPException(f"unusable Content-Range {response.headers.get('Content-Range')!r}")
    return have.size


def _settle_unsatisfiable(error: urllib.error.HTTPError, have: _Part, part: Path) -> bool:
    """416: the part is whole already, or belongs to something else and is dropped."""
    total = error.headers.get("Content-Range", "").rpartition("/")[2]
    error.close()
    if have.size and total == str(have.size):
        return True
    part.unlink(missing_ok=True)
    _facts_path(part).unlink(missing_ok=True)
    return False


def _total(response: Any, start: int) -> int | None:
    length = response.headers.get("Content-Length")
    return None if length is None else start + int(length)


def _copy(response: Any, file: IO[bytes], start: int, total: int | None, meter: Meter) -> None:
    done = start
    meter.update(done, total)
    while piece := response.read(_PIECE_BYTES):
        file.write(piece)
        done += len(piece)
        meter.update(done, total)
    file.flush()
    os.fsync(file.fileno())
    if total is not None and done < total:
        raise http.client.IncompleteRead(b"", total - done)


def _require_space(request: Request, part: Path, start: int, total: int | None) -> None:
    if total is None:
        return
    free = shutil.disk_usage(part.parent).free
    if total - start > free:
        raise ConfigError(_disk_full(request.source, part.parent, total - start, free))


def _write_facts(request: Request, part: Path, headers: email.message.Message, total: int | None) -> None:
    etag = headers.get("ETag")
    # A weak ETag may not be used with If-Range (RFC 9110, 13.1.5).
    validator = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")
    facts = {"url": request.url, "validator": validator, "total": total}
    _facts_path(part).write_text(json.dumps(facts))


def _facts_path(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _raise_if_final(request: Request, part: Path, error: Exception) -> None:
    """Raise what trying again cannot mend."""
    if isinstance(error, urllib.error.HTTPError):
        if error.code not in _RETRY_STATUSES:
            raise ConfigError(
                f"{request.source}: the server refused the download: HTTP {error.code}"
            ) from error
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(part.parent).free
        raise ConfigError(_disk_full(request.source, part.parent, None, free)) from error
    elif isinstance(error, PermissionError):
        raise ConfigError(f"{request.source}: cannot write in {part.parent}: {error.strerror}") from error


def _disk_full(source: str, folder: Path, needed: int | None, free: int) -> str:
    needs = "" if needed is None else f"{needed} bytes are needed, "
    return (
        f"{source}: the disk is full: {needs}{free} bytes are free in {folder}; "
        f"make room there or point XDG_CACHE_HOME elsewhere (what was downloaded is kept)"
    )


def _unreachable(request: Request, error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return (
        f"{request.source}: the download failed: {reason}; check the network and try again "
        f"(it goes on where it stopped), or set `weights:` to the path of a local copy"
    )
