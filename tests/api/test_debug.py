"""`debug.echo_upstream_body` over real sockets: what was sent upstream, at the start of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kept import Pair, Trio, ask, pair_of, routes
from tests.support.server import CHAT, Server, running_server
from tests.support.sse import chunks, content, data_lines
from tests.support.upstream import Upstream, chat_json, chat_stream, error

KEY = "upstream-key-1234567890"
ECHO = {"stream": True, "debug": {"echo_upstream_body": True}}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    folder = tmp_path_factory.mktemp("debug")
    with Upstream() as up, Upstream() as other:
        text = routes(up, other).replace("name: Up,", "name: Up, keys: [UP_KEY],")
        with running_server(folder, text, env={"UP_KEY": KEY}) as server:
            yield server, up, other


@pytest.fixture
def pair(serving: Trio) -> Pair:
    return pair_of(serving)


def streamed(server: Server, **body: Any) -> list[dict[str, Any]]:
    status, text = server.chat(**body)
    assert status == 200
    return chunks(text)


def test_what_every_attempt_sent_comes_before_the_answer(serving: Trio, pair: Pair) -> None:
    (server, up), other = pair, serving[2]
    up.enqueue(error(503))
    other.enqueue(chat_stream(["A"]))
    first, second, *rest = streamed(server, model="acme/two", max_completion_tokens=7, **ECHO)
    assert [first["debug"], second["debug"]] == [
        {"echo_upstream_body": upstream.requests[-1].json()} for upstream in (up, other)
    ]
    assert (first["choices"], second["choices"]) == ([], [])
    assert [(chunk["provider"], chunk["model"]) for chunk in (first, second)] == [
        ("Up", "acme/two"), ("Other", "acme/two"),
    ]  # fmt: skip
    assert {chunk["id"] for chunk in (first, second, *rest)} == {first["id"]}
    assert not [chunk for chunk in rest if "debug" in chunk]
    assert "debug" not in first["debug"]["echo_upstream_body"]


def test_the_servers_keys_are_not_told(pair: Pair) -> None:
    server, up = pair
    up.enqueue(chat_stream(["A"]))
    first, *_ = streamed(server, messages=[{"role": "user", "content": f"is it {KEY}?"}], **ECHO)
    assert up.requests[-1].headers["authorization"] == f"Bearer {KEY}"
    assert first["debug"]["echo_upstream_body"]["messages"][0]["content"] == "is it [redacted]?"
    assert "authorization" not in json.dumps(first).lower()


@pytest.mark.parametrize(
    "debug", [None, {}, {"echo_upstream_body": False}, {"echo_upstream_body": "true"}, True]
)
def test_who_does_not_ask_sees_nothing(pair: Pair, debug: Any) -> None:
    server, up = pair
    up.enqueue(chat_stream(["A"]))
    assert not [chunk for chunk in streamed(server, stream=True, debug=debug) if "debug" in chunk]


def test_whole_answers_show_nothing(pair: Pair) -> None:
    server, up = pair
    up.enqueue(chat_json("A"))
    status, body = server.chat(debug={"echo_upstream_body": True})
    assert (status, "debug" in body) == (200, False)


def test_responses_have_an_event_for_it_and_messages_none(pair: Pair) -> None:
    server, up = pair
    up.enqueue(chat_stream(["A"]), chat_stream(["A"]))
    _, text = server.post("/api/v1/responses", {"model": "m", "input": "hi", **ECHO})
    events = [json.loads(line) for line in data_lines(text) if line != "[DONE]"]
    assert [event["type"] for event in events[:4]] == [
        "response.created", "response.in_progress", "response.debug", "response.output_item.added",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[2]["debug"] == {"echo_upstream_body": up.requests[-1].json()}
    message = {"model": "m", "max_tokens": 5, "messages": CHAT["messages"], **ECHO}
    status, text = server.post("/api/v1/messages", message)
    assert (status, "echo_upstream_body" in text) == (200, False)


def test_no_kept_answer_is_shown_instead(pair: Pair) -> None:
    server, up = pair
    up.enqueue(chat_stream(["A"]), chat_stream(["B"]))
    body = {**CHAT, **ECHO}
    answers = [ask(server, body) for _ in range(2)]
    assert [answer.cache for answer in answers] == [None, None]
    assert [content(answer.body.decode()) for answer in answers] == ["A", "B"]
