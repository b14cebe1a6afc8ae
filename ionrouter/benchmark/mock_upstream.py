"""A mock upstream for measuring: answers at once, whole or streamed, at less cost than any gateway in front.

    python -m ionrouter.benchmark.mock_upstream PORT

The body decides: `"stream":true` streams 64 events; a model called `mock-paced` sends one every 20 ms,
`mock-ttft` the first at once and the others together 10 ms later. Loopback only.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import cast

PACE_S = 0.02  # 50 events a second
TTFT_PAUSE_S = 0.01
NUM_EVENTS = 64
_ID = "chatcmpl-mock"
_USAGE = {"prompt_tokens": 200, "completion_tokens": 64, "total_tokens": 264}


def _chunk(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def _event(**fields: object) -> bytes:
    body = {"id": _ID, "object": "chat.completion.chunk", "created": 1, "model": "mock-model", **fields}
    return _chunk(b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n")


def _delta(index: int) -> bytes:
    choice = {"index": 0, "delta": {"content": f"word{index:02d} "}, "finish_reason": None}
    return _event(choices=[choice])


EVENTS = [_delta(i) for i in range(NUM_EVENTS)]
END = (
    _event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
    + _event(choices=[], usage=_USAGE)
    + _chunk(b"data: [DONE]\n\n")
    + b"0\r\n\r\n"
)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_MESSAGE = {"role": "assistant", "content": "route the call well " * 50}
_WHOLE = json.dumps(
    {
        "id": _ID,
        "object": "chat.completion",
        "created": 1,
        "model": "mock-model",
        "choices": [{"index": 0, "message": _MESSAGE, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 200, "completion_tokens": 200, "total_tokens": 400},
    }
).encode()
WHOLE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_WHOLE) + _WHOLE
)


class Mock(asyncio.Protocol):
    """One connection; requests come one after the other."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        _, _, length = head.lower().partition(b"content-length:")
        size = int(length.partition(b"\r\n")[0] or 0)
        if len(rest) >= size:
            body, self._buffer = rest[:size], rest[size:]
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        if b'"stream":true' not in body.replace(b" ", b""):
            self._transport.write(WHOLE)
        elif b"mock-paced" in body:
            self._transport.write(STREAM_HEAD)
            self._pace(0, asyncio.get_running_loop().time())
        elif b"mock-ttft" in body:
            self._transport.write(STREAM_HEAD + EVENTS[0])
            rest = b"".join(EVENTS[1:]) + END
            asyncio.get_running_loop().call_later(TTFT_PAUSE_S, self._transport.write, rest)
        else:
            self._transport.write(STREAM_HEAD + b"".join(EVENTS) + END)

    def _pace(self, number: int, due: float) -> None:
        if self._transport.is_closing():
            return
        is_last = number == NUM_EVENTS - 1
        self._transport.write(EVENTS[number] + (END if is_last else b""))
        if not is_last:
            asyncio.get_running_loop().call_at(due + PACE_S, self._pace, number + 1, due + PACE_S)


async def serve(port: int) -> None:
    """Listen until the process is ended."""
    server = await asyncio.get_running_loop().create_server(Mock, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1])))
