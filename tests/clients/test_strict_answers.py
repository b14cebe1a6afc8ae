"""Whole answers: whatever defect the upstream's has, none that breaks a stock client is in ours."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import strict_shapes
from tests.support.defects import USAGE, WHOLE, WHOLE_DEFECTS, spoiled
from tests.support.server import Server
from tests.support.upstream import Script, Upstream, response

Serving = tuple[Server, Upstream]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def whole(serving: Serving, script: Script) -> Any:
    server, up = serving
    up.enqueue(script)
    status, body = server.chat(tools=TOOLS)
    assert status == 200, body
    strict_shapes.assert_whole(body)
    assert body["choices"][0]["message"]["content"] == "hi there"
    assert (body["provider"], body["model"]) == ("Up", "m")
    return body


@pytest.mark.parametrize("name", WHOLE_DEFECTS)
def test_a_whole_answer_has_no_defect_of_its_upstream(serving: Serving, name: str) -> None:
    body = whole(serving, response(200, json.dumps(spoiled(WHOLE, WHOLE_DEFECTS[name]))))
    if name != "tool calls null":
        (call,) = body["choices"][0]["message"]["tool_calls"]
        assert (call["function"]["name"], call["function"]["arguments"]) == ("weather", "{}")


MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@MANY
@given(names=st.sets(st.sampled_from(sorted(WHOLE_DEFECTS)), max_size=12))
def test_a_whole_answer_has_none_of_many_defects(serving: Serving, names: set[str]) -> None:
    defects = [WHOLE_DEFECTS[name] for name in sorted(names)]
    whole(serving, response(200, json.dumps(spoiled(WHOLE, *defects))))


@pytest.mark.parametrize(
    "script",
    [
        response(200, " \n\n" + json.dumps(WHOLE)),
        response(200, json.dumps(WHOLE), content_type="text/plain"),
        response(200, json.dumps(WHOLE), content_type=None),
    ],
)
def test_padding_and_content_types_do_not_pass(serving: Serving, script: Script) -> None:
    whole(serving, script)


GOOD = {
    **WHOLE,
    "id": "gen-1",
    "usage": {
        **USAGE,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    },
}
HARMLESS = {"system_fingerprint null", "tool calls null", "tool call id null", "error null"}
BREAKING = sorted(set(WHOLE_DEFECTS) - HARMLESS)


def test_the_check_accepts_the_complete_shape() -> None:
    strict_shapes.assert_whole(GOOD)


@pytest.mark.parametrize("name", BREAKING)
def test_the_check_itself_sees_each_defect(name: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        strict_shapes.assert_whole(spoiled(GOOD, WHOLE_DEFECTS[name]))
