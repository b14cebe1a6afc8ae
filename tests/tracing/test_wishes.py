"""The request's `trace` object: ids, names, metadata, and what is left out."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from ionrouter.tracing.wishes import MAX_CHARS, MAX_KEYS, NONE, wishes_of

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize("trace", [None, {}, "text", 3, ["x"]])
def test_nothing_is_wished_without_an_object(trace: Any) -> None:
    assert wishes_of(trace) is NONE


def test_ids_are_numbers_where_they_have_the_form_of_ids() -> None:
    found = wishes_of({"trace_id": TRACE_ID.upper(), "parent_span_id": "00f067aa0ba902b7"})
    assert (found.trace_id, found.span_id) == (int(TRACE_ID, 16), 0x00F067AA0BA902B7)
    name = uuid.UUID(TRACE_ID)
    assert wishes_of({"trace_id": str(name)}).trace_id == name.int


def test_other_text_is_a_trace_of_its_own() -> None:
    one, other = wishes_of({"trace_id": "a"}).trace_id, wishes_of({"trace_id": "b"}).trace_id
    assert one and other and one != other
    assert wishes_of({"trace_id": "a"}).trace_id == one < 2**128
    assert wishes_of({"trace_id": "0" * 32}).trace_id  # no id in itself, so it is a name


def test_a_parent_means_nothing_without_its_trace() -> None:
    assert wishes_of({"parent_span_id": "00f067aa0ba902b7"}).span_id is None
    assert wishes_of({"trace_id": "a", "parent_span_id": "xyz"}).span_id is None


def test_names_and_metadata() -> None:
    found = wishes_of(
        {"trace_name": "Job", "generation_name": "Draft", "flag": True, "n": 2**70, "none": None}
    )
    assert (found.request_name, found.attempt_name) == ("Job", "Draft")
    assert found.metadata == {"trace.metadata.flag": True, "trace.metadata.n": str(2**70)}
    assert wishes_of({"trace_name": "Job", "span_name": "Step"}).request_name == "Step"


def test_what_a_caller_can_make_us_keep_is_bounded() -> None:
    found = wishes_of({f"k{number}": "x" * 10_000 for number in range(500)} | {"span_name": "y" * 10_000})
    assert len(found.metadata) == MAX_KEYS
    assert {len(str(value)) for value in found.metadata.values()} == {MAX_CHARS}
    assert found.request_name is not None and len(found.request_name) == MAX_CHARS
