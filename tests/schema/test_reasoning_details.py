"""Thoughts come back as the blocks they were: a signature on its text, what is encrypted untouched."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ionrouter.schema.reasoning_details import ReasoningDetails
from tests.support.deltas import in_pieces, thoughts

TEXT, SUMMARY, ENCRYPTED = ({"type": f"reasoning.{kind}"} for kind in ("text", "summary", "encrypted"))


def joined(*deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    details = ReasoningDetails()
    for delta in deltas:
        details.add(delta)
    return details.joined()


@given(st.data())
def test_blocks_cut_anywhere_are_whole_again(data: st.DataObject) -> None:
    blocks = data.draw(thoughts())
    chunks = data.draw(in_pieces(blocks))
    assert joined(*[chunk.choices[0].delta["reasoning_details"] for chunk in chunks]) == blocks


@given(thoughts())
def test_blocks_that_come_at_once_stay_as_they_are(blocks: list[dict[str, Any]]) -> None:
    assert joined(blocks) == blocks


def test_a_signature_belongs_to_the_text_before_it() -> None:
    claude = {**TEXT, "index": 0, "format": "anthropic-claude-v1"}
    pieces = ({**claude, "text": "A"}, {**claude, "text": "B"}, {**claude, "signature": "SIG"})
    assert joined(*[[piece] for piece in pieces]) == [{**claude, "text": "AB", "signature": "SIG"}]


@pytest.mark.parametrize(
    ("pieces", "blocks"),
    [
        ([{"text": "A"}, {"text": "B"}], [{"text": "AB"}]),
        ([{"text": "A", "index": 0}, {"text": "B"}], [{"text": "AB", "index": 0}]),
        ([{"text": "A"}, {"text": "B", "index": 3, "id": "i"}], [{"text": "AB", "index": 3, "id": "i"}]),
        ([{"text": "A", "index": 0}, {"text": "B", "index": 1}], None),
        ([{"text": "A", "id": "a", "index": 0}, {"text": "B", "id": "b", "index": 0}], None),
        ([{"text": "A", "signature": "S"}, {"text": "B"}], None),
        ([{"text": "A", "signature": "S", "index": 0}, {"text": "B", "index": 0}], None),
        ([{"text": "A", "signature": ""}, {"signature": "S"}], [{"text": "A", "signature": "S"}]),
        ([{"text": "A", "signature": None}, {"text": "B"}], [{"text": "AB", "signature": None}]),
        (
            [{"text": "A", "format": "unknown"}, {"signature": "S", "format": "anthropic-claude-v1"}],
            [{"text": "A", "signature": "S", "format": "anthropic-claude-v1"}],
        ),
        (
            [{"text": "A", "format": "google-gemini-v1"}, {"text": "B", "format": "unknown"}],
            [{"text": "AB", "format": "google-gemini-v1"}],
        ),
    ],
)
def test_what_goes_on_with_a_text_and_what_does_not(
    pieces: list[dict[str, Any]], blocks: list[dict[str, Any]] | None
) -> None:
    expected = pieces if blocks is None else blocks
    assert joined(*[[{**TEXT, **piece}] for piece in pieces]) == [{**TEXT, **block} for block in expected]


@pytest.mark.parametrize(
    ("first", "second", "data"),
    [
        ({"id": "a"}, {"id": "a"}, ["xy"]),
        ({"index": 1}, {"index": 1}, ["xy"]),
        ({"id": "a", "index": 1}, {"index": 1}, ["xy"]),
        ({"id": "a", "index": 1}, {"id": "b", "index": 1}, ["x", "y"]),
        ({"id": "a"}, {}, ["x", "y"]),
        ({}, {}, ["x", "y"]),
    ],
)
def test_encrypted_data_is_joined_only_where_it_is_named_the_same(
    first: dict[str, Any], second: dict[str, Any], data: list[str]
) -> None:
    got = joined([{**ENCRYPTED, "data": "x", **first}], [{**ENCRYPTED, "data": "y", **second}])
    assert [detail["data"] for detail in got] == data


def test_types_do_not_mix_and_unknown_ones_come_whole() -> None:
    call = {"type": "reasoning.server_tool_call", "tool_name": "f", "arguments": "{}", "index": 0}
    details = [{**SUMMARY, "summary": "s", "index": 0}, {**TEXT, "text": "t", "index": 0}, call, call]
    assert joined(*[[detail] for detail in details]) == details


def test_two_in_one_delta_without_an_index_are_two() -> None:
    one, two = {**TEXT, "text": "A"}, {**TEXT, "text": "B"}
    assert joined([one, two]) == [one, two]
    assert joined([one], [two, one]) == [{**TEXT, "text": "AB"}, one]
