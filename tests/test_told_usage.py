"""What an upstream told of its usage is booked, also of answers that are none, or not whole."""

from __future__ import annotations

import http.client
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import CHAT, Server, eventually, running_server
from tests.support.upstream import (
    DONE,
    Cut,
    Hang,
    Script,
    Upstream,
    chat_stream,
    chunk,
    chunked,
    event,
    json_response,
    raw,
)

THOUGHT = {
    "prompt_tokens": 1000,
    "completion_tokens": 300,
    "total_tokens": 1300,
    "completion_tokens_details": {"reasoning_tokens": 300},
}
PAID = (1000 * 1 + 300 * 2) / 1e6  # USD at the first upstream's prices; the fallback costs nothing
IN_ORDER = {"provider": {"order": ["a", "b"]}}
ROLE = event(chunk({"role": "assistant"}))
NO = {"message": "no", "code": 500}


def used() -> bytes:
    """A chunk that tells usage and nothing else."""
    return event(chunk(None, usage=THOUGHT))


def routes(a: Upstream, b: Upstream, **more: Any) -> str:
    return f"""
providers:
  a: {{ type: openai, base_url: {a.base_url} }}
  b: {{ type: openai, base_url: {b.base_url} }}
routing: {{ explore: 0 }}
models:
  m:
    {"".join(f"{name}: {json.dumps(value)}" for name, value in more.items())}
    endpoints:
      - {{ provider: a, model: up-a, prices: {{ prompt: 1, completion: 2 }}, breaker: {{ cooldown: 0 }} }}
      - {{ provider: b, model: up-b, prices: {{ prompt: 0, completion: 0 }} }}
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Upstream]]:
    with (
        Upstream() as a,
        Upstream(lambda got: chat_stream(["b"]) if got.json().get("stream") else WORD) as b,
        running_server(tmp_path_factory.mktemp("shared"), routes(a, b)) as server,
    ):
        yield server, a


WORD = json_response({"choices": [{"index": 0, "message": {"content": "b"}, "finish_reason": "stop"}]})
EMPTY_STREAMS = {
    "an end without words": chunked([ROLE, used(), DONE]),
    "usage alone": chunked([used(), DONE]),
    "a cut behind it": chunked([used()], end=False).then(Cut()),
    "an error behind it": chunked([used(), event({"error": NO})]),
    "an error beside it": chunked([event({"error": NO, "usage": THOUGHT})]),
    "a finish that is an error beside it": chunked([event(chunk({}, "error", usage=THOUGHT))]),
    "a whole answer, empty": json_response({"choices": [], "usage": THOUGHT}),
}
EMPTY_ANSWERS = {
    "no choice": {"choices": []},
    "no word": {"choices": [{"index": 0, "message": {}}]},
    "an error": {"error": NO},
    "tool calls that are none": {"choices": [{"index": 0, "message": {"tool_calls": [7]}}]},
    "an error for a finish": {"choices": [{"index": 0, "message": {}, "finish_reason": "error"}]},
}


def finished(server: Server, before: int) -> dict[str, Any]:
    return server.wait_for_event("request_finished", before + 1)[before]


@pytest.mark.parametrize("script", EMPTY_STREAMS.values(), ids=EMPTY_STREAMS)
def test_an_empty_stream_costs_what_it_told(shared: tuple[Server, Upstream], script: Script) -> None:
    server, a = shared
    before = len(server.events("request_finished"))
    a.enqueue(script)
    assert server.chat(stream=True, **IN_ORDER)[0] == 200
    done = finished(server, before)
    assert (len(done["attempts"]), done["cost"]) == (2, pytest.approx(PAID))


@pytest.mark.parametrize("answer", EMPTY_ANSWERS.values(), ids=EMPTY_ANSWERS)
def test_an_empty_answer_costs_what_it_told(shared: tuple[Server, Upstream], answer: Any) -> None:
    server, a = shared
    before = len(server.events("request_finished"))
    a.enqueue(json_response({**answer, "usage": THOUGHT}))
    assert server.chat(**IN_ORDER)[0] == 200
    done = finished(server, before)
    assert (len(done["attempts"]), done["cost"]) == (2, pytest.approx(PAID))


EARLY = event(chunk({"role": "assistant", "content": "hi"}, usage={**THOUGHT, "completion_tokens": 1}))
TOLD_EARLY = (1000 * 1 + 1 * 2) / 1e6
CUT_STREAMS = {
    "told at the beginning": ([EARLY], TOLD_EARLY),
    "and more said since": ([EARLY, event(chunk({"content": "x" * 398}))], (1000 + 100 * 2) / 1e6),
    "told all along": ([EARLY, event(chunk({"content": "?"}, usage=THOUGHT))], PAID),
    "told at the end": ([event(chunk({"content": "hi"})), used()], PAID),
    "without the prompt": ([event(chunk({"content": "hi"}, usage={"completion_tokens": 300}))], None),
}


def begun_stream(server: Server) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A stream of which some text has come."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = json.dumps({**CHAT, **IN_ORDER, "stream": True})
    connection.request("POST", "/api/v1/chat/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    while b'"content"' not in answer.readline():
        pass
    return connection, answer


@pytest.mark.parametrize(("said", "cost"), CUT_STREAMS.values(), ids=CUT_STREAMS)
@pytest.mark.parametrize("who", ["upstream", "client"])
def test_a_cut_stream_costs_at_least_what_it_told(
    shared: tuple[Server, Upstream], who: str, said: list[bytes], cost: float | None
) -> None:
    server, a = shared
    before = len(server.events("request_finished"))
    a.enqueue(chunked(said, end=False).then(Cut() if who == "upstream" else Hang()))
    connection, answer = begun_stream(server)
    if who == "client":
        time.sleep(0.3)  # all of it is there
        answer.close()
        connection.close()
    else:
        answer.read()
    done = finished(server, before)
    assert done["status"] == (502 if who == "upstream" else 499)
    if cost is None:
        assert done["completion_tokens"] == 300 and done["prompt_tokens"] > 0
    else:
        assert done["cost"] == pytest.approx(cost)


def test_a_stopped_server_books_what_was_told(tmp_path: Path) -> None:
    with Upstream(chunked([EARLY], end=False).then(Hang())) as a, Upstream() as b:
        with running_server(tmp_path, routes(a, b), drain_timeout_s=0) as server:
            _connection, answer = begun_stream(server)  # held: else it may be closed
            server.signal(signal.SIGTERM)
            answer.read()
            server.wait()
        (done,) = server.events("request_finished")
    assert (done["status"], done["cost"]) == (503, pytest.approx(TOLD_EARLY))


def test_a_hedge_that_lost_costs_what_it_told(tmp_path: Path) -> None:
    """Its usage came before any word: held back, and known."""
    hedge = {"hedge": {"after": 0.2, "budget": 1.0}}
    with (
        Upstream(chunked([used()], end=False).then(Hang())) as a,
        Upstream(chat_stream(["b"])) as b,
        running_server(tmp_path, routes(a, b, **hedge)) as server,
    ):
        assert server.chat(stream=True, **IN_ORDER)[0] == 200
        (done,) = server.wait_for_event("request_finished")
    assert (done["endpoint"], done["cost"]) == ("b/m", pytest.approx(PAID))


BEGUN = b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "'
TOLD = json.dumps({"usage": THOUGHT, "choices": []}).encode()[:-2]
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n"
NO_LENGTH = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
PIECES = chunked([BEGUN, b"x" * 400], end=False, content_type="application/json")
CUT_ANSWERS: dict[str, tuple[Script, int]] = {
    "with a length": (raw(LENGTH, BEGUN + b"x" * 400, Cut()), 100),
    "in one read": (raw(LENGTH + BEGUN + b"x" * 400, Cut()), 100),
    "without a length": (raw(NO_LENGTH, BEGUN + b"x" * 400, Cut()), 100),
    "in pieces": (PIECES.then(Cut()), 100),
    "before a word": (raw(LENGTH, BEGUN[:20], Cut()), 0),
}


def generation(server: Server, request_id: str) -> dict[str, Any]:
    return dict(server.wait_for(f"/api/v1/generation?id={request_id}", 200)["data"])


@pytest.mark.parametrize(("script", "tokens"), CUT_ANSWERS.values(), ids=CUT_ANSWERS)
def test_a_whole_answer_that_breaks_off_costs_what_came_of_it(
    shared: tuple[Server, Upstream], script: Script, tokens: int
) -> None:
    """As of a stream that is cut: the prompt, and what was written of the answer."""
    server, a = shared
    before = len(server.events("request_finished"))
    a.enqueue(script)
    status, answer = server.chat(**IN_ORDER)
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "b")
    done = finished(server, before)
    cost = (done["prompt_tokens"] + tokens * 2) / 1e6  # the fallback's answer has no usage: the same estimate
    assert done["prompt_tokens"] > 0 and done["cost"] == pytest.approx(cost)
    kept = generation(server, answer["id"])
    assert kept["total_cost"] == pytest.approx(cost)
    assert [(a["cost"], a["is_usage_estimated"]) for a in kept["provider_responses"]] == [
        (pytest.approx(cost), True),
        (0, True),
    ]


def test_a_whole_answer_that_breaks_off_without_a_fallback_is_an_estimate(
    shared: tuple[Server, Upstream],
) -> None:
    server, a = shared
    before = len(server.events("request_finished"))
    a.enqueue(raw(LENGTH, BEGUN + b"x" * 400, Cut()))
    assert server.chat(provider={"only": ["a"]})[0] == 502
    kept = generation(server, finished(server, before)["request"])
    assert kept["total_cost"] > 100 * 2 / 1e6 and kept["is_usage_estimated"] is True


def test_a_whole_answer_whose_caller_leaves_in_the_middle_costs_what_came_of_it(
    shared: tuple[Server, Upstream],
) -> None:
    server, a = shared
    before, num_asked = len(server.events("request_finished")), len(a.requests)
    a.enqueue(raw(LENGTH, BEGUN + b"x" * 400, Hang()))
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = json.dumps({**CHAT, **IN_ORDER})
    connection.request("POST", "/api/v1/chat/completions", body, {"Content-Type": "application/json"})
    eventually(lambda: len(a.requests) > num_asked)
    time.sleep(0.3)  # all of it is there
    connection.close()
    done = finished(server, before)
    assert done["status"] == 499 and done["cost"] > 100 * 2 / 1e6


def test_a_whole_answer_that_told_its_usage_and_broke_off_costs_that(
    shared: tuple[Server, Upstream],
) -> None:
    server, a = shared
    before = len(server.events("request_finished"))
    a.enqueue(raw(LENGTH, TOLD, Cut()))
    assert server.chat(**IN_ORDER)[0] == 200
    assert finished(server, before)["cost"] == pytest.approx(PAID)


@pytest.mark.parametrize("began", [b"", b"\n\n", b'{"error": {"message": "no"'])
def test_a_whole_answer_of_which_nothing_came_costs_nothing(
    shared: tuple[Server, Upstream], began: bytes
) -> None:
    server, a = shared
    before = len(server.events("request_finished"))
    a.enqueue(raw(LENGTH + began, Cut()))
    assert server.chat(**IN_ORDER)[0] == 200
    assert finished(server, before)["cost"] == 0


TIERED = """
providers:
  a: {{ type: openai, base_url: {url} }}
models:
  m:
    endpoints:
      - provider: a
        model: up-a
        supported_parameters: [service_tier]
        prices:
          prompt: 1
          completion: 2
          reasoning: 8
          flex: {{ prompt: 0.5, completion: 1, reasoning: 1 }}
          priority: {{ prompt: 3, completion: 4, reasoning: 4 }}
"""
SERVED = {
    "as usual": (None, None, 1000 * 1 + 300 * 8),
    "flex": ("flex", "flex", 1000 * 0.5 + 300 * 1),
    "flex, and served as usual": ("flex", "default", 1000 * 1 + 300 * 8),
    "flex, and not told": ("flex", None, 1000 * 0.5 + 300 * 1),
    "by the account's own setting": (None, "priority", 1000 * 3 + 300 * 4),
}


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Upstream]]:
    with (
        Upstream() as up,
        running_server(tmp_path_factory.mktemp("tiered"), TIERED.format(url=up.base_url)) as server,
    ):
        yield server, up


@pytest.mark.parametrize(("asked", "served", "usd"), SERVED.values(), ids=SERVED)
def test_the_level_of_service_that_an_answer_tells_is_billed(
    tiered: tuple[Server, Upstream], asked: str | None, served: str | None, usd: float
) -> None:
    server, up = tiered
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    up.enqueue(json_response({"choices": [choice], "usage": THOUGHT, "service_tier": served}))
    status, answer = server.chat(**({} if asked is None else {"service_tier": asked}))
    assert (status, answer["usage"]["cost"]) == (200, pytest.approx(usd / 1e6))
    assert generation(server, answer["id"])["total_cost"] == pytest.approx(usd / 1e6)
