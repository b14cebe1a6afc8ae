"""The worker process: the only place that imports litellm. Serves calls over one Unix socket, then dies.

It keeps nothing: keys come with each call, errors are described and not judged, and it ends when the
front's end of the socket closes. For OpenAI-shaped providers it hands on the upstream's own JSON, because
litellm loses native finish reasons, invents missing usage and joins choices.

Run as: python -m ionrouter.providers.litellm_worker SOCKET
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import aclosing
from typing import Any

from ionrouter.providers.frames import WINDOW_BYTES, encode, read_frame
from ionrouter.providers.litellm_capture import CAME, keep_instead, note_body
from ionrouter.providers.litellm_claude import mend_claudes
from ionrouter.providers.litellm_count import count_tokens
from ionrouter.providers.litellm_errors import describe
from ionrouter.providers.litellm_proof import prove
from ionrouter.providers.litellm_stream import CONNECT_S, raw_answer, stream_payloads
from ionrouter.providers.outgoing import Outgoing

MAX_CONNECTIONS = 1_000_000  # more than there are files


def import_litellm() -> Any:
    """Import litellm quietly: no network, no telemetry, no logs, no retries, no redirects. Takes seconds."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else the import fetches a price list
    # Else it counts tokens of Llama and Cohere models with tokenizers from a hub: 24 s blocked when offline.
    os.environ["HF_HUB_OFFLINE"] = "1"
    # The front counts our connections to upstreams; whoever waits here looks to it like a slow upstream.
    os.environ["AIOHTTP_CONNECTOR_LIMIT"] = str(MAX_CONNECTIONS)
    os.environ["AIOHTTP_CONNECTOR_LIMIT_PER_HOST"] = str(MAX_CONNECTIONS)
    import litellm

    litellm.disable_hf_tokenizer_download = True
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.turn_off_message_logging = True
    litellm.drop_params = False  # fields were filtered for this endpoint already
    litellm.num_retries = 0
    # For embeddings it takes 0 retries for none said, and lets OpenAI's client make this many.
    litellm.DEFAULT_MAX_RETRIES = 0  # type: ignore[attr-defined]
    litellm.disable_aiohttp_trust_env = True
    logging.disable(logging.CRITICAL)
    _mend_clients()
    _fetch_nothing()
    _mend_translation()
    return litellm


def _fetch_nothing() -> None:
    """For many providers litellm would fetch images and files by the addresses in a request.

    Callers would choose where this machine connects to, and the loop would wait: some of its fetches block.
    """
    from litellm.litellm_core_utils import url_utils

    def refuse(url: str) -> tuple[str, str]:
        raise url_utils.SSRFError("addresses in requests are not fetched here")

    url_utils.validate_url = refuse  # what every such fetch asks first


def _mend_translation() -> None:
    from litellm.litellm_core_utils.prompt_templates import factory
    from litellm.llms.anthropic.chat.transformation import AnthropicConfig

    mend_claudes(factory, AnthropicConfig)


def _mend_clients() -> None:
    """litellm's clients follow redirects, which would carry prompts to another host; no cookies either.

    For most providers litellm makes one number of the deadlines, and the one for connecting gets lost.
    """
    import httpx

    send = httpx.AsyncClient.send

    async def send_once(self: httpx.AsyncClient, request: httpx.Request, **options: Any) -> httpx.Response:
        keep_instead(request)
        if (connect_s := CONNECT_S.get()) is not None:
            deadlines = {**request.extensions.get("timeout", {}), "connect": connect_s}
            request.extensions = {**request.extensions, "timeout": deadlines}
        # A compressing upstream would hold events back, and httpx reads a gzip body's first member alone.
        request.headers["Accept-Encoding"] = "identity"
        response = await send(self, request, **{**options, "follow_redirects": False, "stream": True})
        self.cookies.clear()
        if options.get("stream"):
            return response
        note_body(response)
        try:
            await response.aread()
        except BaseException:
            await response.aclose()
            raise
        return response

    httpx.AsyncClient.send = send_once  # type: ignore[method-assign]


class Worker:
    """Serves one connection. A call is a task; its chunks wait for credit when the client reads slowly."""

    def __init__(self, litellm: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._litellm = litellm
        self._reader = reader
        self._writer = writer
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._windows: dict[int, Window] = {}
        # For what is translated bare; litellm's clients carry the rest.
        self._outgoing = Outgoing(max_connections=MAX_CONNECTIONS)
        self._unwritten = bytearray()  # frames of this turn of the loop: what was read at once leaves at once

    async def serve(self) -> None:
        """Handle frames until the front goes away."""
        while (read := await read_frame(self._reader)) is not None:
            frame, _ = read
            number = int(frame["id"])
            if frame["op"] == "call":
                self._start(number, frame["call"])
            elif frame["op"] == "cancel" and number in self._calls:
                self._calls[number].cancel()
            elif frame["op"] == "credit" and number in self._windows:
                self._windows[number].add(int(frame["bytes"]))

    def _start(self, number: int, call: dict[str, Any]) -> None:
        self._windows[number] = Window()
        task = asyncio.create_task(self._run(number, call))
        self._calls[number] = task
        task.add_done_callback(lambda _: self._forget(number))

    def _forget(self, number: int) -> None:
        self._calls.pop(number, None)
        self._windows.pop(number, None)

    async def _run(self, number: int, call: dict[str, Any]) -> None:
        window = self._windows[number]
        came = bytearray()
        CAME.set(came)
        try:
            if call.get("prove"):
                proof = await prove(self._litellm, call, self._outgoing)
                await self._send(number, {"op": "whole", "payload": proof}, window)
            elif call.get("count"):
                counted = await count_tokens(self._litellm, call, self._outgoing)
                await self._send(number, {"op": "whole", "payload": counted}, window)
            elif call["stream"]:
                async with aclosing(stream_payloads(self._litellm, call, self._outgoing)) as frames:
                    async for frame in frames:
                        await self._send(number, frame, window)
            else:
                answer = await raw_answer(self._litellm, call, self._outgoing)
                await self._send(number, {"op": "whole", "payload": answer}, window)
        except Exception as error:  # whatever litellm raises is the call's outcome, never the worker's end
            await self._send(number, {"op": "error", "told": describe(error), **_came(came)}, window)

    async def _send(self, number: int, frame: dict[str, Any], window: Window) -> None:
        data = encode({**frame, "id": number})
        await window.take(len(data))
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unwritten += data
        await self._writer.drain()

    def _flush(self) -> None:
        data, self._unwritten = self._unwritten, bytearray()
        self._writer.write(data)


def _came(came: bytearray) -> dict[str, str]:
    """What had come of a whole answer: its upstream bills that, too."""
    return {"came": came.decode("utf-8", "replace")} if came else {}


class Window:
    """How many bytes of one call may be on their way; one frame may overshoot, so none waits for ever."""

    def __init__(self) -> None:
        self._in_flight = 0
        self._changed = asyncio.Event()

    async def take(self, size: int) -> None:
        """Wait for room, then count `size` bytes as sent."""
        while self._in_flight >= WINDOW_BYTES:
            self._changed.clear()
            await self._changed.wait()
        self._in_flight += size

    def add(self, size: int) -> None:
        """Note that the client read `size` bytes."""
        self._in_flight = max(self._in_flight - size, 0)
        self._changed.set()


async def main(path: str) -> None:
    """Connect, import while watching the socket, then serve."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C is the front's business: it drains first
    reader, writer = await asyncio.open_unix_connection(path)
    importing = asyncio.ensure_future(asyncio.to_thread(import_litellm))
    first = asyncio.ensure_future(_end_of(reader))
    await asyncio.wait({importing, first}, return_when=asyncio.FIRST_COMPLETED)
    if not importing.done():
        os._exit(0)  # the front is gone; a thread in the middle of an import cannot be stopped otherwise
    first.cancel()
    litellm = importing.result()
    writer.write(encode({"op": "ready", "id": 0, "version": _version()}))
    await Worker(litellm, reader, writer).serve()
    os._exit(0)  # litellm's own threads would hold the process


async def _end_of(reader: asyncio.StreamReader) -> None:
    """Return when the connection ends; consumes nothing (the front sends nothing before `ready`)."""
    while not reader.at_eof():  # noqa: ASYNC110 (StreamReader has no way to wait for its end only)
        await asyncio.sleep(0.2)


def _version() -> str:
    from importlib.metadata import version

    return version("litellm")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
