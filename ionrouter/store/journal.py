"""Ended requests whose rows are not committed yet, in a file that outlives the process.

The file is mapped: a row that was copied there belongs to the kernel, and a process that is killed loses
nothing of it, at the price of a copy instead of a commit. A power cut may lose it, as it may lose a commit
that does not wait for the disk. Knows no row's meaning.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_RELEASED = struct.Struct("<Q")  # at the file's start: the last number that is in the database
_HEAD = struct.Struct("<QII")  # of a row: its number, its length, CRC-32 of both and the row
_CHECKED = struct.Struct("<QI")
START = 4096
SEGMENT_BYTES = 1 << 20  # about a thousand rows; there are two, filled in turn


@dataclass(slots=True)
class _Segment:
    start: int
    at: int  # where the next row goes
    last: int = 0  # the number of its newest row


class Journal:
    """One thread only, one process only. Raises OSError where the file cannot be had whole.

    What is there already is lost: `rows_left` reads it first.
    """

    def __init__(self, path: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._size = segment_bytes
        self._map = _opened(path, START + 2 * segment_bytes)
        starts = (START, START + segment_bytes)
        self._segments = [_Segment(start, start) for start in starts]
        self._active = self._last = self._released = 0

    def add(self, row: bytes) -> int:
        """Keep a row until its number, counted from 1, is released; 0: there is no room for it."""
        segment = self._with_room(_HEAD.size + len(row))
        if segment is None:
            return 0
        self._last = segment.last = number = self._last + 1
        after = segment.at + _HEAD.size
        self._map[after : after + len(row)] = row
        _HEAD.pack_into(self._map, segment.at, number, len(row), _checksum(number, row))
        segment.at = after + len(row)
        return number

    def _with_room(self, num_bytes: int) -> _Segment | None:
        segment = self._segments[self._active]
        if segment.at + num_bytes <= segment.start + self._size:
            return segment
        other = self._segments[1 - self._active]
        if other.last > self._released or num_bytes > self._size:
            return None
        self._active = 1 - self._active
        other.at = other.start
        return other

    def release(self, number: int) -> None:
        """Forget the rows up to this number: they are in the database. After `close` nothing is forgotten."""
        if number > self._released and not self._map.closed:
            self._released = number
            _RELEASED.pack_into(self._map, 0, number)

    def close(self) -> None:
        """What was not released is found by who opens the state folder next."""
        self._map.close()


def rows_left(path: Path) -> list[bytes]:
    """Read what a process left that is no more, in order; empty where there is no such file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    if len(content) < START:
        return []
    (released,) = _RELEASED.unpack_from(content)
    size = (len(content) - START) // 2
    found = [*_rows(content, START, size), *_rows(content, START + size, size)]
    return [row for number, row in sorted(found) if number > released]


def _rows(content: bytes, start: int, size: int) -> Iterator[tuple[int, bytes]]:
    """A segment's rows, up to what an earlier turn left, or a kill in the middle of a copy."""
    at, before = start, 0
    while at + _HEAD.size <= start + size:
        number, length, checksum = _HEAD.unpack_from(content, at)
        at += _HEAD.size
        row = content[at : at + length]
        if number <= before or at + length > start + size or checksum != _checksum(number, row):
            return
        yield number, row
        at, before = at + length, number


def _checksum(number: int, row: bytes) -> int:
    return zlib.crc32(row, zlib.crc32(_CHECKED.pack(number, len(row))))


def _opened(path: Path, size: int) -> mmap.mmap:
    """Make the file anew with all its room: a write of the map's that found the disk full would kill."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(bytes(size))
        return mmap.mmap(descriptor, size)
    except (OSError, ValueError) as error:
        path.unlink(missing_ok=True)
        raise OSError(f"{path}: {error}") from error
    finally:
        os.close(descriptor)
