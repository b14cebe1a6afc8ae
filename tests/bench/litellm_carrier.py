"""CPU of one call and of one streamed event: through acompletion in litellm's worker, and the proved way.

Run as: python -m tests.bench.litellm_carrier [CALLS [PROVIDER ...]]. The upstream is a process of its own, so
that only the front's and the worker's CPU is counted.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, cast

from ionrouter.providers.litellm import LiteLLMProvider
from ionrouter.providers.openai_http import OpenAIProvider
from tests.support.hosted import KEY
from tests.support.litellm_matrix import CARRIED, TRANSLATED, asking
from tests.support.translated_wire import streamed, whole
from tests.support.upstream import Received, Script, Upstream, chat_stream, json_response, usage

NUM_EVENTS = 64


def _answer(request: Received) -> Script:
    pieces = ["word "] * NUM_EVENTS
    for name, mark in (("anthropic", "/messages"), ("gemini", "enerateContent")):
        if mark in request.path:
            write = streamed if request.json().get("stream") or "stream" in request.path else whole
            return write(name, [("text", *pieces)], "stop")
    if request.json().get("stream"):
        return chat_stream(pieces)
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(pieces)},
        "finish_reason": "stop",
    }
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return json_response({**body, "service_tier": "auto", "usage": usage(5, NUM_EVENTS)})


def _serve(pipe: Connection) -> None:
    with Upstream(_answer) as up:
        pipe.send(up.url)
        pipe.recv()


def _worker_s(pid: int | None) -> float:
    """CPU seconds of a process: utime and stime, the 14th and 15th field of its stat."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _cost_ms(client: LiteLLMProvider, run: Callable[[], Awaitable[None]], num: int) -> float:
    await run()
    await client.carrier.settled()
    await run()
    begin = time.process_time() + _worker_s(client.worker.pid)
    for _ in range(num):
        await run()
    return (time.process_time() + _worker_s(client.worker.pid) - begin) / num * 1e3


async def measure(url: str, num: int, names: Sequence[str]) -> None:
    """Print one row a provider and way: CPU ms of a plain call and of a stream of 64 events."""
    relay = OpenAIProvider({"UP_KEY": KEY})
    client = LiteLLMProvider({**os.environ, "UP_KEY": KEY}, relay=relay)
    await client.start()
    await client.wait_ready(120)
    up = cast(Any, SimpleNamespace(url=url, base_url=f"{url}/v1"))
    print(f"| provider | way | plain call, ms | stream of {NUM_EVENTS}, ms |\n| --- | --- | ---: | ---: |")
    for name in names:
        for way, carrier in (("acompletion", "off"), ("bare" if name in TRANSLATED else "carried", "auto")):
            costs = []
            for stream in (False, True):
                request = asking(up, name, stream=stream, endpoint={"options": {"carrier": carrier}})

                async def run(request: Any = request) -> None:
                    async for _ in client.batches(request):
                        pass

                costs.append(await _cost_ms(client, run, num))
            print(f"| {name} | {way} | {costs[0]:.2f} | {costs[1]:.2f} |", flush=True)
    await client.close()
    await relay.close()


def main() -> None:
    """Start the upstream, measure, end it."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_serve, args=(theirs,))
    process.start()
    try:
        num = int(sys.argv[1]) if len(sys.argv) > 1 else 200
        asyncio.run(measure(ours.recv(), num, sys.argv[2:] or CARRIED + TRANSLATED))
    finally:
        ours.send("end")
        process.join()


if __name__ == "__main__":
    main()
