"""Buckets as bytes: the same back, nothing else taken, and small enough for a month of many endpoints."""

from __future__ import annotations

import random

import pytest

from ionrouter.schema.usage import Cost, Usage
from ionrouter.stats.codec import decode, encode
from ionrouter.stats.query import METRICS
from ionrouter.stats.window import Bucket, PackedBucket

BUDGET_BYTES = 1e9
NUM_ENDPOINTS, NUM_CLASSES = 50, 3


def bucket(num_requests: int, rng: random.Random, *, streamed: bool = True) -> PackedBucket:
    """Latencies over four orders of magnitude: far more bins than an endpoint has in fact."""
    made = Bucket()
    names = (
        [name for name, _, _ in METRICS.values()]
        if streamed
        else ("ttft_client_s", "throughput", "duration_s")
    )
    for _ in range(num_requests):
        made.add(rng.choice(("ok", "transient", "capacity")), {m: rng.lognormvariate(0, 2) for m in names})
        made.spend(Usage(rng.randrange(10_000), rng.randrange(1000), 5, 0, 3), Cost(0.001, 0.002))
    return PackedBucket.of(made)


@pytest.mark.parametrize("num_requests", [0, 1, 1000])
def test_what_is_written_is_read_back(num_requests: int) -> None:
    before = bucket(num_requests, random.Random(1))
    after = decode(encode(before))
    assert after == before
    assert after.unpack().sketches == before.unpack().sketches


def test_bytes_of_something_else_are_refused() -> None:
    good = encode(bucket(10, random.Random(2)))
    for bad in (b"", b"x", good[:-1], bytes((9,)) + good[1:], good[:1] + b"nonsense"):
        with pytest.raises(ValueError, match="bucket"):
            decode(bad)


def test_a_month_of_fifty_busy_endpoints_is_under_a_gigabyte() -> None:
    """Every endpoint busy in both modes and all classes, every minute of 31 days: the worst there is."""
    rng, row_bytes = random.Random(3), 120  # what a row has besides: key, names, page overhead

    def mean_bytes(num_requests: int, streamed: bool) -> float:
        made = [len(encode(bucket(num_requests, rng, streamed=streamed))) + row_bytes for _ in range(3)]
        return sum(made) / len(made)

    total = 0.0
    for num_kept, num_requests in ((2880, 20), (744, 1200), (31, 28_800)):
        size = mean_bytes(num_requests, True) + mean_bytes(num_requests, False)
        total += num_kept * size * NUM_ENDPOINTS * NUM_CLASSES
    assert total < BUDGET_BYTES, f"{total / 1e6:.0f} MB"
