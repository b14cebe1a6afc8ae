"""What a request may cost at most: bounds by the caller, the endpoint, the context."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replace_fields

from ionrouter.balancing.prompt_bound import most_prompt_tokens
from ionrouter.balancing.worst_case import UNBOUNDED_TOKENS, max_completion, worst_case
from ionrouter.routing.table import Price, Provider
from tests.support.routes import endpoint, price, request


@pytest.mark.parametrize(
    ("bounds", "max_tokens", "expected"),
    [
        ({}, None, UNBOUNDED_TOKENS),
        ({}, 100_000, 100_000),
        ({"context_length": 1010}, None, 1010),
        ({"context_length": 1010}, 100_000, 1010),
        ({"context_length": 1010, "max_completion_tokens": 64}, None, 64),
        ({"context_length": 1010, "max_completion_tokens": 64}, 8, 8),
    ],
)
def test_the_tightest_bound_counts(bounds: dict[str, Any], max_tokens: int | None, expected: int) -> None:
    assert max_completion(endpoint("a", **bounds), request(max_tokens=max_tokens)) == expected


def test_the_dearest_candidate_counts() -> None:
    cheap, dear = endpoint("a", price=price(1, 2)), endpoint("b", price=price(10, 20, request=0.5))
    prompt = most_prompt_tokens(request())
    assert worst_case([cheap, dear], request(max_tokens=100)) == pytest.approx(prompt / 1e5 + 0.002 + 0.5)
    assert worst_case([cheap], request(max_tokens=100)) == pytest.approx(prompt / 1e6 + 0.0002)
    assert worst_case([], request()) == 0.0


@pytest.mark.parametrize(
    ("context", "most", "prices", "expected"),
    [
        (8192, 100, (1.0, 2.0), 1064 + 200),  # both fit
        (1100, 100, (1.0, 2.0), 1000 + 200),  # the prompt is shorter, or there would be no room to answer
        (1100, 100, (2.0, 1.0), 2 * 1064 + 36),  # or it fills the context
        (500, None, (1.0, 2.0), 1000),  # no prompt to speak of and all the answer
        (500, None, (2.0, 1.0), 1000),
    ],
)
def test_prompt_and_answer_share_the_context_the_dearest_way(
    context: int, most: int | None, prices: tuple[float, float], expected: float
) -> None:
    one = endpoint("a", price=price(*(1e6 * each for each in prices)), context_length=context)
    asked = request(body={"prompt": "x" * 1000}, max_tokens=most, kind="completions")
    assert worst_case([one], asked) == expected


@given(
    st.integers(1, 300),
    st.integers(0, 300),
    st.integers(1, 300) | st.none(),
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_no_prompt_within_the_bound_costs_more(
    context: int, length: int, most: int | None, prices: tuple[int, int]
) -> None:
    one = endpoint("a", price=price(*(1e6 * each for each in prices)), context_length=context)
    asked = request(body={"prompt": "x" * length}, max_tokens=most, kind="completions")
    longest = min(most_prompt_tokens(asked), context)
    cap = max_completion(one, asked)
    dearest = max(n * prices[0] + min(cap, context - n) * prices[1] for n in range(longest + 1))
    assert worst_case([one], asked) == pytest.approx(dearest)


@pytest.mark.parametrize(
    ("body", "factor"),
    [
        ({"n": 3}, 3),
        ({"n": 2, "best_of": 5}, 5),
        ({"prompt": ["a", "b"]}, 2),
        ({"prompt": ["a", "b"], "n": 3}, 6),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1], [2]], "n": 2}, 4),
    ],
)
def test_every_answer_that_is_computed_counts(body: dict[str, Any], factor: int) -> None:
    one = endpoint("a", price=price(0, 1_000_000))
    assert worst_case([one], request(body=body, max_tokens=1)) == factor


@pytest.mark.parametrize(
    ("body", "num_out"),
    [
        ({"n_predict": 900}, 900),
        ({"num_predict": 900, "max_output_tokens": 700}, 900),
        ({"max_tokens": 5, "n_predict": 3}, 5),
        ({"n_predict": -1}, UNBOUNDED_TOKENS),  # llama.cpp's word for no limit
        ({"max_new_tokens": "900"}, UNBOUNDED_TOKENS),  # who knows what it is taken for
        ({"generationConfig": {"maxOutputTokens": 900, "candidateCount": 2}}, 1800),
        ({"options": {"num_predict": 900}}, 900),
        ({"num_return_sequences": 4}, 20),
        ({"min_p": 0.1, "options": {"seed": 1}, "parameters": "x"}, 5),
    ],
)
def test_lengths_and_counts_under_other_names_count_where_they_are_sent(
    body: dict[str, Any], num_out: int
) -> None:
    prices = price(0, 1_000_000)
    near = Provider(slug="near", name="Near", type="openai", forward_unknown=True)
    asked = request(body=body, max_tokens=5)
    assert worst_case([endpoint("a", provider=near, price=prices)], asked) == num_out
    declaring = endpoint("b", price=prices, supported_parameters=frozenset(body))
    assert worst_case([declaring], asked) == num_out
    assert worst_case([endpoint("c", price=prices)], asked) == 5


def test_thoughts_asked_for_by_their_number_come_beside_an_answer_without_a_limit() -> None:
    asked = request(body={"reasoning": {"max_tokens": 60_000}})
    assert max_completion(endpoint("a"), asked) == UNBOUNDED_TOKENS + 60_000
    assert max_completion(endpoint("a", max_completion_tokens=64_000), asked) == 64_000


def test_a_prompt_may_be_written_to_a_cache_and_cost_more() -> None:
    one = endpoint("a", price=price(1_000_000, 0, cache_write=1_250_000, cache_read=100_000))
    asked = request(max_tokens=1)
    assert worst_case([one], asked) == 1.25 * most_prompt_tokens(asked)


@pytest.mark.parametrize(
    ("query", "documents", "units"),
    [
        ("q", ["d"] * 100, 1),
        ("q", ["d"] * 101, 2),
        ("q", ["d" * 49_999], 1),
        ("q", ["d" * 50_000], 2),  # a hundred and one pieces
        ("q" * 501, ["d"] * 100, 2),
        ("", [""], 1),
    ],
)
def test_a_ranking_is_billed_by_units_of_a_hundred_documents(
    query: str, documents: list[str], units: int
) -> None:
    asked = request(kind="rerank", body={"query": query, "documents": documents})
    assert worst_case([endpoint("a", price=price(0, 0, request=0.5))], asked) == 0.5 * units


def test_a_prompt_that_may_be_long_reserves_for_it() -> None:
    long = price(1_000_000, 8_000_000)
    prices = replace(price(1_000_000, 2_000_000), long=long, long_above=1000)
    asked = request(body={"prompt": "x" * 2000}, max_tokens=100, kind="completions")
    # 1064 of 1100 tokens could be the prompt's, and with 1001 the answer is dear and still has 99.
    assert worst_case([endpoint("a", price=prices, context_length=1100)], asked) == 1001 + 8 * 99
    assert worst_case([endpoint("a", price=prices, context_length=1000)], asked) == 900 + 2 * 100
    assert worst_case([endpoint("a", price=prices)], asked) == most_prompt_tokens(asked) + 8 * 100


def test_embeddings_have_no_completion() -> None:
    assert max_completion(endpoint("a"), request(kind="embeddings")) == 0


def test_endpoints_asked_beside_each_other_add_up() -> None:
    endpoints = [endpoint(str(n), price=price(0, n)) for n in (1, 5, 3)]
    asked = request(max_tokens=1_000_000)
    assert worst_case(endpoints, asked, 2) == pytest.approx(8)
    assert worst_case(endpoints[:1], asked, 2) == pytest.approx(1)


def usd_per_token(asked: Any, **said: float) -> float:
    """What is reserved at prices of 1 USD, for each prompt token where answers are free, and the reverse."""
    one = endpoint("a", price=Price(1.0).changed(said))
    return worst_case([one], replace_fields(asked, max_tokens=0)) / most_prompt_tokens(asked)


def test_parts_are_reserved_for_where_a_request_may_bring_them_about() -> None:
    plain = request()
    spoken = request(input_modalities=frozenset({"text", "audio"}))
    kept = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    lasting = request(body={"messages": [{"role": "user", "content": [kept]}]})
    said = {"audio": 5.0, "cache_write": 2.0, "cache_write_1h": 4.0}
    assert usd_per_token(plain, **said) == pytest.approx(2)
    assert usd_per_token(spoken, **said) == pytest.approx(5)
    assert usd_per_token(lasting, **said) == pytest.approx(4)


def test_the_dearest_part_of_a_completion_is_reserved() -> None:
    one = endpoint("a", price=Price(0.0, 1.0).changed({"reasoning": 3.0, "audio_output": 7.0}))
    assert worst_case([one], request(max_tokens=10)) == pytest.approx(70)


@pytest.mark.parametrize(
    ("tier", "usd"), [(None, 10), ("auto", 10), ("flex", 10), ("priority", 20), ("fast", 20)]
)
def test_a_level_of_service_that_is_asked_for_is_reserved(tier: str | None, usd: float) -> None:
    """Cheaper ones are not counted on: an answer may tell that it was served as usual."""
    price = Price(0.0, 1.0, tiers=(("flex", Price(0.0, 0.5)), ("priority", Price(0.0, 2.0))))
    body = {**request().body, **({"service_tier": tier} if tier else {})}
    one = endpoint("a", price=price)
    assert worst_case([one], request(body=body, service_tier=tier, max_tokens=10)) == pytest.approx(usd)
