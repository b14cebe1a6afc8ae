"""Request bodies that arrive compressed: undone within a bound, and not by the framework.

The framework would undo whatever comes on a connection as it comes, also behind a refusal: a megabyte may
hold a gigabyte, and the loop stands still for it. Knows no HTTP but the coding's name.
"""

from __future__ import annotations

import zlib

_GZIP = 16 + zlib.MAX_WBITS
_WINDOWS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": zlib.MAX_WBITS}


class UnknownCoding(ValueError):
    """A Content-Encoding that is not read here."""


class TooLarge(ValueError):
    """More comes out than may."""


def is_compressed(coding: str) -> bool:
    """Tell whether a Content-Encoding says that there is something to undo; raises UnknownCoding."""
    name = coding.strip().lower()
    if name in ("", "identity"):
        return False
    if name not in _WINDOWS:
        raise UnknownCoding(name)
    return True


def inflated(data: bytes, coding: str, max_bytes: int) -> bytes:
    """Undo a coding that `is_compressed`; raises TooLarge and, where it cannot be undone, ValueError."""
    name = coding.strip().lower()
    try:
        return _inflated(data, _WINDOWS[name], max_bytes)
    except zlib.error:
        if name != "deflate":
            raise ValueError(f"not {name}") from None
    try:
        return _inflated(data, -zlib.MAX_WBITS, max_bytes)  # some clients leave out the frame of zlib
    except zlib.error:
        raise ValueError(f"not {name}") from None


def _inflated(data: bytes, window: int, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    left = max_bytes
    while data:
        member = zlib.decompressobj(window)
        parts.append(member.decompress(data, left + 1))
        left -= len(parts[-1])
        if left < 0:
            raise TooLarge
        if not member.eof:
            raise ValueError("it ends too early")
        data = member.unused_data if window == _GZIP else b""  # a gzip file may have several members
    return b"".join(parts)
