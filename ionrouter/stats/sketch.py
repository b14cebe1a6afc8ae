"""A mergeable sketch of positive values: any percentile within 1%, at most 256 bins. Knows no time.

The method is DDSketch (Masson, Rim, Lee: "DDSketch: a fast and fully-mergeable quantile sketch with
relative-error guarantees", VLDB 2019): bin i holds (gamma^(i-1), gamma^i], and its middle is within
alpha of every value in it. When bins run out the lowest are folded together, so that high percentiles
keep the guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

ALPHA = 0.01
MAX_BINS = 256
MIN_VALUE = 1e-6  # up to here a value reads as 0
_GAMMA = (1 + ALPHA) / (1 - ALPHA)
_LOG_GAMMA = math.log(_GAMMA)
_LOWEST = math.ceil(math.log(MIN_VALUE) / _LOG_GAMMA)  # the lowest index that a value can have
ROUNDING = 1e-12  # 1 - 0.9 is less than a tenth: a rank that is whole must not lose a sample to that
_VERSION = 2


@dataclass(slots=True)
class Sketch:
    """`bins` maps a bin's index to its count. Exact 0 and below land in the lowest possible bin."""

    bins: dict[int, int] = field(default_factory=dict)
    count: int = 0

    def add(self, value: float) -> None:
        """Take in one value; a NaN or an infinity is refused with ValueError."""
        if not math.isfinite(value):
            raise ValueError(f"a sketch takes finite values, got {value}")
        index = _LOWEST if value <= MIN_VALUE else math.ceil(math.log(value) / _LOG_GAMMA)
        self.bins[index] = self.bins.get(index, 0) + 1
        self.count += 1
        if len(self.bins) > MAX_BINS:
            self._fold()

    def merge(self, other: Sketch) -> None:
        """Take in all of another sketch's values; the other stays as it is."""
        for index, count in other.bins.items():
            self.bins[index] = self.bins.get(index, 0) + count
        self.count += other.count
        if len(self.bins) > MAX_BINS:
            self._fold()

    def quantile(self, q: float) -> float | None:
        """Read the value below which a share `q` in [0, 1] lies; None when empty."""
        if not self.count:
            return None
        rank = q * (self.count - 1) * (1 + ROUNDING)
        seen = 0
        for index in sorted(self.bins):
            seen += self.bins[index]
            if seen > rank:
                return _middle(index)
        return _middle(max(self.bins))

    def pack(self) -> bytes:
        """Serialise: version, number of bins, then per bin the step from the index before and the count.

        All but the version are variable-length integers, so a bin takes two or three bytes.
        """
        indexes = sorted(self.bins)
        out = bytearray((_VERSION,))
        write_number(out, len(indexes))
        before = _LOWEST
        for index in indexes:
            write_number(out, index - before)
            write_number(out, self.bins[index])
            before = index
        return bytes(out)

    @classmethod
    def unpack(cls, data: bytes) -> Sketch:
        """Read what `pack` wrote; ValueError on anything else."""
        sketch = cls()
        sketch.merge_packed(data)
        return sketch

    def merge_packed(self, data: bytes) -> None:
        """Take in what `pack` wrote, without a sketch in between; ValueError on anything else.

        What is refused half way has been taken in half: throw the sketch away.
        """
        if data[:1] != bytes((_VERSION,)):
            raise ValueError(f"not a sketch of version {_VERSION}")
        num_bins, at = read_number(data, 1)
        numbers = _read_numbers(data, at)
        if len(numbers) != 2 * num_bins:
            raise ValueError("a sketch of another length than it says")
        bins, index, total = self.bins, _LOWEST, 0
        for step, count in zip(numbers[::2], numbers[1::2], strict=True):
            index += step
            bins[index] = bins.get(index, 0) + count
            total += count
        if 0 in numbers[2::2]:
            raise ValueError("a sketch with one bin twice")
        self.count += total
        if len(bins) > MAX_BINS:
            self._fold()

    def _fold(self) -> None:
        """Fold the lowest bins into the lowest that stays."""
        indexes = sorted(self.bins)
        lost, kept = indexes[:-MAX_BINS], indexes[-MAX_BINS]
        self.bins[kept] += sum(self.bins.pop(index) for index in lost)


def write_number(out: bytearray, number: int) -> None:
    """Append a number from 0 on, seven bits a byte, lowest first."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def read_number(data: bytes, at: int) -> tuple[int, int]:
    """Read a number and the place behind it; ValueError where the bytes end within it."""
    number = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("bytes end within a number")
        number |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return number, at
        shift += 7


def _read_numbers(data: bytes, at: int) -> list[int]:
    """Read numbers up to the end. Most are one byte: a call for each would take most of a query's time."""
    numbers: list[int] = []
    while at < len(data):
        number = data[at]
        if number < 0x80:
            at += 1
        else:
            number, at = read_number(data, at)
        numbers.append(number)
    return numbers


def merged(sketches: Iterable[Sketch]) -> Sketch:
    """Add up sketches into a new one."""
    total = Sketch()
    for sketch in sketches:
        total.merge(sketch)
    return total


def _middle(index: int) -> float:
    """The value whose relative distance to both ends of bin `index` is ALPHA; 0 for the lowest of all."""
    if index == _LOWEST:
        return 0.0
    return 2 * math.exp(index * _LOG_GAMMA) / (1 + _GAMMA)
