"""A worker in miniature: speaks the frames, imports no litellm, and misbehaves on demand.

The model's name says what to do: echo, flood, crash, leave (hang up and live on); TOY_START in the
environment: crash, hang. It is how restart, back-off and credit are tested without waiting ten seconds for an
import.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from ionrouter.providers.frames import encode, read_frame
from ionrouter.providers.litellm_worker import Window


async def main(path: str) -> None:
    start = os.environ.get("AWS_TOY_START", "")  # a prefix that the worker's environment keeps
    if start == "crash":
        sys.exit("toy: cannot start, Bearer sk-toy-secret-1234")
    reader, writer = await asyncio.open_unix_connection(path)
    if start == "hang":
        await reader.read()
        return
    writer.write(encode({"op": "ready", "id": 0}))
    windows: dict[int, Window] = {}
    tasks = set()
    while (read := await read_frame(reader)) is not None:
        frame, _ = read
        number = frame["id"]
        if frame["op"] == "call":
            if frame["call"]["model"].endswith("/leave"):
                writer.close()
                await asyncio.sleep(600)
            windows[number] = Window()
            tasks.add(asyncio.create_task(serve(number, frame["call"], windows[number], writer)))
        elif frame["op"] == "credit":
            windows[number].add(frame["bytes"])


async def serve(number: int, call: dict[str, Any], window: Window, writer: asyncio.StreamWriter) -> None:
    what = call["model"].partition("/")[2]

    async def send(frame: dict[str, Any]) -> None:
        data = encode({**frame, "id": number})
        await window.take(len(data))
        writer.write(data)
        await writer.drain()

    def chunk(text: str, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
        return {"op": "chunk", "payload": {"id": "c", "choices": [choice]}}

    if what == "crash":
        await send(chunk("one"))
        os._exit(3)
    for _ in range(2000 if what == "flood" else 1):
        await send(chunk("x" * 10_000 if what == "flood" else call["arguments"]["messages"][0]["content"]))
    await send(chunk("", "stop"))
    await send({"op": "end", "done": True})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
