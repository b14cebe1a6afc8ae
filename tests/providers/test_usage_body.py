"""Token counts mean the same whoever counted: prompt includes cached, completion includes reasoning."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.providers.usage_body import merge_usage, read_usage
from ionrouter.schema.usage import Usage


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}, Usage(7, 1)),
        ({"input_tokens": 7, "output_tokens": 1}, Usage(7, 1)),
        # cached, four spellings
        (
            {"prompt_tokens": 100, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 80}},
            Usage(100, 1, 80),
        ),
        ({"prompt_tokens": 100, "completion_tokens": 1, "prompt_cache_hit_tokens": 80}, Usage(100, 1, 80)),
        ({"prompt_tokens": 100, "completion_tokens": 1, "cached_tokens": 80}, Usage(100, 1, 80)),
        ({"prompt_tokens": 100, "completion_tokens": 1, "cache_read_input_tokens": 80}, Usage(100, 1, 80)),
        (
            {"input_tokens": 9, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 4}},
            Usage(9, 1, 4),
        ),
        # Anthropic's own shape counts the cache beside the input
        (
            {
                "input_tokens": 10,
                "output_tokens": 2,
                "cache_read_input_tokens": 900,
                "cache_creation_input_tokens": 90,
            },
            Usage(1000, 2, 900, 90),
        ),
        # G111: an explicit zero is a count
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, Usage(0, 0)),
        # G112: completion includes reasoning
        (
            {
                "prompt_tokens": 0,
                "completion_tokens": 100,
                "total_tokens": 100,
                "completion_tokens_details": {"reasoning_tokens": 60},
            },
            Usage(0, 100, reasoning_tokens=60),
        ),
        # ... unless the total says that it is counted beside it
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 40,
                "total_tokens": 110,
                "completion_tokens_details": {"reasoning_tokens": 60},
            },
            Usage(10, 100, reasoning_tokens=60),
        ),
        ({"prompt_tokens": 4, "total_tokens": 4}, Usage(4, 0)),
        ({"prompt_tokens": 4, "total_tokens": 9}, Usage(4, 5)),
        ({"prompt_tokens": 3.0, "completion_tokens": "2"}, Usage(3, 2)),
        ({"prompt_tokens": -3, "completion_tokens": 2}, Usage(0, 2)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": None}, Usage(5, 2)),
    ],
)
def test_counts_are_read(usage: dict[str, Any], expected: Usage) -> None:
    assert read_usage(usage) == expected


@pytest.mark.parametrize(
    "usage", [None, {}, [], "x", {"prompt_tokens": None}, {"prompt_tokens": True}, {"cost": 1.0}]
)
def test_no_count_is_no_usage(usage: Any) -> None:
    assert read_usage(usage) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "x", [], {}])
def test_a_count_that_is_no_number_is_ignored(value: Any) -> None:
    assert read_usage({"prompt_tokens": value, "completion_tokens": 2}) == Usage(0, 2)


def test_more_cached_than_prompt_tokens_never_make_a_negative_part() -> None:
    """G117: the uncached part is 0, the cached count stays."""
    usage = read_usage(
        {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 900}}
    )
    assert usage is not None
    assert usage.cached_tokens == 900
    assert usage.prompt_tokens - usage.cached_tokens == 0


def test_a_repeated_report_counts_once_and_a_later_zero_takes_nothing_away() -> None:
    """G109."""
    assert merge_usage(Usage(10, 3), Usage(10, 3)) == Usage(10, 3)
    assert merge_usage(Usage(10, 3), Usage(0, 0)) == Usage(10, 3)
    assert merge_usage(Usage(10, 1), Usage(10, 3)) == Usage(10, 3)
    assert merge_usage(None, Usage(1, 1)) == Usage(1, 1)
    assert merge_usage(Usage(1, 1), None) == Usage(1, 1)
