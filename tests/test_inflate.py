"""Compressed bodies cut anywhere, and how much of one is inflated at a time; on bytes alone."""

from __future__ import annotations

import zlib

import pytest

from ionrouter.inflate import MAX_PIECE_BYTES, inflater_for
from tests.support.packed import packed

MAX_BYTES = 4 * MAX_PIECE_BYTES
TEXT = bytes(range(256)) * 40
BODIES = {
    "gzip": ("gzip", packed(TEXT)),
    "two members": ("gzip", packed(TEXT[:5000]) + packed(b"") + packed(TEXT[5000:])),
    "padded": ("gzip", packed(TEXT) + bytes(512)),
    "deflate": ("deflate", zlib.compress(TEXT)),
    "bare deflate": ("deflate", zlib.compress(TEXT)[2:-4]),
}


@pytest.mark.parametrize(("coding", "body"), BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("size", [1, 2, 3, 1000, 1 << 20])
def test_a_body_is_whole_wherever_it_is_cut(coding: str, body: bytes, size: int) -> None:
    inflater = inflater_for(coding, MAX_BYTES)
    assert inflater is not None
    pieces = [piece for i in range(0, len(body), size) for piece in inflater.feed(body[i : i + size])]
    inflater.finish()
    assert b"".join(pieces) == TEXT


def test_what_has_no_room_in_a_piece_is_in_the_next() -> None:
    """zlib may have read all, and still keep some of what it inflates to."""
    for more in (0, 1, 200):
        inflater = inflater_for("gzip", MAX_BYTES)
        assert inflater is not None
        pieces = inflater.feed(packed(bytes(2 * MAX_PIECE_BYTES + more)))
        inflater.finish()
        assert sum(map(len, pieces)) == 2 * MAX_PIECE_BYTES + more
        assert max(map(len, pieces)) == MAX_PIECE_BYTES
