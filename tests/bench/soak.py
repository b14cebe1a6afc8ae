"""Half an hour of mixed faults: memory, connections and tasks must not grow, and every request counts once.

    python -m tests.bench.soak [--minutes 30] [--at-once 8]

A whole server (keys, store, statistics, access log) over one upstream that answers well or in a dozen bad
ways, by the request's own word, and one that is always well. Callers stream and do not, and some leave in
the middle. Every ten seconds the server's memory and open descriptors are taken; at the end what was asked is
compared with the access log, the generation store and the metrics. Exits 1 on growth over 2 % after minute 5
or a request that is not accounted for once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.accounts import bank
from tests.support.upstream import (
    Cut,
    Hang,
    Received,
    Reset,
    Script,
    Upstream,
    Wait,
    chat_json,
    chat_stream,
    error,
    raw,
    response,
)

WELL = "well"
GROWTH = 0.02


def scripts(is_stream: bool) -> dict[str, Script]:
    """What the bad upstream may do, by the word in the prompt."""
    well = chat_stream(["Hello", " there", "."]) if is_stream else chat_json("Hello there.")
    return {
        WELL: well,
        "slow": raw(Wait(0.3), *well.steps),
        "limited": error(429, headers={"Retry-After": "1"}),
        "down": error(503),
        "refused": error(400),
        "reset": raw(Reset()),
        "cut": raw(*_half(well), Cut()),
        "silent": raw(Hang()),
        "garbage": response(200, b"<html>no</html>", {"Content-Type": "text/html"}),
        "empty": response(
            200, b"", {"Content-Type": "text/event-stream" if is_stream else "application/json"}
        ),
    }


def _half(script: Script) -> list[bytes]:
    """The first half of what a script sends."""
    data = b"".join(step for step in script.steps if isinstance(step, bytes))
    return [data[: len(data) * 2 // 3]]


def answer(request: Received) -> Script:
    body = request.json()
    word = body["messages"][0]["content"]
    return scripts(bool(body.get("stream"))).get(word, scripts(bool(body.get("stream")))[WELL])


def answer_well(request: Received) -> Script:
    """Well, but slowly on request: so that somebody can leave."""
    body = request.json()
    word = "slow" if body["messages"][0]["content"] == "slow" else WELL
    return scripts(bool(body.get("stream")))[word]


def routes(bad: Upstream, good: Upstream) -> str:
    return f"""
defaults: {{ timeouts: {{ first_token: 1.5, inter_token: 1.5, total: 4 }} }}
providers:
  bad: {{ type: openai, name: Bad, base_url: {bad.base_url}, breaker: {{ cooldown: 0.5 }} }}
  good: {{ type: openai, name: Good, base_url: {good.base_url} }}
models:
  acme/m:
    endpoints:
      - {{ provider: bad, model: b, prices: {{ prompt: 0.1, completion: 0.1 }} }}
      - {{ provider: good, model: g, prices: {{ prompt: 100, completion: 100 }} }}
"""


class Callers:
    """Ask until told to stop; `asked` counts requests that reached the server."""

    def __init__(self, url: str, key: str, pause_s: float) -> None:
        self.url, self.key, self.pause_s = url, key, pause_s
        self.asked = self.answered = self.left = 0
        self.is_over = False

    async def run(self, number: int) -> None:
        rng = random.Random(number)
        words = [*scripts(True)]
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {self.key}"}) as session:
            while not self.is_over:
                leaves = rng.random() < 0.05
                word = "slow" if leaves else WELL if rng.random() < 0.6 else rng.choice(words)
                await self._ask(session, word, rng.random() < 0.5, leaves)
                await asyncio.sleep(rng.random() * 2 * self.pause_s)

    async def _ask(self, session: aiohttp.ClientSession, word: str, stream: bool, leaves: bool) -> None:
        body = {"model": "acme/m", "messages": [{"role": "user", "content": word}], "stream": stream}
        self.asked += 1
        try:
            timeout = aiohttp.ClientTimeout(total=0.05 if leaves else 30)
            async with session.post(self.url, json=body, timeout=timeout) as reply:
                await reply.read()
            self.answered += 1
        except (TimeoutError, aiohttp.ClientError):
            self.left += 1


def memory_kib(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


def num_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def soak(
    server: Any, key: str, minutes: float, at_once: int, pause_s: float
) -> tuple[Callers, list[tuple[float, int, int]]]:
    callers = Callers(f"{server.url}/api/v1/chat/completions", key, pause_s)
    tasks = [asyncio.create_task(callers.run(number)) for number in range(at_once)]
    begin, samples = time.monotonic(), []
    while (passed := time.monotonic() - begin) < minutes * 60:
        samples.append((passed, memory_kib(server.process.pid), num_descriptors(server.process.pid)))
        await asyncio.sleep(10)
    callers.is_over = True
    await asyncio.gather(*tasks)
    await asyncio.sleep(6)  # whatever still runs upstream ends by its deadline
    return callers, samples


def main() -> int:
    """Print one Markdown table and what was found wanting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--pause", type=float, default=0.15, help="mean seconds between a caller's requests")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ionrouter-soak-"))
    with Upstream(answer) as bad, Upstream(answer_well) as good, bank(folder, routes(bad, good)) as asked:
        server = asked.server
        callers, samples = asyncio.run(soak(server, asked.key, args.minutes, args.at_once, args.pause))
        rest = (memory_kib(server.process.pid), num_descriptors(server.process.pid))
        metrics = server.get("/metrics", asked.key)[1]
        logged = len(server.events("request_finished"))
    with sqlite3.connect(folder / "state" / "ionrouter.db") as store:
        states = dict(store.execute("SELECT state, COUNT(*) FROM generation GROUP BY state"))
    counted = sum(
        int(float(n)) for n in re.findall(r"^ionrouter_requests_total\{[^}]*\} (\S+)", metrics, re.M)
    )
    return report(callers, samples, rest, states, logged, counted, args.minutes)


def report(
    callers: Callers,
    samples: list[tuple[float, int, int]],
    rest: tuple[int, int],
    states: dict[str, int],
    logged: int,
    counted: int,
    minutes: float,
) -> int:
    settled = min(300.0, minutes * 20)
    before = [kib for at, kib, _ in samples if settled <= at < settled + 120]
    after = [kib for at, kib, _ in samples if at >= minutes * 60 - 120]
    growth = statistics.median(after) / statistics.median(before) - 1
    descriptors = [count for at, _, count in samples if at >= settled]
    kept = sum(states.values())
    rows = {
        "minutes, callers at once": f"{minutes:g}, {len(samples)} samples",
        "asked, answered, left in the middle": f"{callers.asked}, {callers.answered}, {callers.left}",
        "in the access log, the store, the metrics": f"{logged}, {kept}, {counted}",
        "states in the store": json.dumps(states),
        "memory MB: settled, at the end, growth": f"{statistics.median(before) / 1024:.1f}, "
        f"{statistics.median(after) / 1024:.1f}, {growth:+.2%}",
        "open descriptors: least, most, at rest": f"{min(descriptors)}, {max(descriptors)}, {rest[1]}",
    }
    print("| soak | |\n| --- | --- |")
    for name, value in rows.items():
        print(f"| {name} | {value} |")
    faults = []
    if growth > GROWTH:
        faults.append(f"memory grew by {growth:.2%}")
    # A caller that left before its request was read is nobody's request.
    if not kept == logged == counted or not callers.asked - callers.left <= kept <= callers.asked:
        faults.append("requests are not each accounted for once")
    if states.get("started"):
        faults.append(f"{states['started']} requests never ended")
    print("\n".join(faults) or "nothing is wanting")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
