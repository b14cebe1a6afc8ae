"""Buckets of time."""

from __future__ import annotations

import random

from ionrouter.stats.window import Bucket, PackedBucket, Window


def add(window: Window, moment: float, value: float = 1.0) -> None:
    window.at(moment).add("ok", {"ttft_s": value})


def test_a_question_about_five_minutes_sees_those_only() -> None:
    window = Window(width_s=60)
    for minute in range(10):
        add(window, minute * 60.0 + 30)
    assert window.since(9 * 60 + 59 - 300, 9 * 60 + 59).outcomes["ok"] == 6  # the oldest only in part
    assert window.since(0, 9 * 60 + 59).outcomes["ok"] == 10


def test_old_buckets_go_and_the_size_stays_bounded() -> None:
    window = Window(width_s=60, max_buckets=10)
    for minute in range(1000):
        add(window, minute * 60.0)
    assert len(window) == 10
    assert window.since(0, 1000 * 60.0).outcomes["ok"] <= 10


def test_a_clock_that_is_set_back_counts_on_from_there() -> None:
    window = Window(width_s=60, max_buckets=10)
    for minute in (5, 6, 100, 101, 102):
        add(window, minute * 60.0)
    for minute in (7, 8, 8, 9):
        add(window, minute * 60.0)
    assert window.since(0, 9 * 60.0).outcomes["ok"] == 4
    assert window.since(0, 200 * 60.0).outcomes["ok"] == 0  # nothing is left ahead
    assert [number for number, _ in sorted(window.take_changed())] == [7, 8, 9]


def test_a_clock_that_is_set_back_a_little_loses_nothing() -> None:
    window = Window(width_s=60, max_buckets=10)
    for minute in (1, 8, 2, 3):
        add(window, minute * 60.0)
    assert window.since(0, 9 * 60.0).outcomes["ok"] == 4


def test_a_late_sample_lands_in_its_own_minute() -> None:
    window = Window(width_s=60)
    for minute in (0, 1, 2, 3, 4):
        add(window, minute * 60.0)
    add(window, 30.0, value=9.0)
    first = window.since(0, 59)
    assert first.outcomes["ok"] == 2 and first.sketches["ttft_s"].count == 2


def test_samples_in_any_order_count_the_same() -> None:
    moments = [random.Random(3).uniform(0, 3600) for _ in range(500)]
    window = Window(width_s=60)
    for moment in moments:
        add(window, moment)
    assert window.since(0, 3600).outcomes["ok"] == 500


def test_a_packed_bucket_opens_to_what_it_was() -> None:
    bucket = Bucket()
    for value in (0.1, 0.2, 30.0):
        bucket.add("ok", {"ttft_s": value, "throughput": 1 / value})
    bucket.add("capacity", {})
    bucket.prompt_tokens, bucket.completion_tokens, bucket.cost = 5, 6, 0.25
    assert PackedBucket.of(bucket).unpack() == bucket


def test_packed_or_not_buckets_add_up_the_same() -> None:
    rng, window, whole = random.Random(4), Window(width_s=60), Bucket()
    for minute in range(20):
        for _ in range(rng.randrange(30)):
            value = rng.lognormvariate(0, 3)
            add(window, minute * 60.0, value)
            whole.add("ok", {"ttft_s": value})
    total = Bucket()
    assert [window.add_to(total, number) for number in (-1, 20)] == [False, False]
    for number in window.numbers(0, 19 * 60.0):
        window.add_to(total, number)
    assert total == whole == window.since(0, 19 * 60.0)
