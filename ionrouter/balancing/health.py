"""What this router has seen of each endpoint: the mutable state that select reads and attempts write.

One `Health` per endpoint identity, so that a changed price keeps it and a changed URL starts clean. Calls
no clock; every moment is a parameter, in monotonic seconds.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from ionrouter.balancing.circuit_breaker import BreakerState, CircuitBreaker
from ionrouter.balancing.cost import PRIOR_FAIL_AFTER, PRIOR_FAIL_BEFORE, PRIOR_NUM_OUT, PSEUDO_REQUESTS
from ionrouter.balancing.decay import DecayedMean, DecayedMedian
from ionrouter.balancing.pace import Pace
from ionrouter.balancing.peak_ewma import PeakEwma
from ionrouter.balancing.retry_budget import RetryBudget
from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.routing.table import BreakerRules, Endpoint
from ionrouter.schema.retry_after import MAX_RETRY_AFTER_S
from ionrouter.schema.usage import Usage
from ionrouter.stats.window import Bucket, Window

OUTAGE_S = 30.0  # OpenRouter's window for "a significant outage"
OUTAGE_RATE = 0.05  # below this share of failures in it, an outage is not significant
RECENT_S = 300.0  # window of the percentiles that `sort` and `preferred_*` read
STALL_FACTOR = 4.0  # times the usual time to the first token, and ...
STALL_S = 1.0  # ... at least so long: silence
MIN_TOKENS_FOR_RATE = 8  # a shorter answer says nothing about tokens per second
FIXED_TOKENS = 100.0  # a whole answer's fixed part, in tokens: 2 s at 50 tokens/s, as in the priors
BACKOFF_S = 1.0  # after a 429 that names no time; doubles with each in a row
MAX_BACKOFF_S = 60.0


@dataclass(slots=True, eq=False)
class Flight:
    """One attempt under way."""

    started_at: float
    stream: bool
    is_exploring: bool = False
    has_answered: bool = False  # the first token came
    is_held: bool = False  # waits for a place among our own connections: the endpoint knows nothing of it
    held_s: float = 0.0  # it has waited there; `started_at` is after that

    def hold(self) -> None:
        """Note that it waits for a place of ours."""
        self.is_held = True

    def go(self, waited_s: float) -> None:
        """Note that it has one, after so long: from here on it is the endpoint's time."""
        self.is_held = False
        self.held_s += waited_s
        self.started_at += waited_s


@dataclass(slots=True)
class Speed:
    """One streaming mode of one endpoint."""

    ttft_s: PeakEwma = field(default_factory=PeakEwma)
    token_s: PeakEwma = field(default_factory=PeakEwma)  # seconds per token after the first
    pace_s: PeakEwma = field(default_factory=PeakEwma)  # whole answers: duration / (FIXED_TOKENS + tokens)
    recent: Window = field(default_factory=lambda: Window(width_s=60, max_buckets=6))
    sampled_at: float = -math.inf
    finished_start_at: float = -math.inf  # start of the latest attempt whose answer is whole

    def note(self, average: PeakEwma, sample: float, now: float, flight: Flight) -> None:
        """Take in a whole answer's time, unless it is old bad news: a later one is whole already."""
        is_news = flight.started_at >= self.finished_start_at
        if is_news or average.value is None or sample < average.value:
            average.observe(sample, now)


@dataclass(slots=True)
class Silence:
    """Attempts that hung together, by when they began: those between two that were answered."""

    since: float
    until: float
    found_at: float = -math.inf  # when one of them was counted as a failure

    def covers(self, started_at: float) -> bool:
        """Ask whether an attempt is one of them."""
        return self.since < started_at <= self.until


@dataclass(slots=True)
class Health:
    """One endpoint's state. `before` and `after` are shares of failures before and after commit."""

    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    budget: RetryBudget = field(default_factory=RetryBudget)
    pace: Pace = field(default_factory=Pace)
    speeds: dict[bool, Speed] = field(default_factory=lambda: {True: Speed(), False: Speed()})  # by stream
    before: DecayedMean = field(default_factory=DecayedMean)
    after: DecayedMean = field(default_factory=DecayedMean)
    fail_s: DecayedMean = field(default_factory=DecayedMean)
    fail_cost: DecayedMean = field(default_factory=DecayedMean)
    cached_share: DecayedMean = field(default_factory=DecayedMean)  # of prompt tokens
    outages: DecayedMean = field(default_factory=lambda: DecayedMean(OUTAGE_S / 2))
    flights: list[Flight] = field(default_factory=list)
    retry_at: float = -math.inf  # end of an announced Retry-After
    last_failed_at: float = -math.inf
    last_started_at: float = -math.inf
    turn: int = 0  # when it was last the first pick: the book counts them
    answered_start_at: float = -math.inf  # start of the latest attempt that was answered
    silence: Silence | None = None  # the latest
    has_told_price: bool = False  # the log has been told that nobody knows the price
    endpoint_id: str = ""  # by which it was first asked for
    _num_refusals: int = 0  # 429s in a row; those that were sent together are one

    # What is read.

    def fail_before(self, now: float) -> float:
        """Estimate P(fails before commit)."""
        return self.before.mean(now, PRIOR_FAIL_BEFORE, PSEUDO_REQUESTS)

    def fail_after(self, now: float) -> float:
        """Estimate P(fails after commit | committed)."""
        return self.after.mean(now, PRIOR_FAIL_AFTER, PSEUDO_REQUESTS)

    def oldest_wait_s(self, now: float, stream: bool) -> float:
        """Tell how long the oldest attempt that no later one has overtaken waits for its first token.

        0 when none waits. One that began before an answered one did is a single hang: its failure will
        count as one. Those that nobody has overtaken are news of the endpoint.
        """
        since, oldest = self.answered_start_at, now
        for f in self.flights:
            if since <= f.started_at < oldest and not (f.has_answered or f.is_held) and f.stream == stream:
                oldest = f.started_at
        return now - oldest

    def is_stalled(self, now: float, stream: bool) -> bool:
        """Ask whether it has gone silent: as many attempts as open a breaker wait far longer than usual.

        Only those that no later one has overtaken count. Their deadlines will say so too, but late. As with
        an open breaker somebody may try again after the cooldown.
        """
        rules = self.breaker.rules
        cooldown_s = rules.cooldown_s if rules.cooldown_s > 0 else BreakerRules().cooldown_s
        if now - self.last_started_at >= cooldown_s:
            return False
        return self._num_late(now, stream) >= rules.max_failures

    def _num_late(self, now: float, stream: bool) -> int:
        """Count attempts that no later one has overtaken and that wait far longer than usual."""
        speed = self.speeds[stream]
        usual_s = speed.ttft_s.value if stream else None
        if usual_s is None:
            return 0
        latest = now - max(STALL_FACTOR * usual_s, STALL_S)
        since = self.answered_start_at
        late = [f for f in self.flights if since <= f.started_at <= latest and not f.has_answered]
        return sum([f.stream == stream and not f.is_held for f in late])

    def has_outage(self, now: float) -> bool:
        """Ask whether it failed significantly within the last 30 seconds."""
        return now - self.last_failed_at < OUTAGE_S and self.outages.mean(now, 0.0, 1e-9) >= OUTAGE_RATE

    def is_measured(self, stream: bool) -> bool:
        """Ask whether any answer in this mode was timed."""
        return self.speeds[stream].sampled_at > -math.inf

    def is_exploring(self) -> bool:
        """Ask whether an exploring request is in flight."""
        return any(flight.is_exploring for flight in self.flights)

    def recent(self, now: float, stream: bool) -> Bucket:
        """Merge the last five minutes of one mode."""
        return self.speeds[stream].recent.since(now - RECENT_S, now)

    # What attempts write.

    def begin(self, now: float, stream: bool, is_exploring: bool = False) -> Flight:
        """Note an attempt under way; every one must reach `end`."""
        flight = Flight(now, stream, is_exploring)
        self.flights.append(flight)
        self.last_started_at = now
        self.budget.deposit(now)
        self.pace.send(now)
        return flight

    def end(self, flight: Flight) -> None:
        """Note that an attempt is over, however it went; a second call does nothing."""
        if flight in self.flights:
            self.flights.remove(flight)

    def commit(self, now: float, flight: Flight, ttft_s: float | None, *, is_bound: bool = False) -> None:
        """Record that an answer began (streamed: `ttft_s` after its start).

        `is_bound`: the request was so small that this is no more than a lower bound of others' times.
        """
        flight.has_answered = True
        if flight.started_at > self.answered_start_at:
            if flight.started_at - self.answered_start_at > STALL_S:
                self._note_silence(flight.started_at, self._num_late(now, flight.stream))
            self.answered_start_at = flight.started_at
        self.before.add(0.0, now)
        self.outages.add(0.0, now)
        self.breaker.succeed(now)
        self._num_refusals = 0
        if ttft_s is not None:
            speed = self.speeds[flight.stream]
            if not is_bound or speed.ttft_s.value is None or ttft_s > speed.ttft_s.value:
                speed.ttft_s.observe(ttft_s, now)
            speed.sampled_at = now
            if not is_bound:
                self._sample(speed, now, {"ttft_s": ttft_s})

    def finish(self, now: float, flight: Flight, usage: Usage, decode_s: float | None) -> None:
        """Record a whole good answer; `decode_s` from first to last token, None if it was not streamed."""
        self.after.add(0.0, now)
        duration_s, num_out = now - flight.started_at, usage.completion_tokens
        speed = self.speeds[flight.stream]
        speed.sampled_at = now
        speed.note(speed.pace_s, duration_s / (FIXED_TOKENS + num_out), now, flight)
        if decode_s and num_out >= MIN_TOKENS_FOR_RATE:
            speed.note(speed.token_s, decode_s / (num_out - 1), now, flight)
        if flight.started_at > speed.finished_start_at:
            speed.finished_start_at = flight.started_at
        samples = {} if flight.stream else {"duration_s": duration_s}
        if duration_s > 0 and num_out:
            samples["throughput"] = num_out / duration_s
        if samples:
            self._sample(speed, now, samples)
        if usage.prompt_tokens > 0:
            self.cached_share.add(min(usage.cached_tokens / usage.prompt_tokens, 1.0), now)

    def give_up(self, now: float, flight: Flight, num_out: float) -> None:
        """Record that an attempt was left for a faster one: its age is a lower bound of its time.

        Without it those that lose would be missing from the averages, which would look too good.
        `num_out`: tokens expected of its answer.
        """
        if flight.has_answered or flight.is_held:
            return
        age_s, speed = now - flight.started_at, self.speeds[flight.stream]
        average = speed.ttft_s if flight.stream else speed.pace_s
        bound = age_s if flight.stream else age_s / (FIXED_TOKENS + num_out)
        if average.value is None or bound > average.value:
            average.observe(bound, now)
        self._sample(speed, now, {"ttft_s" if flight.stream else "duration_s": age_s})

    def fail(
        self, now: float, error: UpstreamError, duration_s: float, cost: float, *, after_commit: bool
    ) -> bool:
        """Record a failure as its class demands; True when this just opened the breaker for the domain."""
        if error.failure is FailureClass.TRANSIENT:
            self._fail_transient(now, duration_s, cost, after_commit)
            if error.retry_after_s is not None:
                self._refuse(now, error.retry_after_s, now - duration_s)
        elif error.failure is FailureClass.CAPACITY:
            self._refuse(now, error.retry_after_s, now - duration_s)
        elif error.failure is FailureClass.DOMAIN:
            self.last_failed_at = now
            return self.breaker.trip(now)
        return False

    def _fail_transient(self, now: float, duration_s: float, cost: float, after_commit: bool) -> None:
        self.outages.add(1.0, now)
        self.last_failed_at = now
        if after_commit:
            self.after.add(1.0, now)
            self.breaker.fail(now)
            return
        started_at = now - duration_s
        self._note_silence(now, self._num_late(now, stream=True) + 1)
        silence = self.silence if self.silence is not None and self.silence.covers(started_at) else None
        is_known = self.breaker.state(now) is BreakerState.OPEN
        if silence is not None:
            is_known = is_known or started_at <= silence.found_at
        # One outage is one event: those that were under way when it was found out tell nothing new.
        if not is_known:
            self.before.add(1.0, now)
            if silence is not None:
                silence.found_at = now
        if silence is None or silence.until > self.answered_start_at:  # else somebody was answered since
            self.breaker.fail(now, is_overtaken=started_at < self.answered_start_at)
        self.fail_s.add(duration_s, now)
        self.fail_cost.add(cost, now)

    def _note_silence(self, until: float, num_late: int) -> None:
        """Remember those that began since the last answered one as one event, if they are silence."""
        if num_late < self.breaker.rules.max_failures:
            return
        if self.silence is None or self.silence.since < self.answered_start_at:
            self.silence = Silence(self.answered_start_at, until)
        self.silence.until = until

    def _refuse(self, now: float, retry_after_s: float | None, sent_at: float) -> None:
        """Keep away for the time asked; 0 is an answer, None and nonsense are not.

        Requests that were sent together and refused are one refusal, however many they are.
        """
        self._num_refusals += self.pace.refuse(now, sent_at)
        if retry_after_s is None or not retry_after_s >= 0:
            retry_after_s = min(BACKOFF_S * 2.0 ** min(max(self._num_refusals - 1, 0), 16), MAX_BACKOFF_S)
        self.retry_at = max(self.retry_at, now + min(retry_after_s, MAX_RETRY_AFTER_S))

    def _sample(self, speed: Speed, now: float, samples: dict[str, float]) -> None:
        speed.recent.at(now).measure(samples)


@dataclass(slots=True)
class HealthBook:
    """Every endpoint's Health by identity, and every model's usual answer length."""

    max_entries: int = 8192  # patterns let clients invent models: the longest idle goes first
    _healths: dict[str, Health] = field(default_factory=dict)
    _num_out: dict[tuple[str, bool], DecayedMedian] = field(default_factory=dict)  # (model id, stream)
    _num_turns: int = 0

    def of(self, endpoint: Endpoint) -> Health:
        """Find an endpoint's state, or start a clean one."""
        health = self._healths.get(endpoint.identity)
        if health is None:
            self._make_room()  # before it is there: it has not started anything, and would be the first to go
            health = self._healths[endpoint.identity] = Health(endpoint_id=endpoint.id)
        health.breaker.rules = endpoint.breaker
        return health

    def holds(self, health: Health, endpoint: Endpoint) -> bool:
        """Ask whether a state is an endpoint's still, which no reload has taken away."""
        return self._healths.get(endpoint.identity) is health

    def take_turn(self, endpoint: Endpoint) -> None:
        """Note a first pick at once: whoever selects next, before the attempt has begun, must know."""
        self._num_turns += 1
        self.of(endpoint).turn = self._num_turns

    def keep(self, endpoints: Iterable[Endpoint]) -> None:
        """Drop the state of every endpoint not named: a reload took it away.

        An endpoint made from a pattern is kept with its pattern: its identity is `<pattern's>:<model>`.
        """
        kept = {endpoint.identity for endpoint in endpoints}
        self._healths = {
            identity: health
            for identity, health in self._healths.items()
            if identity in kept or identity.partition(":")[0] in kept
        }

    def answered(self, model_id: str, stream: bool, num_out: int, now: float) -> None:
        """Remember how long an answer was, in tokens."""
        lengths = self._num_out.pop((model_id, stream), None) or DecayedMedian()
        self._num_out[model_id, stream] = lengths  # last in order: most recently used
        if len(self._num_out) > self.max_entries:
            del self._num_out[next(iter(self._num_out))]
        lengths.add(num_out, now)

    def expected_num_out(self, model_id: str, stream: bool, now: float) -> float:
        """Estimate the completion tokens of a request to this model: the decayed median, prior 300."""
        lengths = self._num_out.get((model_id, stream))
        return lengths.median(now, PRIOR_NUM_OUT, pseudo=3.0) if lengths else PRIOR_NUM_OUT

    def used_beside(self, identities: Container[str]) -> list[Health]:
        """List those that have been asked something and are none of these: they were made from patterns."""
        return [
            health
            for identity, health in self._healths.items()
            if identity not in identities and health.last_started_at > -math.inf
        ]

    def num_in_flight(self) -> int:
        """Count the attempts under way, everywhere."""
        return sum(len(health.flights) for health in self._healths.values())

    def _make_room(self) -> None:
        """Let the longest idle go, many at once: each look at all of them is the event loop's time."""
        if len(self._healths) >= self.max_entries:
            idle = heapq.nsmallest(
                max(self.max_entries // 64, 1),
                (identity for identity, health in self._healths.items() if not health.flights),
                key=lambda identity: self._healths[identity].last_started_at,
            )
            for identity in idle:
                del self._healths[identity]
