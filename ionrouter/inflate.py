"""Inflater: bodies that come compressed, of requests and of answers. Bounded; knows no HTTP framing.

A megabyte may hold a gigabyte: whoever reads one says how much of it there may be.
"""

from __future__ import annotations

import zlib

MAX_PIECE_BYTES = 1024 * 1024  # at a time, so that a small piece cannot become a big one
_CODINGS = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
_GZIP = b"\x1f\x8b"  # RFC 1952: what a member begins with
_NUM_TELLING = 2  # bytes that tell what a body, or a further member of it, is


class InflateFault(ValueError):
    """A body that cannot be inflated; its words say why."""


class UnknownCoding(InflateFault):
    """A Content-Encoding that is not read here."""


class TooLarge(InflateFault):
    """More comes out than may."""


class Unfinished(InflateFault):
    """It ends too early."""


def inflater_for(coding: str, max_bytes: int) -> Inflater | None:
    """Return what undoes a Content-Encoding, None for none; raises UnknownCoding."""
    names = [name for part in coding.split(",") if (name := part.strip().lower()) not in ("", "identity")]
    if not names:
        return None
    if len(names) > 1 or names[0] not in _CODINGS:
        raise UnknownCoding("a compression that is not read here")
    return Inflater(_CODINGS[names[0]], max_bytes)


class Inflater:
    """One body's decompressor; a gzip body may have several members (RFC 1952, 2.2)."""

    def __init__(self, coding: str, max_bytes: int) -> None:
        self._is_gzip, self._max_bytes = coding == "gzip", max_bytes
        self._held = b""  # the beginning of a body or member, while it is too short to tell anything
        self._inflate: zlib._Decompress | None = None  # None: between members, or before the first
        self._may_be_bare = False  # deflate whose first bytes happen to look like zlib's
        self._num_members = self._num_out = 0
        self._is_over = False  # what follows is padding

    def feed(self, data: bytes) -> list[bytes]:
        """Return what `data` inflates to; raises TooLarge and InflateFault."""
        pieces: list[bytes] = []
        while data and not self._is_over:
            if self._inflate is None:
                data, self._held = self._held + data, b""
                if len(data) < _NUM_TELLING:
                    self._held = data
                    break
                self._begin(data)
                continue
            data = self._inflated(self._inflate, data, pieces)
        return [piece for piece in pieces if piece]

    def finish(self) -> None:
        """Note the end of the body; raises Unfinished if there should be more."""
        if self._inflate is not None or (self._num_members == 0 and self._held):
            raise Unfinished("it ends too early")

    def _begin(self, data: bytes) -> None:
        is_gzip, (first, second) = self._is_gzip, data[:_NUM_TELLING]
        if is_gzip and self._num_members and not data.startswith(_GZIP):
            self._is_over = True
            return
        # Some send deflate without the zlib frame, whose first two bytes check each other.
        is_framed = first & 0x0F == zlib.DEFLATED and (first << 8 | second) % 31 == 0
        window = 16 + zlib.MAX_WBITS if is_gzip else zlib.MAX_WBITS if is_framed else -zlib.MAX_WBITS
        self._inflate, self._may_be_bare = zlib.decompressobj(window), is_framed and not is_gzip
        self._num_members += 1

    def _inflated(self, inflate: zlib._Decompress, data: bytes, pieces: list[bytes]) -> bytes:
        """Inflate up to the end of the data or of the member; returns what is behind it."""
        is_more = True
        while is_more:
            try:
                piece = inflate.decompress(data, MAX_PIECE_BYTES)
            except zlib.error:
                if not self._may_be_bare:
                    raise InflateFault(f"not {'gzip' if self._is_gzip else 'deflate'}") from None
                self._may_be_bare, self._inflate = False, zlib.decompressobj(-zlib.MAX_WBITS)
                return data
            self._may_be_bare = False
            pieces.append(piece)
            self._num_out += len(piece)
            if self._num_out > self._max_bytes:
                raise TooLarge(f"it holds more than {self._max_bytes} bytes")
            data = inflate.unconsumed_tail
            is_more = bool(data) or len(piece) == MAX_PIECE_BYTES  # it may keep some that had no room
        if not inflate.eof:
            return b""
        self._inflate, self._is_over = None, not self._is_gzip
        return inflate.unused_data
