"""The response cache over real sockets: when an answer is kept, for how long, for whom, and when not."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.accounts import bank
from tests.support.kept import Pair, Trio, ask, chat, figure, kept_server, pair_of, patch, routes
from tests.support.server import CHAT, running_server
from tests.support.upstream import (
    Cut,
    Upstream,
    WaitFor,
    chat_json,
    chat_stream,
    chunk,
    error,
    sse,
)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    with kept_server(tmp_path_factory.mktemp("kept")) as trio:
        yield trio


@pytest.fixture
def pair(serving: Trio) -> Pair:
    return pair_of(serving)


def test_nothing_is_kept_or_told_unless_it_was_asked_for(pair: Pair) -> None:
    server, up = pair
    up.enqueue(*(chat_json(word) for word in "ABCD"))
    body = {"model": "m", "messages": [{"role": "user", "content": "unasked"}]}
    for value in ("false", "yes", ""):
        answer = ask(server, body, X_OpenRouter_Cache=value)
        assert not [name for name in answer.headers if name.startswith("X-OpenRouter-Cache")]
    assert server.post("/api/v1/chat/completions", {**body, "cache_enabled": True})[0] == 200
    assert "cache_enabled" not in up.requests[-1].json()
    assert len(up.requests) == 4


@pytest.mark.parametrize(
    ("asked", "ttl"),
    [
        ("60", 60),
        ("60abc", 60),
        ("1.5", 1),
        ("0", 1),
        ("-9", 1),
        ("86401", 86400),
        ("9" * 5000, 86400),
        ("abc", 300),
        ("", 300),
        (".5", 300),
        (" 7", 7),
        ("007", 7),
    ],
)
def test_the_time_that_an_answer_is_kept(pair: Pair, asked: str, ttl: int) -> None:
    server, up = pair
    up.enqueue(chat_json("A"))
    body = {"model": "m", "messages": [{"role": "user", "content": f"time {asked[:9]!r}"}]}
    first = ask(server, body, X_OpenRouter_Cache_TTL=asked)
    second = ask(server, body)
    assert first.headers["X-OpenRouter-Cache-TTL"] == second.headers["X-OpenRouter-Cache-TTL"] == str(ttl)
    assert "X-OpenRouter-Cache-Age" not in first.headers
    assert 0 <= int(second.headers["X-OpenRouter-Cache-Age"]) < ttl


def test_clear_fetches_anew(pair: Pair) -> None:
    server, up = pair
    up.enqueue(chat_json("old"), chat_json("new"))
    body = {"model": "m", "messages": [{"role": "user", "content": "clear"}]}
    ask(server, body)
    assert ask(server, body, X_OpenRouter_Cache_Clear="true").cache == "MISS"
    last = ask(server, body, X_OpenRouter_Cache_Clear="false")
    assert last.cache == "HIT" and b"new" in last.body


def test_presets_ask_for_it_or_forbid_it(pair: Pair) -> None:
    server, up = pair
    up.default = chat_json("A")
    off = {"X_OpenRouter_Cache": "off"}  # says nothing
    cached = {"preset": "cached", "messages": [{"role": "user", "content": "preset"}]}
    anthropic = {**cached, "model": "@preset/cached", "max_tokens": 5}
    del anthropic["preset"]
    never = {**cached, "preset": "never"}
    try:
        first = ask(server, cached, **off)
        assert (first.cache, first.headers["X-OpenRouter-Cache-TTL"]) == ("MISS", "77")
        assert not {"cache_enabled", "cache_ttl_seconds"} & up.requests[-1].json().keys()
        assert ask(server, cached, **off).cache == "HIT"
        assert ask(server, cached, X_OpenRouter_Cache="false").cache is None
        shorter = ask(server, {**cached, "top_p": 1}, X_OpenRouter_Cache_TTL="5", **off)
        assert shorter.headers["X-OpenRouter-Cache-TTL"] == "5"
        assert [ask(server, anthropic, "/messages", **off).cache for _ in "ab"] == ["MISS", "HIT"]
        assert [ask(server, never).cache for _ in "ab"] == [None, None]
        assert ask(server, {**never, "cache_enabled": True}).cache is None
    finally:
        up.default = None


def test_errors_and_broken_streams_are_never_kept(pair: Pair) -> None:
    server, up = pair
    broken = sse([chunk({"content": "half"}), Cut()], done=False)
    up.enqueue(error(400), broken, chat_stream(["whole"]), error(500), chat_json("A"))
    refused = chat(server, "errors", stream=True)
    half = chat(server, "errors", stream=True)
    assert (refused.status, half.status, half.cache) == (400, 200, "MISS")
    assert b'"error"' in half.body and b"half" in half.body
    assert [chat(server, "errors", stream=True).cache for _ in "ab"] == ["MISS", "HIT"]
    assert chat(server, "errors").status >= 500
    assert chat(server, "errors").cache == "MISS"


def test_what_a_client_left_is_not_kept(pair: Pair) -> None:
    server, up = pair
    go_on = threading.Event()
    up.enqueue(sse([chunk({"content": "A"}), WaitFor(go_on), chunk({}, "stop")]), chat_stream(["B"]))
    body = {"model": "m", "messages": [{"role": "user", "content": "left"}], "stream": True}
    data = json.dumps(body).encode()
    head = f"POST /api/v1/chat/completions HTTP/1.1\r\nHost: {server.host}:{server.port}\r\n"
    head += "Content-Type: application/json\r\nX-OpenRouter-Cache: true\r\n"
    with socket.create_connection((server.host, server.port)) as link:
        link.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        while b'"A"' not in link.recv(65536):
            pass
    assert up.requests[0].wait_closed()
    go_on.set()
    again = ask(server, body)
    assert (again.cache, len(up.requests)) == ("MISS", 2)


def test_the_answer_of_a_fallback_is_kept(serving: Trio, pair: Pair) -> None:
    server, up = pair
    other = serving[2]
    up.enqueue(error(503))
    other.enqueue(chat_stream(["B"]))
    first, second = (chat(server, "fallback", model="acme/two", stream=True) for _ in range(2))
    assert (first.cache, second.cache) == ("MISS", "HIT")
    assert (len(up.requests), len(other.requests)) == (1, 1)
    assert second.words == first.words and b'"provider":"Other"' in second.body


def test_the_answer_of_the_second_of_a_race_is_kept(serving: Trio, pair: Pair) -> None:
    server, up = pair
    other, go_on = serving[2], threading.Event()
    up.enqueue(sse([WaitFor(go_on), chunk({"content": "late"}), chunk({}, "stop")]))
    other.enqueue(chat_stream(["in", "time"]))
    first, second = (chat(server, "race", model="acme/race", stream=True) for _ in range(2))
    go_on.set()
    assert first.headers["X-Ionrouter-Route"].startswith("other/acme/race; hedge")
    assert (first.cache, second.cache) == ("MISS", "HIT")
    assert second.words == first.words and b"late" not in second.body


def test_who_wants_an_explanation_wants_a_decision(pair: Pair) -> None:
    server, up = pair
    up.enqueue(chat_json("A"), chat_json("B"))
    answers = [chat(server, "explain", ionrouter={"explain": True}) for _ in range(2)]
    assert [answer.cache for answer in answers] == [None, None]
    assert all(answer.json()["ionrouter"]["explanation"] for answer in answers)


def test_metrics_count_looks_and_bytes(pair: Pair) -> None:
    server, up = pair
    up.enqueue(chat_json("A"))
    chat(server, "metrics")
    before = [
        figure(server, f'ionrouter_response_cache_lookups_total{{outcome="{o}"}}') for o in ("hit", "miss")
    ]
    kept = figure(server, "ionrouter_response_cache_bytes")
    up.enqueue(chat_json("A" * 10_000))
    chat(server, "more metrics")
    chat(server, "more metrics")
    after = [
        figure(server, f'ionrouter_response_cache_lookups_total{{outcome="{o}"}}') for o in ("hit", "miss")
    ]
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 1]
    assert 10_000 < figure(server, "ionrouter_response_cache_bytes") - kept < 20_000


def test_bytes_bound_what_is_kept(tmp_path: Path) -> None:
    with Upstream() as up, running_server(tmp_path, routes(up, up), response_cache_bytes=80_000) as server:
        up.default = chat_json("A" * 4000)
        for number in range(20):
            assert chat(server, f"number {number}").cache == "MISS"
        assert chat(server, "number 19").cache == "HIT"
        assert chat(server, "number 0").cache == "MISS"
        assert figure(server, "ionrouter_response_cache_bytes") <= 80_000
        up.default = chat_stream(["A" * 1000] * 10)
        assert [chat(server, "large", stream=True).cache for _ in "ab"] == ["MISS", "MISS"]


def test_no_bytes_turn_it_off(tmp_path: Path) -> None:
    with (
        Upstream(chat_json("A")) as up,
        running_server(tmp_path, routes(up, up), response_cache_bytes=0) as server,
    ):
        assert [chat(server, "off").cache for _ in "ab"] == [None, None]


def test_changed_routes_forget_what_was_kept(tmp_path: Path) -> None:
    with Upstream(chat_json("A")) as up, running_server(tmp_path, routes(up, up)) as server:
        assert [chat(server, "reload").cache for _ in "ab"] == ["MISS", "HIT"]

        def reload(text: str) -> bool:
            server.config.write_text(text)
            status, told = server.post("/api/v1/admin/reload", {}, server.management_key())
            assert status == 200
            return bool(told["data"]["changed"])

        reload(routes(up, up))
        assert chat(server, "reload").cache == "HIT"  # the same routes
        reload(routes(up, up).replace("acme/m", "acme/n"))
        assert chat(server, "reload", model="acme/m").status == 400
        assert chat(server, "reload").cache == "MISS"


def test_routes_that_change_under_an_answer_keep_it_from_being_kept(tmp_path: Path) -> None:
    go_on = threading.Event()
    with Upstream(chat_json("A")) as up, running_server(tmp_path, routes(up, up)) as server:
        up.enqueue(sse([chunk({"content": "A"}), WaitFor(go_on), chunk({}, "stop")]))
        running = threading.Thread(target=chat, args=(server, "under"), kwargs={"stream": True})
        running.start()
        up.wait_for_requests()
        server.config.write_text(routes(up, up, "# changed"))
        server.post("/api/v1/admin/reload", {}, server.management_key())
        go_on.set()
        running.join()
        assert figure(server, "ionrouter_response_cache_bytes") == 0


def test_keys_have_answers_of_their_own_and_a_used_up_limit_still_reads_them(tmp_path: Path) -> None:
    with bank(tmp_path, log_prompts="true") as it:
        poor, poor_hash = it.make_key(limit=1.0)
        assert ask(it.server, CHAT, key=it.key).cache == "MISS"
        first = ask(it.server, CHAT, key=poor)
        assert first.cache == "MISS"
        limit = f"/api/v1/keys/{poor_hash}"
        patch(it.server, limit, {"limit": 0.000001})
        refused = ask(it.server, {**CHAT, "top_p": 1}, key=poor)
        hit = ask(it.server, CHAT, key=poor)
        assert (refused.status, hit.status, hit.cache) == (402, 200, "HIT")
        source, row = (it.generation(a.json()["id"], poor) for a in (first, hit))
        assert row["response_cache_source_id"] == source["id"] and source["response_cache_source_id"] is None
        assert (row["total_cost"], row["usage"], row["tokens_prompt"], row["tokens_completion"]) == (
            0,
            0,
            0,
            0,
        )
        assert (row["model"], row["provider_name"], row["provider_responses"]) == ("acme/m", None, [])
        assert (row["finish_reason"], row["status"], row["state"]) == ("stop", 200, "finished")
        words = it.manage(f"/generation/content?id={row['id']}")["data"]["output"]["completion"]
        assert words == "one two three"
        assert it.ask("/key", poor)["data"]["usage"] == source["usage"]
        (event,) = [
            e for e in it.server.wait_for_event("request_finished", row["id"]) if e["request"] == row["id"]
        ]
        assert (event["status"], event["endpoint"], event["attempts"], event["cost"]) == (200, None, [], 0)
        patch(it.server, limit, {"disabled": True})
        assert ask(it.server, CHAT, key=poor).status == 401
