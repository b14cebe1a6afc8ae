"""A bucket as bytes: what one row of the state database keeps. Knows no database, no names."""

from __future__ import annotations

import struct
import zlib

from ionrouter.stats.sketch import read_number, write_number
from ionrouter.stats.window import PackedBucket

_VERSION = 1
_COST = struct.Struct("<d")
_LEVEL = 1  # of zlib: a third smaller, at 10 us a kilobyte


def encode(bucket: PackedBucket) -> bytes:
    """Write outcomes, sketches, tokens and dollars."""
    out = bytearray()
    write_number(out, len(bucket.outcomes))
    for outcome, count in bucket.outcomes:
        _write_text(out, outcome)
        write_number(out, count)
    write_number(out, len(bucket.sketches))
    for metric, data in bucket.sketches:
        _write_text(out, metric)
        write_number(out, len(data))
        out += data
    for tokens in (
        bucket.prompt_tokens,
        bucket.completion_tokens,
        bucket.cached_tokens,
        bucket.reasoning_tokens,
    ):
        write_number(out, tokens)
    out += _COST.pack(bucket.cost)
    return bytes((_VERSION,)) + zlib.compress(bytes(out), _LEVEL)


def decode(data: bytes) -> PackedBucket:
    """Read what `encode` wrote; ValueError for anything else."""
    if data[:1] != bytes((_VERSION,)):
        raise ValueError(f"not a bucket of version {_VERSION}")
    try:
        body = zlib.decompress(data[1:])
    except zlib.error as error:
        raise ValueError(f"not a bucket: {error}") from None
    num, at = read_number(body, 0)
    outcomes = []
    for _ in range(num):
        outcome, at = _read_text(body, at)
        count, at = read_number(body, at)
        outcomes.append((outcome, count))
    num, at = read_number(body, at)
    sketches = []
    for _ in range(num):
        metric, at = _read_text(body, at)
        length, at = read_number(body, at)
        sketches.append((metric, body[at : at + length]))
        at += length
    tokens = []
    for _ in range(4):
        count, at = read_number(body, at)
        tokens.append(count)
    if at + _COST.size != len(body):
        raise ValueError("a bucket of another length than it says")
    (cost,) = _COST.unpack_from(body, at)
    prompt, completion, cached, reasoning = tokens
    return PackedBucket(tuple(outcomes), tuple(sketches), prompt, completion, cost, cached, reasoning)


def _write_text(out: bytearray, text: str) -> None:
    data = text.encode()
    write_number(out, len(data))
    out += data


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    length, at = read_number(data, at)
    return data[at : at + length].decode(), at + length
