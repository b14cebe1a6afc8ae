"""Buckets of one resolution over a bounded stretch of time: what happened in the last so many seconds.

A bucket that is over is kept packed, a tenth of its size. Knows no endpoints and calls no clock; times
are wall-clock seconds and need not come in order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ionrouter.schema.usage import Cost, Usage
from ionrouter.stats.sketch import Sketch

METRICS = ("ttft_s", "throughput", "duration_s", "tpot_s")


@dataclass(slots=True)
class Bucket:
    """Counts and sketches of one stretch. `outcomes`: "ok" or a failure class's value."""

    outcomes: Counter[str] = field(default_factory=Counter)
    sketches: dict[str, Sketch] = field(default_factory=dict)  # metric -> sketch
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0  # USD

    def add(self, outcome: str, samples: dict[str, float]) -> None:
        """Count one outcome and its measurements."""
        self.outcomes[outcome] += 1
        for metric, value in samples.items():
            self.sketches.setdefault(metric, Sketch()).add(value)

    def spend(self, usage: Usage | None, cost: Cost) -> None:
        """Add up tokens and dollars."""
        if usage is not None:
            self.prompt_tokens += usage.prompt_tokens
            self.completion_tokens += usage.completion_tokens
        self.cost += cost.total

    def merge(self, other: Bucket) -> None:
        """Take in another bucket; the other stays as it is."""
        self.outcomes.update(other.outcomes)
        for metric, sketch in other.sketches.items():
            self.sketches.setdefault(metric, Sketch()).merge(sketch)
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.cost += other.cost


@dataclass(frozen=True, slots=True)
class PackedBucket:
    """A bucket that nothing is added to any more: also the row that a store would keep."""

    outcomes: tuple[tuple[str, int], ...]
    sketches: tuple[tuple[str, bytes], ...]
    prompt_tokens: int
    completion_tokens: int
    cost: float

    @classmethod
    def of(cls, bucket: Bucket) -> PackedBucket:
        """Pack."""
        sketches = tuple((metric, sketch.pack()) for metric, sketch in bucket.sketches.items())
        outcomes = tuple(bucket.outcomes.items())
        return cls(outcomes, sketches, bucket.prompt_tokens, bucket.completion_tokens, bucket.cost)

    def unpack(self, *, with_sketches: bool = True) -> Bucket:
        """Open again; counts alone are a good deal cheaper."""
        sketches = {m: Sketch.unpack(data) for m, data in self.sketches} if with_sketches else {}
        return Bucket(
            Counter(dict(self.outcomes)), sketches, self.prompt_tokens, self.completion_tokens, self.cost
        )


@dataclass(slots=True)
class Window:
    """At most `max_buckets` buckets of `width_s` seconds; the oldest go first."""

    width_s: int = 60
    max_buckets: int = 2880  # 48 hours of minutes
    _packed: dict[int, PackedBucket] = field(default_factory=dict)  # bucket number -> what happened
    _open: dict[int, Bucket] = field(default_factory=dict)  # the newest two: a late sample is common

    def at(self, moment: float) -> Bucket | None:
        """Open the bucket that `moment` falls into; None when it is older than all that is kept."""
        number = int(moment // self.width_s)
        if number in self._open:
            return self._open[number]
        newest = max(self._open, default=number)
        if number <= newest - self.max_buckets:
            return None
        packed = self._packed.pop(number, None)
        self._open[number] = packed.unpack() if packed else Bucket()
        self._close_all_but_newest(2, keep=number)
        self._forget(max(newest, number) - self.max_buckets)
        return self._open[number]

    def since(self, start: float, now: float, *, with_sketches: bool = True) -> Bucket:
        """Merge the buckets from the one that holds `start` up to `now`."""
        first, last = int(start // self.width_s), int(now // self.width_s)
        total = Bucket()
        for number in range(max(first, last - self.max_buckets + 1), last + 1):
            if number in self._open:
                total.merge(self._open[number])
            elif number in self._packed:
                total.merge(self._packed[number].unpack(with_sketches=with_sketches))
        return total

    def __len__(self) -> int:
        return len(self._open) + len(self._packed)

    def _close_all_but_newest(self, num_open: int, keep: int) -> None:
        for number in sorted(self._open)[:-num_open]:
            if number != keep:
                self._packed[number] = PackedBucket.of(self._open.pop(number))

    def _forget(self, last_lost: int) -> None:
        """Drop what is too old. Keys are not in the order of time, so all are looked at, once a bucket."""
        for number in [n for n in self._packed if n <= last_lost]:
            del self._packed[number]
        for number in [n for n in self._open if n <= last_lost]:
            del self._open[number]
