"""The dice of a scenario: what each endpoint would do with each request. The same for every strategy."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Literal

from ionrouter.balancing.cost import cost_of
from ionrouter.schema.usage import Usage
from ionrouter.simulation.scenario import Ask, Conduct, Load, Scenario, Upstream

Fate = Literal["ok", "fails", "hangs", "breaks"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one endpoint does with one request. Seconds from the attempt's start."""

    fate: Fate
    ttft_s: float
    whole_s: float


class World:
    """One seed of a scenario: arrivals, and uniform numbers for every request at every endpoint."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario, self.seed = scenario, seed
        rng = random.Random(seed)
        self.asks = scenario.trace or arrivals(scenario.load, rng)
        self._dice = [
            [(rng.random(), rng.random(), rng.gauss(0.0, 1.0)) for _ in scenario.upstreams] for _ in self.asks
        ]
        self._places = {upstream.name: i for i, upstream in enumerate(scenario.upstreams)}
        self._changes = {
            upstream.name: sorted(
                (happening for happening in scenario.happenings if happening.endpoint == upstream.name),
                key=lambda happening: happening.at,
            )
            for upstream in scenario.upstreams
        }

    def conduct(self, upstream: Upstream, at: float) -> Conduct:
        """How an endpoint behaves at a moment."""
        found = upstream.conduct
        for change in self._changes[upstream.name]:
            if change.at > at:
                break
            found = change.conduct
        return found

    def outcome(self, number: int, upstream: Upstream, at: float) -> Outcome:
        """What becomes of request `number` if an endpoint gets it at `at`. Rate limits are not in it."""
        chance, place, noise = self._dice[number][self._places[upstream.name]]
        conduct, ask = self.conduct(upstream, at), self.asks[number]
        factor = conduct.slower * math.exp(conduct.jitter * noise)
        ttft_s = conduct.ttft_s * factor
        whole_s = ttft_s + ask.completion_tokens / conduct.throughput * factor
        if chance < conduct.hangs:
            return Outcome("hangs", conduct.hang_s, conduct.hang_s)
        if chance < conduct.hangs + (1 - conduct.hangs) * conduct.fails:
            return Outcome("fails", conduct.fail_s, conduct.fail_s)
        return Outcome("breaks" if place < conduct.breaks else "ok", ttft_s, whole_s)


class Bucket:
    """A rate limit as upstreams keep it: `burst` at once, `limit` a second."""

    def __init__(self) -> None:
        self._level: float | None = None
        self._at = 0.0

    def admits(self, conduct: Conduct, now: float) -> bool:
        """Let a request through, or not; claims its place."""
        if conduct.limit is None:
            self._level = None
            return True
        level = conduct.burst if self._level is None else self._level + (now - self._at) * conduct.limit
        self._level, self._at = min(level, conduct.burst), now
        if self._level < 1.0:
            return False
        self._level -= 1.0
        return True


def arrivals(load: Load, rng: random.Random) -> tuple[Ask, ...]:
    """Draw a mix. A session's turns follow each other, each with all of the conversation before it."""
    asks: list[Ask] = []
    at, num_sessions = 0.0, math.ceil(load.requests / load.turns)
    for session in range(num_sessions):
        at += rng.expovariate(load.rate / load.turns)
        told, turn_at = 0, at
        for _ in range(load.turns):
            new = max(round(_length(load.prompt_tokens, load, rng)), 1)
            num_out = max(round(_length(load.completion_tokens, load, rng)), 1)
            prompt = told + new
            name = f"s{session}" if load.turns > 1 else None
            asks.append(Ask(turn_at, prompt, num_out, name, told / prompt))
            told, turn_at = prompt + num_out, turn_at + rng.expovariate(1 / load.pause_s)
    return tuple(sorted(asks[: load.requests], key=lambda ask: ask.at))


def _length(median: float, load: Load, rng: random.Random) -> float:
    return median * math.exp(rng.gauss(0.0, load.length_jitter))


def usage_of(ask: Ask, is_cached: bool) -> Usage:
    """A good answer's tokens."""
    cached = round(ask.prompt_tokens * ask.cached) if is_cached else 0
    return Usage(ask.prompt_tokens, ask.completion_tokens, cached_tokens=cached)


def dollars(upstream: Upstream, ask: Ask, is_cached: bool) -> float:
    """What a good answer costs there."""
    return cost_of(upstream.price, usage_of(ask, is_cached)).total
