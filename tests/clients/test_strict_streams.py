"""Streams: whatever defect the upstream's has, none that breaks a stock client is in ours."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import strict_shapes
from tests.support.defects import GONE, PIECES, STREAM_DEFECTS, USAGE, C, Defect, piece, spoiled
from tests.support.server import Server
from tests.support.sse import chunks, content, data_lines
from tests.support.upstream import DONE, Cut, Script, Upstream, chunked, event, sse

Serving = tuple[Server, Upstream]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def played(serving: Serving, script: Script) -> list[dict[str, Any]]:
    server, up = serving
    up.enqueue(script)
    status, text = server.chat(stream=True, tools=TOOLS)
    assert status == 200, text
    found = chunks(text)
    strict_shapes.assert_stream(found)
    if "error" not in found[-1]:
        assert data_lines(text)[-1] == "[DONE]"
        assert content(text) == "hi there"
    return found


def arguments_of(found: list[dict[str, Any]]) -> str:
    parts = [c for chunk in found for ch in chunk["choices"] for c in ch["delta"].get("tool_calls", ())]
    return "".join(part["function"].get("arguments", "") for part in parts)


@pytest.mark.parametrize("name", STREAM_DEFECTS)
def test_a_stream_has_no_defect_of_its_upstream(serving: Serving, name: str) -> None:
    found = played(serving, sse([spoiled(piece, STREAM_DEFECTS[name]) for piece in PIECES]))
    assert arguments_of(found) == "{}"
    assert {(chunk["provider"], chunk["model"]) for chunk in found} == {("Up", "m")}


@MANY
@given(names=st.lists(st.sets(st.sampled_from(sorted(STREAM_DEFECTS)), max_size=8), min_size=7, max_size=7))
def test_a_stream_has_none_of_many_defects(serving: Serving, names: list[set[str]]) -> None:
    """Each chunk has its own."""
    spoilt = [
        spoiled(piece, *(STREAM_DEFECTS[name] for name in sorted(some)))
        for piece, some in zip(PIECES, names, strict=True)
    ]
    played(serving, sse(spoilt))


def early(defect: Defect) -> list[dict[str, Any]]:
    """The stream with a defect in every chunk but the one that finishes."""
    return [p if p is PIECES[5] else spoiled(p, defect) for p in PIECES]


STREAMS: dict[str, Script] = {
    "no finish_reason until the end": sse(early({(*C, "finish_reason"): GONE})),
    "an empty finish_reason until the end": sse(early({(*C, "finish_reason"): ""})),
    "an unknown finish_reason": sse([*PIECES[:5], piece({}, "eos"), PIECES[6]]),
    "usage null until the end": sse(early({("usage",): None})[:6] + PIECES[6:]),
    "comments": sse([b": PROCESSING\n\n", *PIECES[:3], b": PROCESSING\n\n", *PIECES[3:]]),
    "event names and retry times": sse([b"retry: 10\n\n", *PIECES[:3], b"event: message\n", *PIECES[3:]]),
    "no [DONE]": sse(PIECES, done=False),
    "no usage chunk": sse(PIECES[:6]),
    "usage with the finish": sse([*PIECES[:5], {**PIECES[5], "usage": USAGE}]),
    "choices null with the usage": sse([*PIECES[:6], {**PIECES[6], "choices": None}]),
    "no choices with the usage": sse([*PIECES[:6], spoiled(PIECES[6], {("choices",): GONE})]),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_put_right(serving: Serving, name: str) -> None:
    found = played(serving, STREAMS[name])
    reasons = [choice["finish_reason"] for chunk in found for choice in chunk["choices"]]
    assert [reason for reason in reasons if reason] == ["tool_calls"]
    assert found[-1]["usage"]["total_tokens"] > 0


def broken(code: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": "lost it"}}


BREAKS: dict[str, list[Any]] = {
    "an integer code in a full chunk": [{**piece({"content": ""}, "error"), **broken(502)}],
    "a word as its code in a full chunk": [{**piece({"content": ""}, "error"), **broken("server_error")}],
    "no code in a full chunk": [{**piece({"content": ""}, "error"), "error": {"message": "lost it"}}],
    "a bare error": [broken(503)],
    "a bare error with a word as its code": [broken("overloaded")],
    "a bare error that is a text": [{"error": "lost it"}],
    "a named event": [b"event: error\n" + event(broken(500))],
}


@pytest.mark.parametrize("name", BREAKS)
def test_an_error_in_a_stream_is_a_full_chunk_with_an_integer_code(serving: Serving, name: str) -> None:
    found = played(serving, sse([*PIECES[:3], *BREAKS[name]]))
    assert "lost it" in found[-1]["error"]["message"]
    assert type(found[-1]["error"]["code"]) is int
    assert "".join(c["delta"].get("content") or "" for chunk in found for c in chunk["choices"]) == "hi there"


def test_a_cut_is_a_full_error_chunk_too(serving: Serving) -> None:
    found = played(serving, chunked([event(p) for p in PIECES[:3]] + [DONE[:4]], end=False).then(Cut()))
    assert found[-1]["error"]["code"] == 502
