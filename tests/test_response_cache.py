"""Values by key, bounded in bytes and in time, on a given clock."""

from __future__ import annotations

import random

from ionrouter.response_cache import PARTS, ResponseCache


def test_a_value_lives_for_its_time_and_not_longer() -> None:
    cache = ResponseCache[str](800)
    cache.keep("k", "v", 10, ttl_s=60, now=100.0)
    found = cache.find("k", 159.9)
    assert found is not None and (found.value, found.made_at, found.ttl_s) == ("v", 100.0, 60)
    assert cache.find("k", 160.0) is None
    assert cache.num_bytes == 0
    assert cache.find("k", 100.0) is None  # gone, not hidden


def test_what_was_not_used_for_the_longest_time_goes_first() -> None:
    cache = ResponseCache[int](100 * PARTS)
    for number in range(PARTS):
        cache.keep(number, number, 100, ttl_s=60, now=0.0)
    assert cache.find(0, 1.0) is not None
    cache.keep("new", -1, 100, ttl_s=60, now=1.0)
    assert cache.find(1, 1.0) is None
    assert [cache.find(key, 1.0) is not None for key in (0, 2, "new")] == [True] * 3
    assert cache.num_bytes == cache.max_bytes


def test_a_value_that_is_too_large_is_not_kept_and_takes_the_old_one_away() -> None:
    cache = ResponseCache[str](100 * PARTS)
    cache.keep("k", "old", 100, ttl_s=60, now=0.0)
    cache.keep("k", "new", 101, ttl_s=60, now=0.0)
    assert cache.find("k", 0.0) is None
    assert cache.num_bytes == 0


def test_bytes_add_up_whatever_happens() -> None:
    rng, cache = random.Random(5), ResponseCache[int](4000)
    sizes = dict[int, int]()
    for now in range(3000):
        key = rng.randrange(40)
        match rng.randrange(4):
            case 0:
                cache.drop(key)
                sizes.pop(key, None)
            case 1:
                cache.find(key, now)
            case _:
                sizes[key] = rng.randrange(1, 600)
                cache.keep(key, now, sizes[key], ttl_s=rng.randrange(1, 100), now=now)
        kept = [key for key in sizes if cache.find(key, -1e9) is not None]
        assert cache.num_bytes == sum(sizes[key] for key in kept) <= 4000


def test_no_bytes_keep_nothing() -> None:
    cache = ResponseCache[str](0)
    cache.keep("k", "v", 1, ttl_s=60, now=0.0)
    assert cache.find("k", 0.0) is None
