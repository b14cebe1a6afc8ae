"""Frames between the front and the litellm worker: 4 bytes of big-endian length, then JSON. Never pickle.

Ops to the worker: call, cancel, credit. From it: ready, whole, chunk, end, error. Knows nothing of litellm.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from ionrouter.schema import json

MAX_FRAME_BYTES = 512 * 1024 * 1024  # a body with images, or a batch of embeddings
# A call's chunks in flight and not yet read by its client. Beyond it the worker stops reading upstream.
WINDOW_BYTES = 256 * 1024
CREDIT_BYTES = 64 * 1024  # how much a client reads before the worker hears of it
_LENGTH = struct.Struct(">I")


def encode(frame: dict[str, Any]) -> bytes:
    """Serialise one frame."""
    body = json.dumps(frame)
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> tuple[dict[str, Any], int] | None:
    """Read one frame and its size in bytes; None at the end of the connection, clean or not."""
    try:
        (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if size > MAX_FRAME_BYTES:
            return None
        return json.loads(await reader.readexactly(size)), size
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        return None
