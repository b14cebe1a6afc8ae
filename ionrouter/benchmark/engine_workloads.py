"""The engine's workloads: how many requests, of how many tokens. Random ids, greedy, ends ignored."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ionrouter.errors import ConfigError

BATCHES = (1, 8, 32, 64, 128, 256)
NUM_IN, NUM_OUT = 128, 256  # of a batch's requests


@dataclass(frozen=True, slots=True)
class Workload:
    """`requests`: (tokens in, tokens out) of each, all there at the beginning."""

    name: str
    requests: tuple[tuple[int, int], ...]

    @property
    def num_in(self) -> int:
        return sum(num_in for num_in, _ in self.requests)

    @property
    def num_out(self) -> int:
        return sum(num_out for _, num_out in self.requests)

    @property
    def longest(self) -> int:
        """Most positions of one request."""
        return max(map(sum, self.requests))

    @property
    def has_steady_decode(self) -> bool:
        """Whether all requests are alike and decode long enough for a step's time to be told."""
        return len(set(self.requests)) == 1 and self.requests[0][1] >= 32


def workloads(scale: float = 1.0) -> Mapping[str, Workload]:
    """All of them by name; `scale` shortens every length, and the number of requests but in the batches."""
    chat = _chat()
    num_chat, num_long = max(1, round(len(chat) * scale)), max(1, round(32 * scale))
    mixes: dict[str, Sequence[tuple[int, int]]] = {
        f"batch{size}": [(NUM_IN, NUM_OUT)] * size for size in BATCHES
    }
    mixes["chat512"] = chat[:num_chat]
    mixes["prefill32x4096"] = [(4096, 16)] * num_long
    mixes["longctx32x8192"] = [(8192, 128)] * num_long

    def scaled(num: int) -> int:
        return max(2, round(num * scale))

    return {
        name: Workload(name, tuple((scaled(num_in), scaled(num_out)) for num_in, num_out in requests))
        for name, requests in mixes.items()
    }


def _chat() -> list[tuple[int, int]]:
    """Log-normal lengths, the same in every run."""
    rng = random.Random(0)
    found = []
    for _ in range(512):
        num_in = int(min(2048, max(8, rng.lognormvariate(4.9, 1.0))))
        found.append((num_in, int(min(1024, max(8, rng.lognormvariate(5.0, 0.8))))))
    return found


def chosen(names: str, scale: float) -> list[Workload]:
    """Read `--workloads`: all, none, or names separated by commas. Raises ConfigError for an unknown one."""
    known = workloads(scale)
    if names in ("all", "none"):
        return list(known.values()) if names == "all" else []
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in known:
            raise ConfigError(f"--workloads: no workload {name!r}; known: {', '.join(known)}, all, none")
    return [known[name] for name in wanted]
