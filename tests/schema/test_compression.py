"""Middle-out: what goes, what stays, and that it fits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ionrouter.schema.compression import CUT, compressed, wants_compression
from ionrouter.schema.request import InferenceRequest
from tests.support.routes import request


def said(role: str, text: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **more}


def asked(*messages: dict[str, Any], **changes: Any) -> InferenceRequest:
    num = sum(len(m["content"] or "") for m in messages)
    return request(body={"messages": list(messages)}, prompt_tokens=-(-num // 4), **changes)


def test_what_fits_is_not_touched() -> None:
    whole = asked(said("user", "x" * 400))
    assert compressed(whole, 200) is whole


def test_turns_go_from_the_middle_and_the_ends_stay() -> None:
    talk = [said("user" if i % 2 == 0 else "assistant", f"{i}" * 400) for i in range(9)]
    long = asked(said("system", "Be brief."), *talk)
    shorter = compressed(long, 600)
    assert shorter is not None
    kept = [m["content"][0] for m in shorter.body["messages"]]
    assert kept[0] == "B" and kept[1] == "0" and kept[-1] == "8"
    assert len(kept) < 10 and kept == sorted(kept, key=lambda c: (c != "B", c))
    assert shorter.prompt_tokens <= 540 and "left out" in shorter.notes[0]
    assert len(long.body["messages"]) == 10 and long.notes == ()


def test_a_tool_call_goes_with_its_results() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    long = asked(
        said("user", "u" * 400),
        said("assistant", "", tool_calls=[call]),
        said("tool", "t" * 4000, tool_call_id="c"),
        said("user", "last"),
    )
    shorter = compressed(long, 300)
    assert shorter is not None
    assert [m["role"] for m in shorter.body["messages"]] == ["user", "user"]


def test_one_long_message_loses_its_middle() -> None:
    long = asked(said("user", "a" * 2000 + "b" * 2000))
    shorter = compressed(long, 500)
    assert shorter is not None
    text = shorter.body["messages"][0]["content"]
    assert text.startswith("aaa") and text.endswith("bbb") and CUT in text and len(text) <= 450 * 4
    parts = request(
        body={"messages": [{"role": "user", "content": [{"type": "text", "text": "a" * 4000}]}]},
        prompt_tokens=1000,
    )
    cut = compressed(parts, 500)
    assert cut is not None and len(cut.body["messages"][0]["content"][0]["text"]) <= 450 * 4


def test_a_prompt_of_plain_text_loses_its_middle() -> None:
    shorter = compressed(request(body={"prompt": "a" * 4000}, kind="completions", prompt_tokens=1000), 500)
    assert shorter is not None and len(shorter.body["prompt"]) <= 450 * 4


def test_there_must_be_room_beside_the_answer() -> None:
    assert compressed(asked(said("user", "x" * 4000), max_tokens=500), 500) is None
    assert compressed(request(body={"messages": []}, prompt_tokens=1000), 500) is None


@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.integers(0, 3000)), min_size=1),
    st.integers(100, 2000),
)
def test_whatever_is_left_fits_and_ends_with_the_last_turn(talk: list[tuple[str, int]], room: int) -> None:
    messages = [said(role, "x" * size, number=i) for i, (role, size) in enumerate(talk)]
    shorter = compressed(long := asked(*messages), room)
    if shorter is None or shorter is long:
        return
    left = shorter.body["messages"]
    assert sum(len(m["content"]) for m in left) <= room * 0.9 * 4 + 4
    assert left[-1]["number"] == len(talk) - 1
    assert [m["number"] for m in left] == sorted(m["number"] for m in left)


@pytest.mark.parametrize(
    ("fields", "wants"),
    [
        ({"plugins": [{"id": "context-compression"}]}, True),
        ({"plugins": [{"id": "context-compression", "enabled": False}], "transforms": ["middle-out"]}, False),
        ({"transforms": ["middle-out"]}, True),
        ({"transforms": []}, False),
        ({}, False),
    ],
)
def test_only_who_asks_gets_a_shorter_prompt(fields: dict[str, Any], wants: bool) -> None:
    assert wants_compression(request(gateway_fields=fields)) is wants
    assert not wants_compression(request(gateway_fields=fields, kind="embeddings"))
