"""A closed-loop load over N kept connections on loopback: latencies, first bytes, gaps between events.

    python -m ionrouter.benchmark.load URL KIND CONNECTIONS SECONDS [HEADER ...]

Prints one line of JSON. A process of its own, so that it can have a core of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import cast
from urllib.parse import urlsplit

KINDS = ("plain", "stream", "ttft", "paced")
MODELS = {"plain": "mock-model", "stream": "mock-model", "ttft": "mock-ttft", "paced": "mock-paced"}
_PROMPT = "My order 4711 has not arrived yet and the tracking page says it was handed to the carrier. " * 8


def body_of(kind: str) -> bytes:
    """The request: about 945 bytes."""
    messages = [
        {"role": "system", "content": "You are a careful assistant."},
        {"role": "user", "content": _PROMPT},
    ]
    asked = {"model": MODELS[kind], "messages": messages, "temperature": 0.2, "max_tokens": 256}
    return json.dumps({**asked, "stream": True} if kind != "plain" else asked, separators=(",", ":")).encode()


@dataclass(slots=True)
class Figures:
    """Of one run; times in milliseconds."""

    seconds: float = 0.0
    num_answers: int = 0
    num_bad: int = 0
    num_events: int = 0
    latency_ms: dict[str, float] = field(default_factory=dict)
    first_ms: dict[str, float] = field(default_factory=dict)
    gap_ms: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Samples:
    """What the connections saw, in seconds."""

    until: float
    latencies: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    num_bad: int = 0
    num_events: int = 0


class Caller(asyncio.Protocol):
    """One connection: asks, waits for the end of the answer, asks again."""

    def __init__(self, request: bytes, samples: Samples) -> None:
        self._request, self._samples = request, samples
        self.is_over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._ask()

    def _ask(self) -> None:
        self._asked_at = time.perf_counter()
        self._last_at: float | None = None  # of the last event
        self._buffer = bytearray()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._buffer += data
        num = data.count(b"data: {")
        if num:
            self._samples.num_events += num
            if self._last_at is None:
                self._samples.firsts.append(now - self._asked_at)
            else:
                self._samples.gaps.append(now - self._last_at)
            self._last_at = now
        if self._is_whole():
            self._note(now)

    def _is_whole(self) -> bool:
        head, found, _ = bytes(self._buffer[:4096]).partition(b"\r\n\r\n")
        if not found:
            return False
        _, has_length, length = head.lower().partition(b"content-length:")
        if has_length:
            return len(self._buffer) - len(head) - 4 >= int(length.partition(b"\r\n")[0])
        return self._buffer.endswith(b"0\r\n\r\n")

    def _note(self, now: float) -> None:
        self._samples.latencies.append(now - self._asked_at)
        self._samples.num_bad += not self._buffer.startswith(b"HTTP/1.1 200")
        if now < self._samples.until:
            self._ask()
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if time.perf_counter() < self._samples.until:
            self._samples.num_bad += 1
        if not self.is_over.done():
            self.is_over.set_result(None)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p99, p99.9 in milliseconds; empty without values."""
    ordered = sorted(values)
    if not ordered:
        return {}
    return {
        name: round(ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1e3, 3)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
    }


async def run(url: str, kind: str, num_connections: int, seconds: float, headers: Sequence[str]) -> Figures:
    """Load `url` and return what was seen; raises ValueError for an address that is not loopback."""
    parsed = urlsplit(url)
    if parsed.hostname not in ("127.0.0.1", "localhost"):
        raise ValueError("the load goes to 127.0.0.1 only")
    body = body_of(kind)
    lines = [f"POST {parsed.path} HTTP/1.1", f"Host: {parsed.netloc}", "Content-Type: application/json"]
    head = "\r\n".join((*lines, *headers, f"Content-Length: {len(body)}", "", "")).encode()
    loop, started_at = asyncio.get_running_loop(), time.perf_counter()
    samples = Samples(started_at + seconds)
    callers = []
    for _ in range(num_connections):
        _, caller = await loop.create_connection(
            lambda: Caller(head + body, samples), parsed.hostname, parsed.port or 80
        )
        callers.append(caller)
    await asyncio.wait([caller.is_over for caller in callers], timeout=seconds + 10)
    return Figures(
        round(time.perf_counter() - started_at, 3),
        len(samples.latencies),
        samples.num_bad,
        samples.num_events,
        percentiles(samples.latencies),
        percentiles(samples.firsts),
        percentiles(samples.gaps),
    )


if __name__ == "__main__":
    import uvloop

    url, kind, connections, seconds, *headers = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(asdict(runner.run(run(url, kind, int(connections), float(seconds), headers)))))
