"""KV memory: an equal share, bounded by need, refused with both figures when too small."""

from __future__ import annotations

import pytest

from ionrouter.engine.kv_memory import (
    Neighbours,
    TooLittleMemory,
    bytes_per_token,
    choose_kv_bytes,
)

ALONE = Neighbours()
SMOLLM2 = {"num_layers": 30, "num_kv_heads": 3, "head_dim": 64, "context_length": 8192}


def test_one_token_takes_keys_and_values_of_every_layer() -> None:
    assert bytes_per_token(SMOLLM2, "fast") == 2 * 30 * 3 * 64 * 2
    assert bytes_per_token(SMOLLM2, "exact") == 2 * bytes_per_token(SMOLLM2, "fast")
    assert bytes_per_token(SMOLLM2, "deterministic") == bytes_per_token(SMOLLM2, "fast")


def choose(
    free: int, *, max_running: int = 64, neighbours: Neighbours = ALONE, weights: int = 96 << 20
) -> int:
    return choose_kv_bytes(
        SMOLLM2, "fast", max_running, weight_bytes=weights, free_bytes=free, neighbours=neighbours
    )


def test_engines_share_equally() -> None:
    assert choose(4 << 30, neighbours=Neighbours(num_sharing=1)) == choose(4 << 30) // 2
    assert choose(4 << 30) < 4 << 30


def test_the_second_to_load_gets_as_much_as_the_first_and_weights_to_come_are_left_out() -> None:
    weights = 1 << 30
    first = choose(5 << 30, neighbours=Neighbours(num_sharing=1, coming_bytes=weights))
    free = (5 << 30) - weights - first
    assert choose(free, neighbours=Neighbours(num_sharing=1, kv_bytes=first)) == pytest.approx(first, abs=2)


def test_a_pool_is_never_larger_than_what_can_fill_it() -> None:
    assert choose(1 << 50, max_running=1) == 8192 * bytes_per_token(SMOLLM2, "fast")


def test_a_small_model_leaves_the_machine_to_others_and_a_large_one_scales() -> None:
    assert choose(1 << 40) == 2 << 30
    assert choose(1 << 40, weights=5 << 30) == 10 << 30


def test_too_little_memory_is_told_with_both_figures() -> None:
    with pytest.raises(TooLittleMemory, match=r"23592960 bytes are needed .* 400000 bytes are free"):
        choose(1_000_000)
