"""Streams at once over HTTP: one answer a connection, its bytes counted and not parsed.

    python -m ionrouter.benchmark.stream_load < plan.json

Prints one line of JSON. A process of its own, cheap enough (about 5 us a read) that one core follows 30,000
events a second; several may share a plan and begin at the same moment.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any, cast

_MARK = b"data: {"
_USAGE = b'"completion_tokens":'
_NUM_LAST = 2  # events behind the text: the finish, the usage
_TAIL_BYTES = 4096  # hold the last events


@dataclass(slots=True)
class Plan:
    """What to ask. Times are of time.monotonic, which all processes of a machine share."""

    model: str
    num_in: int
    num_out: int
    vocab_size: int
    num_streams: int
    port: int = 0
    begin_at: float = 0.0  # when the first, or all, are sent
    rate: float = 0.0  # requests a second on average, as a Poisson process; 0: all at once
    seed: int = 0
    headers: tuple[str, ...] = ()
    patience_s: float = 300.0


@dataclass(slots=True)
class Seen:
    """What came back. `last_at` is the end of the last answer."""

    first_s: list[float] = field(default_factory=list)  # of each stream: request sent to first event
    whole_s: list[float] = field(default_factory=list)
    num_events: int = 0  # that carried text
    num_tokens: int = 0
    num_bad: int = 0
    first_fault: str = ""
    begin_at: float = 0.0
    last_at: float = 0.0
    cpu_s: float = 0.0  # of this process


class Stream(asyncio.Protocol):
    """One request and its answer."""

    def __init__(self, request: bytes, seen: Seen, num_out: int) -> None:
        self._request, self._seen, self._num_out = request, seen, num_out
        self._tail, self._num, self._first_at = b"", 0, 0.0
        self.is_over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def ask(self) -> None:
        self._sent_at = time.monotonic()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        # A mark that two reads share is found in what is left of the first.
        left = self._tail[-(len(_MARK) - 1) :]
        num = (left + data).count(_MARK)
        if num and not self._num:
            self._first_at = time.monotonic()
        self._num += num
        self._tail = (self._tail + data)[-_TAIL_BYTES:] if len(data) < _TAIL_BYTES else data[-_TAIL_BYTES:]
        if data.endswith(b"0\r\n\r\n"):
            self._note()

    def _note(self) -> None:
        now, seen = time.monotonic(), self._seen
        _, found, after = self._tail.rpartition(_USAGE)
        num_tokens = int(after[: after.find(b",")]) if found else 0
        if num_tokens != self._num_out:
            self._fail(self._tail)
        else:
            seen.first_s.append(self._first_at - self._sent_at)
            seen.whole_s.append(now - self._sent_at)
            seen.num_events += self._num - _NUM_LAST
            seen.num_tokens += num_tokens
            seen.last_at = max(seen.last_at, now)
        self._transport.close()
        self._end()

    def _fail(self, what: bytes) -> None:
        self._seen.num_bad += 1
        self._seen.first_fault = self._seen.first_fault or what.decode("utf-8", "replace")

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_over.done():
            self._fail(self._tail or repr(error).encode())
            self._end()

    def _end(self) -> None:
        if not self.is_over.done():
            self.is_over.set_result(None)


def request_of(plan: Plan, rng: random.Random) -> bytes:
    """A completion of random token ids: no template, no end but the asked for number of tokens."""
    body = json.dumps(
        {
            "model": plan.model,
            "prompt": [rng.randrange(plan.vocab_size - 8) for _ in range(plan.num_in)],
            "max_tokens": plan.num_out,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    lines = ["POST /api/v1/completions HTTP/1.1", f"Host: 127.0.0.1:{plan.port}"]
    lines += ["Content-Type: application/json", *plan.headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


async def run(plan: Plan) -> Seen:
    """Follow the plan; what went wrong is counted, never raised."""
    loop, rng, seen = asyncio.get_running_loop(), random.Random(plan.seed), Seen(begin_at=plan.begin_at)
    requests = [request_of(plan, rng) for _ in range(plan.num_streams)]
    streams: list[Stream] = []

    async def connect(request: bytes) -> Stream:
        _, stream = await loop.create_connection(
            lambda: Stream(request, seen, plan.num_out), "127.0.0.1", plan.port
        )
        streams.append(stream)
        return stream

    if not plan.rate:
        for request in requests:
            await connect(request)
        await asyncio.sleep(plan.begin_at - time.monotonic())
        for stream in streams:
            stream.ask()
    else:
        due = plan.begin_at
        for request in requests:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            (await connect(request)).ask()
            due += rng.expovariate(plan.rate)
    _, late = await asyncio.wait([stream.is_over for stream in streams], timeout=plan.patience_s)
    seen.num_bad += len(late)
    seen.cpu_s = time.process_time()
    return seen


def main() -> None:
    """Read the plan from stdin."""
    import uvloop

    given: dict[str, Any] = json.load(sys.stdin)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(asdict(runner.run(run(Plan(**given))))))


if __name__ == "__main__":
    main()
