"""Inflater: bodies that come compressed although nobody asked for it. Bounded; knows no HTTP framing."""

from __future__ import annotations

import zlib

from ionrouter.providers.http_faults import Malformed

MAX_PIECE_BYTES = 1024 * 1024  # at a time, so that a small piece cannot become a big one
MAX_BODY_BYTES = 256 * 1024 * 1024  # all of it together
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def inflater_for(coding: str) -> Inflater | None:
    """Return what undoes a Content-Encoding, None for none; raises Malformed for one that is not known."""
    name = coding.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in _WINDOWS:
        raise Malformed("a compression that nobody asked for")
    return Inflater(name)


class Inflater:
    """One body's decompressor."""

    def __init__(self, coding: str) -> None:
        self._inflate = zlib.decompressobj(_WINDOWS[coding])
        self._may_be_bare = coding == "deflate"  # some servers send deflate without the zlib frame
        self._num_out = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return what `data` inflates to; raises Malformed."""
        pieces: list[bytes] = []
        while data:
            pieces.append(self._piece(data))
            self._num_out += len(pieces[-1])
            if self._num_out > MAX_BODY_BYTES:
                raise Malformed("a compressed body without end")
            data = self._inflate.unconsumed_tail
        return [piece for piece in pieces if piece]

    def _piece(self, data: bytes) -> bytes:
        try:
            piece = self._inflate.decompress(data, MAX_PIECE_BYTES)
        except zlib.error:
            if not self._may_be_bare:
                raise Malformed("a compressed body that cannot be read") from None
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
            self._may_be_bare = False
            return self._piece(data)
        self._may_be_bare = False
        return piece
