"""/messages and /responses: whatever defect the upstream's chat has, none is in their answers and events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.clients.test_strict_errors import FAILURES
from tests.clients.test_strict_streams import BREAKS, STREAMS
from tests.support import strict_surfaces
from tests.support.defects import PIECES, STREAM_DEFECTS, WHOLE, WHOLE_DEFECTS, spoiled
from tests.support.server import Server
from tests.support.strict_shapes import assert_fits, assert_refusal
from tests.support.upstream import Cut, Script, Upstream, chunked, error, event, response, sse

Serving = tuple[Server, Upstream]
MANY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SCHEMA = {"type": "object"}
MESSAGES = {
    "model": "m",
    "max_tokens": 99,
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"name": "weather", "input_schema": SCHEMA}],
}
RESPONSES = {
    "model": "m",
    "input": "hi",
    "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}],
}


def asked(serving: Serving, path: str, body: dict[str, Any], script: Script) -> tuple[int, Any]:
    server, up = serving
    up.enqueue(script)
    return server.post(f"/api/v1/{path}", body)


def told(text: str) -> list[dict[str, Any]]:
    """The events of a stream; where they are named, each by its type."""
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        *names, data = block.split("\n")
        if data == "data: [DONE]" or block.startswith(":"):
            continue
        found.append(json.loads(data.removeprefix("data: ")))
        assert names in ([], [f"event: {found[-1]['type']}"])
    return found


def stream(serving: Serving, path: str, body: dict[str, Any], script: Script) -> list[dict[str, Any]]:
    status, text = asked(serving, path, {**body, "stream": True}, script)
    assert status == 200, text
    return told(text)


def check_messages(serving: Serving, script: Script) -> None:
    events = stream(serving, "messages", MESSAGES, script)
    text, tools = strict_surfaces.assert_messages(events)
    assert text == "hi there"
    assert [(tool["name"], tool["input"]) for tool in tools] == [("weather", {})]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def check_responses(serving: Serving, script: Script) -> None:
    last = strict_surfaces.assert_responses(stream(serving, "responses", RESPONSES, script))
    message, call = last["output"]
    assert message["content"][0]["text"] == "hi there"
    assert (call["name"], call["arguments"]) == ("weather", "{}")


CHECKS = {"messages": check_messages, "responses": check_responses}


@pytest.mark.parametrize("surface", CHECKS)
@pytest.mark.parametrize("name", STREAM_DEFECTS)
def test_no_event_has_a_defect_of_the_upstreams_stream(serving: Serving, name: str, surface: str) -> None:
    CHECKS[surface](serving, sse([spoiled(piece, STREAM_DEFECTS[name]) for piece in PIECES]))


@pytest.mark.parametrize("surface", CHECKS)
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_put_right(serving: Serving, name: str, surface: str) -> None:
    CHECKS[surface](serving, STREAMS[name])


@MANY
@given(
    names=st.lists(st.sets(st.sampled_from(sorted(STREAM_DEFECTS)), max_size=8), min_size=7, max_size=7),
    surface=st.sampled_from(sorted(CHECKS)),
)
def test_no_event_has_one_of_many_defects(serving: Serving, names: list[set[str]], surface: str) -> None:
    """Each chunk has its own."""
    spoilt = [
        spoiled(piece, *(STREAM_DEFECTS[name] for name in sorted(some)))
        for piece, some in zip(PIECES, names, strict=True)
    ]
    CHECKS[surface](serving, sse(spoilt))


@pytest.mark.parametrize("name", WHOLE_DEFECTS)
def test_a_whole_message_and_response_have_no_defect_of_the_upstreams(serving: Serving, name: str) -> None:
    script = response(200, json.dumps(spoiled(WHOLE, WHOLE_DEFECTS[name])))
    status, message = asked(serving, "messages", MESSAGES, script)
    assert status == 200, message
    assert_fits(strict_surfaces.WHOLE_MESSAGE, message)
    status, answer = asked(serving, "responses", RESPONSES, script)
    assert status == 200, answer
    assert_fits(strict_surfaces.WHOLE_RESPONSE, answer)
    assert type(answer["created_at"]) is int
    assert message["content"][0]["text"] == answer["output_text"] == "hi there"
    if name != "tool calls null":
        assert (message["content"][1]["name"], message["content"][1]["input"]) == ("weather", {})
        assert (answer["output"][1]["name"], answer["output"][1]["arguments"]) == ("weather", "{}")


CUT = chunked([event(piece) for piece in PIECES[:3]], end=False).then(Cut())


@pytest.mark.parametrize("name", [*BREAKS, "a cut"])
def test_a_broken_stream_ends_with_one_event_in_the_surfaces_shape(serving: Serving, name: str) -> None:
    script = CUT if name == "a cut" else sse([*PIECES[:3], *BREAKS[name]])
    text, _ = strict_surfaces.assert_messages(events := stream(serving, "messages", MESSAGES, script))
    assert (events[-1]["type"], text) == ("error", "hi there")
    last = strict_surfaces.assert_responses(stream(serving, "responses", RESPONSES, script))
    assert last["status"] == "failed"
    assert last["output"][0]["content"][0]["text"] == "hi there"
    if name != "a cut":
        assert "lost it" in events[-1]["error"]["message"]
        assert "lost it" in last["error"]["message"]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("body", ['{"detail": "sorry"}', "Bad Gateway", "", '{"error": {"code": "x"}}'])
def test_a_refusal_is_in_the_surfaces_envelope(serving: Serving, body: str, is_stream: bool) -> None:
    status, refused = asked(serving, "messages", {**MESSAGES, "stream": is_stream}, error(503, body))
    assert status == 503
    assert_fits(strict_surfaces.MESSAGES_ERROR, refused)
    status, refused = asked(serving, "responses", {**RESPONSES, "stream": is_stream}, error(503, body))
    assert status == 503
    assert_refusal(status, refused)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("name", FAILURES)
def test_an_error_in_a_200_becomes_a_real_status(serving: Serving, name: str, is_stream: bool) -> None:
    failure = FAILURES[name]
    is_bare = "choices" not in failure
    script = sse([failure]) if is_stream and is_bare else response(200, json.dumps(failure))
    status, refused = asked(serving, "messages", {**MESSAGES, "stream": is_stream}, script)
    assert status in (502, 503)
    assert_fits(strict_surfaces.MESSAGES_ERROR, refused)
    assert "overloaded" in refused["error"]["message"]
    status, refused = asked(serving, "responses", {**RESPONSES, "stream": is_stream}, script)
    assert status in (502, 503)
    assert_refusal(status, refused)


@pytest.mark.parametrize("surface", CHECKS)
def test_the_check_itself_sees_a_key_that_is_gone(serving: Serving, surface: str) -> None:
    """Each key that an event's shape requires is missed when it is not there."""
    body = MESSAGES if surface == "messages" else RESPONSES
    good = stream(serving, surface, body, sse(PIECES))
    shapes = strict_surfaces.MESSAGES_EVENTS if surface == "messages" else strict_surfaces.RESPONSE_EVENTS
    check = strict_surfaces.assert_messages if surface == "messages" else strict_surfaces.assert_responses
    check(good)
    for number, one in enumerate(good):
        for key in shapes[one["type"]]["required"]:
            spoilt = [*good[:number], {k: v for k, v in one.items() if k != key}, *good[number + 1 :]]
            with pytest.raises((AssertionError, KeyError)):
                check(spoilt)
