"""Link: calls multiplexed over one connection to the worker. Knows frames, not what they carry."""

from __future__ import annotations

import asyncio
from typing import Any

from ionrouter.providers.frames import CREDIT_BYTES, encode, read_answer

_LOST: dict[str, Any] = {"op": "lost"}


class Call:
    """One call's frames as they come, and the credit its reader gives back."""

    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self._number = number
        self._frames: asyncio.Queue[tuple[dict[str, Any], int]] = asyncio.Queue()  # bounded by the window
        self._unreported = 0
        self._is_over = False

    def put(self, frame: dict[str, Any], size: int) -> None:
        self._frames.put_nowait((frame, size))

    async def next(self) -> dict[str, Any]:
        """Return the next frame; {"op": "lost"} when the worker is gone."""
        frame, size = await self._frames.get()
        self._is_over = frame["op"] != "chunk"
        self._unreported += size
        if self._unreported >= CREDIT_BYTES and not self._is_over:
            self._link.send({"op": "credit", "id": self._number, "bytes": self._unreported})
            self._unreported = 0
        return frame

    async def ready(self) -> list[dict[str, Any]]:
        """Return the next frame and all that came with it."""
        frames = [await self.next()]
        while not self._frames.empty():
            frames.append(await self.next())
        return frames

    def close(self) -> None:
        """Forget the call; one that is not over is cancelled upstream."""
        self._link.forget(self._number, cancel=not self._is_over)


class Link:
    """One live connection. `run` reads until it breaks; then every open call hears of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._calls: dict[int, Call] = {}
        self._last_number = 0
        self.is_lost = False

    @property
    def num_calls(self) -> int:
        return len(self._calls)

    async def call(self, content: dict[str, Any]) -> Call:
        """Send a call; its frames come through the returned Call."""
        self._last_number += 1
        number = self._last_number
        call = self._calls[number] = Call(self, number)
        if self.is_lost:
            call.put(_LOST, 0)
            return call
        self.send({"op": "call", "id": number, "call": content})
        try:
            await self._writer.drain()
        except ConnectionError:
            self.close()
        return call

    def send(self, frame: dict[str, Any]) -> None:
        if not self.is_lost:
            self._writer.write(encode(frame))

    def forget(self, number: int, *, cancel: bool) -> None:
        if self._calls.pop(number, None) is not None and cancel:
            self.send({"op": "cancel", "id": number})

    async def run(self) -> None:
        """Hand frames to their calls until the connection ends."""
        while (read := await read_answer(self._reader)) is not None:
            frame, size = read
            call = self._calls.get(frame["id"])
            if call is not None:  # else cancelled a moment ago
                call.put(frame, size)
        self.close()

    def close(self) -> None:
        """Tell every open call that the worker is gone."""
        if self.is_lost:
            return
        self.is_lost = True
        self._writer.close()
        for call in self._calls.values():
            call.put(_LOST, 0)
