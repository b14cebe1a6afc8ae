"""Buckets of one resolution over a bounded stretch of time: what happened in the last so many seconds.

A bucket that is over is kept packed, a tenth of its size. Knows no endpoints and calls no clock; times
are wall-clock seconds and need not come in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from ionrouter.schema.usage import Cost, Usage
from ionrouter.stats.resolution import MINUTE, Grain
from ionrouter.stats.sketch import Sketch

OK = "ok"


@dataclass(slots=True)
class Bucket:
    """Counts and sketches of one stretch. `outcomes`: "ok" or a failure class's value."""

    outcomes: Counter[str] = field(default_factory=Counter)
    sketches: dict[str, Sketch] = field(default_factory=dict)  # metric -> sketch
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0  # USD
    cached_tokens: int = 0  # of the prompts'
    reasoning_tokens: int = 0  # of the completions'

    def add(self, outcome: str, samples: dict[str, float]) -> None:
        """Count one outcome and its measurements."""
        self.outcomes[outcome] += 1
        self.measure(samples)

    def measure(self, samples: Mapping[str, float]) -> None:
        """Add measurements without an outcome."""
        sketches = self.sketches
        for metric, value in samples.items():
            sketch = sketches.get(metric)
            if sketch is None:
                sketch = sketches[metric] = Sketch()
            sketch.add(value)

    def __bool__(self) -> bool:
        """Whether it holds anything."""
        return bool(self.outcomes or self.sketches)

    def spend(self, usage: Usage | None, cost: Cost) -> None:
        """Add up tokens and dollars."""
        if usage is not None:
            self.prompt_tokens += usage.prompt_tokens
            self.completion_tokens += usage.completion_tokens
            self.cached_tokens += usage.cached_tokens
            self.reasoning_tokens += usage.reasoning_tokens
        self.cost += cost.total

    def merge(self, other: Bucket, metrics: Collection[str] | None = None) -> None:
        """Take in another bucket, of its sketches all or `metrics`; the other stays as it is."""
        self.outcomes.update(other.outcomes)
        for metric, sketch in other.sketches.items():
            if metrics is None or metric in metrics:
                self.sketches.setdefault(metric, Sketch()).merge(sketch)
        self.add_amounts(other)

    def add_amounts(self, other: Bucket | PackedBucket) -> None:
        """Add another's tokens and cost."""
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.cost += other.cost
        self.cached_tokens += other.cached_tokens
        self.reasoning_tokens += other.reasoning_tokens


@dataclass(frozen=True, slots=True)
class PackedBucket:
    """A bucket that nothing is added to any more: also the row that a store would keep."""

    outcomes: tuple[tuple[str, int], ...]
    sketches: tuple[tuple[str, bytes], ...]
    prompt_tokens: int
    completion_tokens: int
    cost: float
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @classmethod
    def of(cls, bucket: Bucket) -> PackedBucket:
        """Pack."""
        sketches = tuple((metric, sketch.pack()) for metric, sketch in bucket.sketches.items())
        outcomes = tuple(bucket.outcomes.items())
        return cls(
            outcomes,
            sketches,
            bucket.prompt_tokens,
            bucket.completion_tokens,
            bucket.cost,
            bucket.cached_tokens,
            bucket.reasoning_tokens,
        )

    def add_to(self, bucket: Bucket, metrics: Collection[str] | None = None) -> None:
        """Merge it into an open one, of its sketches all or `metrics`."""
        for outcome, count in self.outcomes:
            bucket.outcomes[outcome] += count
        for metric, data in self.sketches:
            if metrics is None or metric in metrics:
                bucket.sketches.setdefault(metric, Sketch()).merge_packed(data)
        bucket.add_amounts(self)

    def unpack(self) -> Bucket:
        """Open again."""
        bucket = Bucket()
        self.add_to(bucket)
        return bucket


@dataclass(slots=True)
class Window:
    """At most `max_buckets` buckets of `width_s` seconds; the oldest go first."""

    width_s: int = MINUTE.width_s
    max_buckets: int = MINUTE.max_buckets
    _packed: dict[int, PackedBucket] = field(default_factory=dict)  # bucket number -> what happened
    _open: dict[int, Bucket] = field(default_factory=dict)  # the newest two: a late sample is common
    _changed: set[int] = field(default_factory=set)  # since take_changed

    @classmethod
    def of(cls, grain: Grain) -> Window:
        """An empty one of a resolution."""
        return cls(grain.width_s, grain.max_buckets)

    def at(self, moment: float) -> Bucket:
        """Open the bucket that `moment` falls into.

        What is older than all that is kept comes of a clock that was set back: nothing arrives days late.
        Then what was counted ahead of it goes, or nothing would count until that time has come.
        """
        number = int(moment // self.width_s)
        if number in self._open:
            self._changed.add(number)
            return self._open[number]
        newest = max(self._open, default=number)
        if number <= newest - self.max_buckets:
            self._forget_after(number)
            newest = number
        packed = self._packed.pop(number, None)
        self._open[number] = packed.unpack() if packed else Bucket()
        self._changed.add(number)
        self._close_all_but_newest(2, keep=number)
        self._forget(max(newest, number) - self.max_buckets)
        return self._open[number]

    def since(self, start: float, now: float) -> Bucket:
        """Merge the buckets from the one that holds `start` up to `now`."""
        total = Bucket()
        for number in self.numbers(start, now):
            self.add_to(total, number)
        return total

    def numbers(self, start: float, now: float) -> range:
        """Numbers of the buckets from the one that holds `start` to the one of `now`, kept or not."""
        first, last = int(start // self.width_s), int(now // self.width_s)
        return range(max(first, last - self.max_buckets + 1), last + 1)

    def add_to(self, total: Bucket, number: int, metrics: Collection[str] | None = None) -> bool:
        """Merge one bucket into `total`, of its sketches all or `metrics`; tells whether there is one."""
        if number in self._open:
            total.merge(self._open[number], metrics)
        elif number in self._packed:
            self._packed[number].add_to(total, metrics)
        else:
            return False
        return True

    def num_tokens(self, start: float, now: float) -> int:
        """Count the tokens in and out of the same buckets as `since` merges."""
        total = 0
        for number in self.numbers(start, now):
            bucket = self._open.get(number) or self._packed.get(number)
            if bucket is not None:
                total += bucket.prompt_tokens + bucket.completion_tokens
        return total

    def take_changed(self) -> Iterator[tuple[int, PackedBucket]]:
        """Give what changed since it was last given, packed. What is not fetched stays changed."""
        while self._changed:
            number = self._changed.pop()
            if number in self._open:
                yield number, PackedBucket.of(self._open[number])
            elif number in self._packed:
                yield number, self._packed[number]

    def mark_changed(self, number: int) -> None:
        """What was given could not be kept: give it again."""
        self._changed.add(number)

    def num_recent(self) -> int:
        """Count what the open buckets, the newest two, hold."""
        return sum(bucket.outcomes.total() for bucket in self._open.values())

    def restore(self, number: int, bucket: PackedBucket) -> None:
        """Put a kept bucket back; what has been recorded there since is added to it."""
        if number in self._open:
            bucket.add_to(self._open[number])
            return
        if number in self._packed:
            both = bucket.unpack()
            self._packed[number].add_to(both)
            bucket = PackedBucket.of(both)
        self._packed[number] = bucket

    def __len__(self) -> int:
        return len(self._open) + len(self._packed)

    def _close_all_but_newest(self, num_open: int, keep: int) -> None:
        for number in sorted(self._open)[:-num_open]:
            if number != keep:
                self._packed[number] = PackedBucket.of(self._open.pop(number))

    def _forget_after(self, last_kept: int) -> None:
        self._packed = {n: bucket for n, bucket in self._packed.items() if n <= last_kept}
        self._open = {n: bucket for n, bucket in self._open.items() if n <= last_kept}

    def _forget(self, last_lost: int) -> None:
        """Drop what is too old. Keys are not in the order of time, so all are looked at, once a bucket."""
        for number in [n for n in self._packed if n <= last_lost]:
            del self._packed[number]
        for number in [n for n in self._open if n <= last_lost]:
            del self._open[number]
