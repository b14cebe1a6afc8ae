"""A mergeable sketch of positive values: any percentile within 1%, at most 256 bins. Knows no time.

The method is DDSketch (Masson, Rim, Lee: "DDSketch: a fast and fully-mergeable quantile sketch with
relative-error guarantees", VLDB 2019): bin i holds (gamma^(i-1), gamma^i], and its middle is within
alpha of every value in it. When bins run out the lowest are folded together, so that high percentiles
keep the guarantee.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

ALPHA = 0.01
MAX_BINS = 256
MIN_VALUE = 1e-6  # smaller ones count as this
_GAMMA = (1 + ALPHA) / (1 - ALPHA)
_LOG_GAMMA = math.log(_GAMMA)
_HEADER = struct.Struct("<BH")  # version, number of bins
_VERSION = 1


@dataclass(slots=True)
class Sketch:
    """`bins` maps a bin's index to its count. Exact 0 and below land in the lowest possible bin."""

    bins: dict[int, int] = field(default_factory=dict)
    count: int = 0

    def add(self, value: float) -> None:
        """Take in one value; a NaN or an infinity is refused with ValueError."""
        if not math.isfinite(value):
            raise ValueError(f"a sketch takes finite values, got {value}")
        index = math.ceil(math.log(max(value, MIN_VALUE)) / _LOG_GAMMA)
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
        rank = q * (self.count - 1)
        seen = 0
        for index in sorted(self.bins):
            seen += self.bins[index]
            if seen > rank:
                return _middle(index)
        return _middle(max(self.bins))

    def pack(self) -> bytes:
        """Serialise: version, number of bins, then indexes (int16) and counts (uint32), little-endian."""
        indexes = sorted(self.bins)
        counts = (min(self.bins[index], 0xFFFFFFFF) for index in indexes)
        body = struct.pack(f"<{len(indexes)}h", *indexes) + struct.pack(f"<{len(indexes)}I", *counts)
        return _HEADER.pack(_VERSION, len(indexes)) + body

    @classmethod
    def unpack(cls, data: bytes) -> Sketch:
        """Read what `pack` wrote; ValueError on anything else."""
        try:
            version, num_bins = _HEADER.unpack_from(data)
            indexes = struct.unpack_from(f"<{num_bins}h", data, _HEADER.size)
            counts = struct.unpack_from(f"<{num_bins}I", data, _HEADER.size + 2 * num_bins)
        except struct.error as error:
            raise ValueError(f"not a sketch: {error}") from None
        if version != _VERSION:
            raise ValueError(f"sketch version {version} is not {_VERSION}")
        return cls(dict(zip(indexes, counts, strict=True)), sum(counts))

    def _fold(self) -> None:
        """Fold the lowest bins into the lowest that stays."""
        indexes = sorted(self.bins)
        lost, kept = indexes[:-MAX_BINS], indexes[-MAX_BINS]
        self.bins[kept] += sum(self.bins.pop(index) for index in lost)


def merged(sketches: Iterable[Sketch]) -> Sketch:
    """Add up sketches into a new one."""
    total = Sketch()
    for sketch in sketches:
        total.merge(sketch)
    return total


def _middle(index: int) -> float:
    """The value whose relative distance to both ends of bin `index` is ALPHA."""
    return 2 * math.exp(index * _LOG_GAMMA) / (1 + _GAMMA)
