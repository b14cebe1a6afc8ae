"""Where to go after each class of failure."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ionrouter.balancing.cost import Outlook, Score
from ionrouter.balancing.plan import Candidate
from ionrouter.balancing.walk import Walk
from ionrouter.errors import FailureClass, UpstreamError
from tests.support.routes import endpoint, route

OUTLOOK = Outlook(0.02, 0.005, 0.0, 0.0, 1.0, 50.0, 7.0, 1.0)
SCORE = Score(1.0, 0.0, 0.0, 1.0)


def candidate(name: str, model: str = "m", tier: int = 0, **changes: Any) -> Candidate:
    one = endpoint(name, model, **changes)
    return Candidate(one, route(model, one), tier, OUTLOOK, SCORE)


def after(failure: FailureClass, *candidates: Candidate, **error: Any) -> list[str]:
    """Ids left after the first candidate failed so."""
    walk = Walk.over(candidates, 6)
    first = walk.take()
    assert first is not None
    walk.fail(first, UpstreamError(failure, "x", **error))
    return [c.endpoint.id for c in walk.rest]


A, B, C = candidate("a"), candidate("b"), candidate("c")
OTHER = candidate("z", "other", tier=1)


@pytest.mark.parametrize(
    ("failure", "left"),
    [
        (FailureClass.TRANSIENT, ["b", "z"]),
        (FailureClass.DOMAIN, ["b", "z"]),
        (FailureClass.CAPACITY, ["b", "z"]),
        (FailureClass.REQUEST, []),
        (FailureClass.ENDPOINT_REQUEST, ["z"]),
        (FailureClass.CONTENT, ["z"]),
        (FailureClass.OWN_LIMIT, ["b", "z"]),
        (FailureClass.CLIENT_LEFT, []),
        (FailureClass.STOPPED, []),
    ],
)
def test_the_table_of_failure_classes(failure: FailureClass, left: list[str]) -> None:
    assert after(failure, A, B, OTHER) == left


@pytest.mark.parametrize("failure", [FailureClass.DOMAIN, FailureClass.CAPACITY])
def test_the_same_account_goes_last_but_before_another_model(failure: FailureClass) -> None:
    same = [candidate(name, domain="acme") for name in ("a", "b")]
    assert after(failure, *same, C, OTHER) == ["c", "b", "z"]


def test_a_transient_failure_says_nothing_about_the_account() -> None:
    same = [candidate(name, domain="acme") for name in ("a", "b")]
    assert after(FailureClass.TRANSIENT, *same, C) == ["b", "c"]


def test_endpoints_without_a_domain_share_none() -> None:
    assert after(FailureClass.DOMAIN, candidate("a", domain=""), candidate("b", domain=""), C) == ["b", "c"]


def test_merged_tiers_keep_their_order_after_a_domain_failure() -> None:
    mixed = [candidate("a"), OTHER, candidate("b", domain="a"), C]
    assert after(FailureClass.DOMAIN, *mixed) == ["z", "c", "b"]


def test_a_context_is_as_large_as_the_engine_inside_has_room_for() -> None:
    capped = replace(candidate("a", context_length=1_000_000), engine_length=8)
    ends = [capped, candidate("b", context_length=8), candidate("c", context_length=32)]
    left = after(FailureClass.ENDPOINT_REQUEST, *ends, code="context_length_exceeded")
    assert left == ["c"]


def test_a_prompt_too_long_here_may_fit_a_larger_context() -> None:
    ends = [candidate(n, context_length=length) for n, length in (("a", 8), ("b", 8), ("c", 32), ("d", None))]
    left = after(FailureClass.ENDPOINT_REQUEST, *ends, OTHER, code="context_length_exceeded")
    assert left == ["c", "z"]


def test_a_parameter_refused_here_may_be_declared_elsewhere() -> None:
    knows, silent = candidate("b", supported_parameters=frozenset({"tools"})), C
    assert after(FailureClass.ENDPOINT_REQUEST, A, knows, silent, param="tools[0].type") == ["b"]


def test_each_candidate_is_taken_once_and_attempts_are_limited() -> None:
    walk = Walk.over([A, B, C], max_attempts=2)
    assert walk.take() is A
    walk.num_attempts = 1
    assert walk.take() is B
    walk.num_attempts = 2
    assert walk.take() is None
    whole = Walk.over([A, B], max_attempts=6)
    assert [whole.take(), whole.take(), whole.take()] == [A, B, None]


def test_another_model_counts_only_if_it_could_still_be_tried() -> None:
    walk = Walk.over([A, OTHER], max_attempts=2)
    walk.take()
    assert walk.has_other_model(A)
    last = Walk.over([A, OTHER], max_attempts=1)
    last.take()
    assert not last.has_other_model(A)
    same = Walk.over([A, B], max_attempts=6)
    same.take()
    assert not same.has_other_model(A)


def test_two_models_with_the_same_upstream_try_it_once() -> None:
    same = candidate("a-again", "other", tier=1, identity="a")
    assert after(FailureClass.TRANSIENT, A, same, OTHER) == ["z"]
