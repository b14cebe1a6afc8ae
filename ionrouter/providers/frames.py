"""Frames between the front and the litellm worker: 4 bytes of big-endian length, then JSON. Never pickle.

Ops to the worker: call, cancel, credit. From it: ready, whole, chunk, end, error. Knows nothing of litellm.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from ionrouter.providers.vector_pieces import VectorReader
from ionrouter.schema import json
from ionrouter.schema.vectors import LARGE

MAX_FRAME_BYTES = 512 * 1024 * 1024  # a body with images, or a batch of embeddings
# A call's chunks in flight and not yet read by its client. Beyond it the worker stops reading upstream.
WINDOW_BYTES = 256 * 1024
PIECE_BYTES = 64 * 1024  # of a large frame, read at once
CREDIT_BYTES = 64 * 1024  # how much a client reads before the worker hears of it
_LENGTH = struct.Struct(">I")


def encode(frame: dict[str, Any]) -> bytes:
    """Serialise one frame."""
    body = json.dumps(frame)
    return _LENGTH.pack(len(body)) + body


async def read_answer(reader: asyncio.StreamReader) -> tuple[dict[str, Any], int] | None:
    """Read a frame from the worker: large ones as they come, vectors one by one, so that nobody waits for it.

    None at the end of the connection, clean or not.
    """
    try:
        size = await _size_of_next(reader)
        if size is None or size <= LARGE:
            return None if size is None else (json.loads(await reader.readexactly(size)), size)
        vectors = VectorReader()
        await vectors.read(_Rest(reader, size), size)
        frame = vectors.payload(within="payload")
        return json.loads(vectors.body()) if frame is None else frame, size
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        return None


class _Rest:
    """So many bytes of a connection, as they come."""

    def __init__(self, reader: asyncio.StreamReader, num_left: int) -> None:
        self._reader, self._num_left = reader, num_left

    async def readany(self) -> bytes:
        data = await self._reader.read(min(self._num_left, PIECE_BYTES))
        if not data and self._num_left:
            raise asyncio.IncompleteReadError(b"", self._num_left)
        self._num_left -= len(data)
        return data


async def _size_of_next(reader: asyncio.StreamReader) -> int | None:
    (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return None if size > MAX_FRAME_BYTES else int(size)


async def read_frame(reader: asyncio.StreamReader) -> tuple[dict[str, Any], int] | None:
    """Read one frame and its size in bytes; None at the end of the connection, clean or not."""
    try:
        size = await _size_of_next(reader)
        if size is None:
            return None
        return json.loads(await reader.readexactly(size)), size
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        return None
