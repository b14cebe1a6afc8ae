"""Regular expressions of answers: what their classes mean, and the words of their faults."""

from __future__ import annotations

import pytest
from llguidance import LLMatcher, LLTokenizer

from ionrouter.engine.grammar import Grammar, GrammarRefused, from_json_schema, from_regex


def allows(grammar: Grammar, text: str) -> bool:
    tokens = LLTokenizer("byte")
    matcher = LLMatcher(tokens, grammar.source, log_level=0)
    ids = tokens.tokenize_bytes(text.encode())
    return bool(matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids)) and bool(
        matcher.is_accepting()
    )


@pytest.mark.parametrize(
    ("pattern", "text", "is_allowed"),
    [
        (r"\d{3}-\d{4}", "555-0199", True),
        (r"\d+", "١٢", False),  # digits, but no number that anybody parses
        (r"\d+", "\U0001fbf8", False),
        (r"\D+", "١٢", True),
        (r"\w+", "ab_1", True),
        (r"\w+", "é", False),
        (r"\W", "é", True),
        (r"[\dA-F]+", "3A", True),
        (r"[\dA-F]+", "٣", False),
        (r"[^\d]+", "x٣", True),
        (r"[^\d]+", "3", False),
        (r"[\w.-]+", "a.-", True),
        (r"[\d-]+", "3-", True),
        (r"\\d+", r"\ddd", True),
        (r"\\\d", r"\5", True),
        (r"[\\d]+", r"\d", True),
        (r"\p{Nd}+", "١٢", True),  # who wants all says so
    ],
)
def test_digits_and_words_are_ascii_in_expressions_and_schemas(
    pattern: str, text: str, is_allowed: bool
) -> None:
    assert allows(from_regex(pattern), text) is is_allowed
    if "\\" not in text:
        assert (
            allows(from_json_schema({"type": "string", "pattern": f"^{pattern}$"}), f'"{text}"') is is_allowed
        )


def test_a_fault_is_told_in_the_words_of_the_expression() -> None:
    with pytest.raises(GrammarRefused, match=r"\(\\d") as refused:
        from_regex(r"(\d")
    assert "[0-9]" not in str(refused.value)
