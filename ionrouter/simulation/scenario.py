"""What is simulated: endpoints and how they behave, what happens to them, and who asks when. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from ionrouter.routing.table import Price, RoutingSettings


@dataclass(frozen=True, slots=True)
class Conduct:
    """How an endpoint behaves. Seconds, tokens/s, shares of requests in [0, 1]."""

    ttft_s: float = 0.5  # median time to the first token
    throughput: float = 100.0
    jitter: float = 0.1  # standard deviation of the logarithm of both
    fails: float = 0.0  # before the first token
    fail_s: float = 0.2  # after so long
    breaks: float = 0.0  # after the first token
    hangs: float = 0.0  # says nothing
    hang_s: float = 60.0  # for so long
    slower: float = 1.0  # factor on both times
    limit: float | None = None  # requests per second before it answers 429
    burst: float = 5.0  # requests that the limit lets through at once
    retry_after_s: float | None = None  # what its 429 says


@dataclass(frozen=True, slots=True)
class Upstream:
    """An endpoint of the one simulated model."""

    name: str
    price: Price
    conduct: Conduct = field(default_factory=Conduct)
    caches: bool = False
    weight: float = 1.0
    expected_ttft_s: float | None = None
    expected_throughput: float | None = None


@dataclass(frozen=True, slots=True)
class Happening:
    """From `at` on, seconds from the start, an endpoint behaves like this."""

    at: float
    endpoint: str
    conduct: Conduct


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `cached`: share of the prompt that the session has sent before."""

    at: float
    prompt_tokens: int
    completion_tokens: int
    session: str | None = None
    cached: float = 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """A synthetic mix: Poisson arrivals at `rate` a second, lognormal lengths with these medians."""

    rate: float = 5.0
    requests: int = 500
    prompt_tokens: float = 800.0
    completion_tokens: float = 200.0
    length_jitter: float = 0.5
    turns: int = 1  # of each session; 1: no sessions
    pause_s: float = 5.0  # between the turns of a session


@dataclass(frozen=True, slots=True)
class Scenario:
    """A world without its dice."""

    upstreams: tuple[Upstream, ...]
    load: Load = field(default_factory=Load)
    trace: tuple[Ask, ...] = ()  # replayed instead of `load`
    happenings: tuple[Happening, ...] = ()
    settings: RoutingSettings = field(default_factory=RoutingSettings)
    first_token_s: float = 30.0  # deadline of an attempt
    failure_s: float = 60.0  # seconds of waiting that an unanswered request counts as
    name: str = "scenario"
