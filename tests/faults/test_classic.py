"""The sixteen classic faults, with one primary and one fallback, over every door, streaming and whole.

What the client sees, who answered, what it cost, what the record tells, what the primary's health became,
and that a half-spoken connection is not left open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from tests.faults.arena import CASES, DOORS, Arena, Case, Seen, arena, mode
from tests.faults.scorecard import HEADINGS, PAGE, case_rows, row, rows_in
from tests.support.pages import text_of

pytestmark = pytest.mark.xdist_group("hosted")  # one litellm worker: 300 MB and 10 s

# USD: 5 prompt and 2 completion tokens, at 1 and 2 dollars a million, or at 3000 and 4000.
COST = {"a": 5 * 1e-6 + 2 * 2e-6, "b": 5 * 3000e-6 + 2 * 4000e-6}


@dataclass(frozen=True)
class Want:
    """Who answers ("a", "b", or "" for nobody), how the primary failed, and how it stands afterwards."""

    served: str
    failure: str | None = "transient"
    error: int | None = None  # in the answer; with `served` "a" after the first words
    afterwards: str = "in use"
    status: int = -2  # in the catalogue
    hangs_up: bool = False  # the primary had not ended its answer: the router must leave it
    billed: tuple[str, ...] = ()  # through which doors a failed primary is known to have begun an answer


FALLS_BACK = Want("b")
LEAVES = Want("b", hangs_up=True)
CUT = replace(LEAVES, billed=DOORS)
SPOILED = replace(FALLS_BACK, billed=DOORS)
LEFT = replace(
    LEAVES, billed=("openai", "carried")
)  # litellm tells nothing of an answer that it is left with
BREAKS_502 = Want("a", error=502, hangs_up=True)
BREAKS_504 = Want("a", error=504, hangs_up=True)
SERVES = Want("a", None, status=0)

# Fault -> (streaming, whole).
WANTS: dict[str, tuple[Want, Want]] = {
    "429 with Retry-After": (Want("b", "capacity", afterwards="retry_after", status=0),) * 2,
    "persistent 503": (Want("b", afterwards="breaker_open", status=-5),) * 2,
    "reset before headers": (FALLS_BACK, FALLS_BACK),
    "silence": (LEAVES, LEAVES),
    "slow first token": (LEAVES, SERVES),
    "cut stream": (BREAKS_502, CUT),
    "stalled stream": (BREAKS_504, LEFT),
    "malformed event": (LEAVES, SPOILED),
    "malformed event after text": (BREAKS_502, SPOILED),
    "missing [DONE]": (SERVES, SERVES),
    "context overflow": (Want("b", "endpoint_request", status=0),) * 2,
    "content filter": (SERVES, SERVES),
    "usage and cost of the fallback": (FALLS_BACK, FALLS_BACK),
    "error inside 200": (LEAVES, FALLS_BACK),
    "error inside 200 after text": (Want("a", error=503, hangs_up=True), FALLS_BACK),
    "empty 200": (FALLS_BACK, FALLS_BACK),
    "slow trickle": (BREAKS_504, LEFT),
}
FLAPPING = [case for case in CASES if case.fault.name == "flapping primary"]
STEADY = [case for case in CASES if case.fault.name in WANTS]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with arena(tmp_path_factory.mktemp("faults")) as found:
        yield found


def check_answer(case: Case, want: Want, seen: Seen) -> None:
    if not want.served:
        assert (seen.status, seen.is_stream, seen.error and seen.error["code"]) == (504, False, want.error)
        return
    assert (seen.status, seen.is_stream) == (200, case.stream)
    served = case.primary if want.served == "a" else case.fallback
    assert seen.route.startswith(f"{served}; ")
    if want.error is None:
        assert (seen.error, seen.is_done) == (None, case.stream)
        return
    assert seen.error is not None
    assert (seen.error["code"], seen.is_done) == (want.error, False)
    assert seen.words and "from b" not in seen.words  # never two answers in one


def check_bill(case: Case, want: Want, seen: Seen) -> None:
    """A good answer costs what its own endpoint charges; a broken one what had been written."""
    record = seen.generation
    *failed, last = record["provider_responses"]
    wasted = sum(a["cost"] for a in failed)
    assert (wasted > 0) == (case.door in want.billed)
    if want.error is None and seen.words:
        assert (record["tokens_prompt"], record["tokens_completion"]) == (5, 2)
        assert last["cost"] == pytest.approx(COST[want.served])
        assert (seen.usage["prompt_tokens"], seen.usage["completion_tokens"]) == (5, 2)
        assert seen.usage["cost"] == pytest.approx(COST[want.served] + wasted)
    assert record["total_cost"] == pytest.approx(sum(a["cost"] for a in record["provider_responses"]))
    assert (record["total_cost"] > 0) == bool(want.served or want.billed)


def check_record(case: Case, want: Want, seen: Seen) -> None:
    record = seen.generation
    attempts = [(a["endpoint_id"], a["failure"]) for a in record["provider_responses"]]
    assert attempts[0] == (case.primary, want.failure)
    assert attempts[1:] == ([(case.fallback, None)] if want.served == "b" else [])
    assert record["state"] == ("failed" if want.error else "finished")
    assert record["status"] == (want.error or 200)
    assert record["provider_name"] == (f"{case.door}-{want.served}" if want.served else None)


def name_of(case: Case) -> str:
    return case.model


@pytest.mark.parametrize("case", STEADY, ids=name_of)
def test_a_classic_fault_has_its_defined_end(place: Arena, case: Case) -> None:
    want = WANTS[case.fault.name][0 if case.stream else 1]
    num_before = len(place.a.requests)
    seen = place.play(case)
    for one in seen:
        check_answer(case, want, one)
        check_bill(case, want, one)
        check_record(case, want, one)
    asked = place.a.requests[num_before:]
    assert len(asked) == len(seen)  # the primary is asked once a request: fallback is the retry
    assert {r.json()["model"] for r in asked} == {case.model}
    assert not want.hangs_up or all(request.wait_closed() for request in asked)
    assert (place.afterwards(case), place.published_status(case)) == (want.afterwards, want.status)
    assert row(case, seen, want.afterwards) in text_of(PAGE).splitlines(), "python -m tests.faults.scorecard"
    if want.afterwards != "in use":
        check_the_next_request(place, case)


def check_the_next_request(place: Arena, case: Case) -> None:
    """A primary that is out is not asked: the fallback is the first pick."""
    num_before = len(place.a.requests)
    seen = place.ask(case)
    assert (seen.status, seen.words, len(place.a.requests)) == (200, "from b", num_before)
    assert [a["endpoint_id"] for a in seen.generation["provider_responses"]] == [case.fallback]


@pytest.mark.parametrize("case", FLAPPING, ids=name_of)
def test_a_flapping_primary_is_used_whenever_it_works(place: Arena, case: Case) -> None:
    seen = place.play(case)
    assert [one.words for one in seen] == ["from b", "from a"] * 2
    for one, want in zip(seen, [FALLS_BACK, SERVES] * 2, strict=True):
        check_answer(case, want, one)
        check_bill(case, want, one)
        check_record(case, want, one)
    assert (place.afterwards(case), place.published_status(case)) == ("in use", -2)
    assert row(case, seen, "in use") in text_of(PAGE).splitlines(), "run: python -m tests.faults.scorecard"


def test_every_fault_has_its_expectation() -> None:
    assert len(STEADY) + len(FLAPPING) == len(CASES)


def test_the_scorecard_has_these_cases_and_no_others() -> None:
    names = [tuple(line.strip("| ").split(" | ")[:3]) for line in rows_in(text_of(PAGE), "faults", HEADINGS)]
    assert names == [(case.fault.name, mode(case.stream), case.door) for case in CASES]


def test_the_list_of_public_cases_is_fresh() -> None:
    found = rows_in(text_of(PAGE), "cases", ("case", "tests"))
    assert found == case_rows(), "run: python -m tests.faults.scorecard"
