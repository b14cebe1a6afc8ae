"""Workloads through the whole engine in one process, as a server's provider uses it: no HTTP, no text.

    python -m ionrouter.benchmark.engine_offline < job.json

Prints a line of JSON for the machine and the model, then one a workload. A process of its own, because
what it holds on a device must be free when a server is measured.
"""

from __future__ import annotations

import asyncio
import gc
import json
import platform
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ionrouter.benchmark.engine_workloads import Workload
from ionrouter.engine.ion import LocalEngine, SamplingParams
from ionrouter.engine.loading import EngineSettings, device_of
from ionrouter.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Row:
    """One workload's figures. Times in seconds, of the median round; rates a second."""

    workload: str
    num_requests: int
    num_in: int
    num_out: int
    whole_s: float
    spread: float  # (largest - smallest) / median of the rounds
    step_s: float | None = None  # (whole - until every first token) / (tokens - 1)
    first_s: float | None = None  # until every request had its first token, alone
    floor_s: float | None = None  # weights and KV at the mean context over the read bandwidth


def machine_of(settings: EngineSettings) -> dict[str, Any]:
    """Name device, driver and versions, and measure the read bandwidth. Takes 2 GiB of a GPU meanwhile."""
    from ionrouter.engine import _ion

    device = device_of(settings)
    found: dict[str, Any] = {"device": device.kind, "python": platform.python_version()}
    if device.kind == "cuda":
        gpu = _ion.cuda_device()
        runtime = int(gpu["runtime_version"])
        found |= {
            "name": device.name,
            "cuda": f"{runtime // 1000}.{runtime % 1000 // 10}",
            "driver": _driver(),
        }
        found["read_bandwidth"] = _ion.cuda_read_bandwidth()
    else:
        found |= {"name": _cpu_name(), "driver": f"Linux {platform.release()}"}
        found["why_not_cuda"] = device.why_not_cuda
        found["read_bandwidth"] = _ion.read_bandwidth(settings.threads or 0)
    return found


def _driver() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown"
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")[0].strip()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")


class Bench:
    """An open engine, timed."""

    def __init__(self, engine: LocalEngine, rounds: int, read_bandwidth: float) -> None:
        self._engine, self._rounds, self._read_bandwidth = engine, rounds, read_bandwidth
        self._rng = random.Random(1)
        self._num_asked = 0

    async def row(self, workload: Workload) -> Row | str:
        """Run once unmeasured, then the rounds; or say why the model cannot."""
        length = self._engine.context_length
        if workload.longest > length:
            return f"needs {workload.longest:,} positions, the model (or its KV cache) has {length:,}"
        await self._timed(workload.requests)
        rounds = [await self._timed(workload.requests) for _ in range(self._rounds)]
        median = statistics.median(rounds)
        first_s = step_s = floor_s = None
        if workload.has_steady_decode:
            num_in, num_out = workload.requests[0]
            ones = [(num_in, 1)] * len(workload.requests)
            first_s = statistics.median([await self._timed(ones) for _ in range(self._rounds)])
            step_s = (median - first_s) / (num_out - 1)
            floor_s = self._floor_s(len(workload.requests), num_in + num_out / 2)
        return Row(
            workload.name,
            len(workload.requests),
            workload.num_in,
            workload.num_out,
            median,
            (max(rounds) - min(rounds)) / median,
            step_s,
            first_s,
            floor_s,
        )

    def _floor_s(self, num_sequences: int, context: float) -> float:
        kv_bytes = num_sequences * context * self._engine.kv_token_bytes
        return (self._engine.streamed_bytes + kv_bytes) / self._read_bandwidth

    async def _timed(self, requests: Sequence[tuple[int, int]]) -> float:
        """Seconds from the first submission to the last token of all."""
        vocab = self._engine.vocab_size
        prompts = [[self._rng.randrange(vocab) for _ in range(num_in)] for num_in, _ in requests]
        began = time.perf_counter()
        counts = await asyncio.gather(
            *(self._answer(prompt, num_out) for prompt, (_, num_out) in zip(prompts, requests, strict=True))
        )
        spent = time.perf_counter() - began
        if counts != [num_out for _, num_out in requests]:
            raise ConfigError("the engine gave another number of tokens than was asked for")
        return spent

    async def _answer(self, prompt: list[int], num_out: int) -> int:
        self._num_asked += 1  # a salt of its own: nobody finds a cached prefix
        params = SamplingParams(
            max_tokens=num_out, temperature=0.0, ignore_eos=True, cache_salt=str(self._num_asked)
        )
        async with aclosing(self._engine.generate(prompt, params)) as events:  # type: ignore[type-var]
            return sum([event.num_tokens async for event in events])


async def run(job: dict[str, Any]) -> None:
    """Print the machine, the model and the rows; raises ConfigError."""
    settings = EngineSettings(**job["settings"])
    machine = machine_of(settings)
    engine = await LocalEngine.open(settings, cache=Path(job["cache"]), progress=True)
    try:
        facts = {
            "weight_bytes": engine.weight_bytes,
            "streamed_bytes": engine.streamed_bytes,
            "kv_token_bytes": engine.kv_token_bytes,
            "context_length": engine.context_length,
            "vocab_size": engine.vocab_size,
        }
        _tell({"machine": machine | facts})
        gc.collect()
        gc.freeze()
        bench = Bench(engine, job["rounds"], machine["read_bandwidth"])
        for given in job["workloads"]:
            workload = Workload(given["name"], tuple((i, o) for i, o in given["requests"]))
            row = await bench.row(workload)
            if isinstance(row, Row):
                _tell({"row": asdict(row)})
            else:
                _tell({"skipped": workload.name, "why": row})
    finally:
        await engine.close()


def _tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def main() -> int:
    """Read the job from stdin."""
    import structlog
    import uvloop

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(json.load(sys.stdin)))
    except ConfigError as error:
        _tell({"error": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
