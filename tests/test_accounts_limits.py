"""Limits of keys in the whole server, before an upstream that counts as many tokens as any tokenizer can."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.accounts import Bank, bank
from tests.support.upstream import Received, Script, Upstream, json_response, usage

ROUTES = """
providers: {{ up: {{ type: openai, name: Up, base_url: {up} }} }}
models:
  acme/m: {{ endpoints: [ {{ provider: up, model: u, prices: {{ prompt: 1000, completion: 2000 }} }} ] }}
"""
TEMPLATE_TOKENS = 40  # what a chat template adds to one message
NUM_OUT = 5


def a_token_a_byte(request: Received) -> Script:
    body = request.json()
    texts = [message["content"] for message in body["messages"]]
    num_in = sum(len(text.encode()) for text in texts) + TEMPLATE_TOKENS
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
    used = usage(num_in, body["max_tokens"])
    return json_response({"id": "c", "object": "chat.completion", "choices": [choice], "usage": used})


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    with (
        Upstream(a_token_a_byte) as up,
        bank(tmp_path_factory.mktemp("counting"), ROUTES.format(up=up.base_url)) as opened,
    ):
        yield opened


TEXTS = {
    "english": "the quick brown fox " * 20,
    "chinese": "人工智能正在改变世界" * 20,
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈🫠" * 10,
    "rare han": "\U0002070e\U00020d7f" * 40,
    "digits": "31415926535" * 20,
    "stacked accents": "a\u0300\u0301\u0302\u0303" * 30,
}


@pytest.mark.parametrize("name", TEXTS)
def test_no_text_passes_a_limit_however_many_tokens_it_is(counting: Bank, name: str) -> None:
    """Twelve at once, a limit for a few: what is let through is paid for, and something is let through."""
    text = TEXTS[name]
    one = ((len(text.encode()) + TEMPLATE_TOKENS) * 1000 + NUM_OUT * 2000) / 1e6
    limit = round(one * 3, 6)
    key, digest = counting.make_key(limit=limit)

    def ask(_: int) -> int:
        messages = [{"role": "user", "content": text}]
        status, _body = counting.chat(key, model="acme/m", messages=messages, max_tokens=NUM_OUT)
        return status

    with ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(ask, range(12)))
    spent = counting.manage(f"/keys/{digest}")["data"]["usage"]
    assert set(statuses) == {200, 402}
    assert spent == pytest.approx(one * statuses.count(200))
    assert spent <= limit


def test_a_prompt_that_could_pass_the_limit_is_refused_before_it_is_sent(counting: Bank) -> None:
    """Four characters a token would let it through, and it would cost four times the limit."""
    text = "\U0002070e" * 100
    key, _ = counting.make_key(limit=0.1)
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    status, body = counting.chat(key, model="acme/m", messages=messages, max_tokens=1)
    assert status == 402, json.dumps(body)
    assert body["error"]["metadata"]["required"] >= (400 * 1000 + 2000) / 1e6


FILTERED = """
providers: {{ up: {{ type: openai, name: Up, base_url: {up} }} }}
models:
  acme/a: {{ endpoints: [ {{ provider: up, model: a, prices: {{ prompt: 1000, completion: 2000 }} }} ] }}
  acme/b: {{ endpoints: [ {{ provider: up, model: b, prices: {{ prompt: 1000, completion: 2000 }} }} ] }}
  acme/c: {{ endpoints: [ {{ provider: up, model: c, prices: {{ prompt: 1000, completion: 2000 }} }} ] }}
"""
FILTERED_COST = (60 * 1000 + NUM_OUT * 2000) / 1e6


def emptied(request: Received) -> Script:
    """A content filter took the answers of a and b away, which is paid for."""
    is_good = request.json()["model"] == "c"
    message = {"role": "assistant", "content": "x" if is_good else ""}
    choice = {"index": 0, "message": message, "finish_reason": "stop" if is_good else "content_filter"}
    return json_response(
        {"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage(60, NUM_OUT)}
    )


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def filtering(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Bank, Upstream]]:
    settings: dict[str, Any] = {}
    if request.param == "postgresql":
        settings["store_url"] = request.getfixturevalue("postgres").new_database()
    with (
        Upstream(emptied) as up,
        bank(tmp_path_factory.mktemp("filtering"), FILTERED.format(up=up.base_url), **settings) as opened,
    ):
        yield opened, up


@pytest.mark.parametrize("num_asked", [1, 2, 3])
def test_answers_that_a_filter_emptied_are_paid_within_the_limit(
    filtering: tuple[Bank, Upstream], num_asked: int
) -> None:
    """Each is paid for before the next model is asked: so many are as the limit has room for."""
    opened, up = filtering
    asking = {"model": "acme/a", "models": ["acme/b", "acme/c"], "max_tokens": NUM_OUT}
    poor, _ = opened.make_key(limit=1e-9)
    worst = opened.chat(poor, **asking)[1]["error"]["metadata"]["required"]
    assert 0.5 * worst < FILTERED_COST < worst
    limit = worst + (num_asked - 1) * FILTERED_COST
    key, digest = opened.make_key(limit=limit)
    before = len(up.requests)
    status, body = opened.chat(key, **asking)
    assert len(up.requests) - before == num_asked
    assert status == (200 if num_asked == 3 else 403), body
    data = opened.manage(f"/keys/{digest}")["data"]
    assert data["usage"] == pytest.approx(num_asked * FILTERED_COST)
    assert data["usage"] <= limit
    assert data["limit_remaining"] == pytest.approx(limit - data["usage"])
