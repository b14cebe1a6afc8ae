"""Token counts mean the same whoever counted: prompt includes cached, completion includes reasoning."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.providers.usage_body import MAX_TOKENS, merge_usage, read_usage
from ionrouter.schema.usage import CompletionParts, PromptParts, Usage


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}, Usage(7, 1)),
        ({"input_tokens": 7, "output_tokens": 1}, Usage(7, 1)),
        # cached, five spellings
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
        ({"prompt_tokens": 100, "completion_tokens": 1, "num_cached_tokens": 80}, Usage(100, 1, 80)),
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


@pytest.mark.parametrize("names", [("prompt", "completion"), ("input", "output")])
def test_what_the_tokens_are_of_is_read(names: tuple[str, str]) -> None:
    asked, answered = names
    usage = read_usage(
        {
            f"{asked}_tokens": 50,
            f"{answered}_tokens": 20,
            f"{asked}_tokens_details": {"audio_tokens": 30, "video_tokens": 3, "text_tokens": 17},
            f"{answered}_tokens_details": {
                "audio_tokens": 4,
                "image_tokens": 6,
                "accepted_prediction_tokens": 1,
                "rejected_prediction_tokens": 2,
            },
        }
    )
    assert usage is not None
    assert usage.prompt_parts == PromptParts(audio_tokens=30, video_tokens=3)
    assert usage.completion_parts == CompletionParts(4, 6, 1, 2)


def test_a_count_of_predicted_tokens_is_told_even_if_it_is_zero() -> None:
    told = {"audio_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": None}
    usage = read_usage({"prompt_tokens": 1, "completion_tokens": 1, "completion_tokens_details": told})
    assert usage is not None
    assert usage.completion_parts == CompletionParts(accepted_prediction_tokens=0)


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
    heard, early = PromptParts(audio_tokens=4), CompletionParts(1, 0, None, 2)
    late = Usage(9, 5, completion_parts=CompletionParts(3, 0, 0))
    merged = Usage(9, 5, prompt_parts=heard, completion_parts=CompletionParts(3, 0, 0, 2))
    assert merge_usage(Usage(9, 1, prompt_parts=heard, completion_parts=early), late) == merged


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 100, "prompt_tokens_details": {"cache_write_tokens": 60}},
        {"input_tokens": 40, "cache_creation_input_tokens": 60},
        {"prompt_tokens": 100, "cache_creation_input_tokens": 60},
    ],
)
def test_what_is_kept_for_an_hour_is_told_apart(usage: dict[str, Any]) -> None:
    """By Anthropic beside its sum, by litellm among the details."""
    kept = {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 40}
    usage |= {"output_tokens": 1} if "input_tokens" in usage else {"completion_tokens": 1}
    expected = Usage(100, 1, 0, 60, cache_write_1h_tokens=40)
    assert read_usage({**usage, "cache_creation": kept}) == expected
    details = {**usage.get("prompt_tokens_details", {}), "cache_creation_token_details": kept}
    assert read_usage({**usage, "prompt_tokens_details": details}) == expected
    assert read_usage(usage) == Usage(100, 1, 0, 60)
    assert merge_usage(expected, Usage(100, 9, 0, 60)) == Usage(100, 9, 0, 60, cache_write_1h_tokens=40)


@pytest.mark.parametrize(
    "odd", [MAX_TOKENS + 1, 2**63, 1e308, float("inf"), float("nan"), "²", "9" * 5000, "\ud800", True, [], {}]
)
def test_what_is_no_count_counts_nothing(odd: Any) -> None:
    """A row with a number beyond a database's would be refused, and its cost with it."""
    assert read_usage({"prompt_tokens": odd, "completion_tokens": 2}) == Usage(0, 2)
    details = {"prompt_tokens_details": {"cached_tokens": odd}, "\ud800": odd}
    assert read_usage({"prompt_tokens": 5, "completion_tokens": 2, **details}) == Usage(5, 2)
    assert read_usage({"total_tokens": odd}) is None


def test_the_largest_counts_fit_a_database() -> None:
    most = dict.fromkeys(
        ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"), MAX_TOKENS
    )
    usage = read_usage({**most, "output_tokens": MAX_TOKENS})
    assert usage is not None
    assert usage.prompt_tokens < 2**31
