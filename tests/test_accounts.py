"""The whole server: what every accounting answer holds, whose it is, and what operators may ask."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ionrouter.schema.accounts import WORKSPACE
from tests.support.accounts import COST, Bank, bank
from tests.support.required_keys import assert_has_all
from tests.support.sse import chunks


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    with bank(tmp_path_factory.mktemp("bank"), log_prompts="true") as opened:
        yield opened


def test_every_required_key_of_every_answer_is_there(shared: Bank) -> None:
    _, answer = shared.chat()
    key, digest = shared.make_key(limit=1, limit_reset="daily")
    generation = shared.generation(answer["id"])
    assert_has_all("generation", generation)
    for attempt in generation["provider_responses"]:
        assert_has_all("provider_response", attempt)
    content = shared.manage(f"/generation/content?id={answer['id']}")["data"]
    assert_has_all("content", content)
    assert_has_all("content_output", content["output"])
    for path in ("/key", "/auth/key"):
        own = shared.ask(path, key)["data"]
        assert_has_all("key", own)
        assert_has_all("rate_limit", own["rate_limit"])
        assert_has_all("free_model_daily_requests", own["free_model_daily_requests"])
        (budget,) = own["budgets"]
        assert_has_all("budget", budget)
        assert own["effective_budget"] == budget
    assert_has_all("key_card", shared.manage(f"/keys/{digest}")["data"])
    for card in shared.manage("/keys")["data"]:
        assert_has_all("key_card", card)
    assert_has_all("credits", shared.manage("/credits")["data"])
    meta = shared.manage("/analytics/meta")["data"]
    assert_has_all("meta", meta)
    for metric in meta["metrics"]:
        assert_has_all("meta_metric", metric)


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_and_its_generation_agree(shared: Bank, stream: bool) -> None:
    headers = {"HTTP-Referer": "https://app.example", "X-Title": "App", "User-Agent": "tester/1"}
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream, "user": "u-1"}
    request = urllib.request.Request(
        f"{shared.server.base_url}/chat/completions",
        json.dumps(body).encode(),
        {**headers, "Content-Type": "application/json", "Authorization": f"Bearer {shared.key}"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        text, name = response.read().decode(), response.headers["X-Generation-Id"]
    last = chunks(text)[-1] if stream else json.loads(text)
    found = shared.generation(name)
    assert (found["id"], found["streamed"], found["cancelled"]) == (last["id"], stream, False)
    assert (found["model"], found["provider_name"]) == (last["model"], last["provider"]) == ("acme/m", "Fake")
    assert found["total_cost"] == found["usage"] == last["usage"]["cost"] == COST
    assert found["native_tokens_prompt"] == last["usage"]["prompt_tokens"] == 10
    assert found["native_tokens_completion"] == last["usage"]["completion_tokens"] == 3
    assert (found["finish_reason"], found["api_type"]) == ("stop", "completions")
    assert (found["http_referer"], found["user_agent"]) == ("https://app.example", "tester/1")
    assert found["external_user"] == "u-1"
    assert found["latency"] >= found["generation_time"] >= 0
    assert found["created_at"].endswith("Z")


def test_a_fallback_shows_every_attempt(shared: Bank) -> None:
    _, answer = shared.chat(model="acme/fallback")
    first, second = shared.generation(answer["id"])["provider_responses"]
    assert (first["status"], first["provider_name"], first["message"]) == (503, "Bad", "no room")
    assert (second["status"], second["provider_name"]) == (200, "Fake")


def test_a_failed_request_has_a_generation_at_once(shared: Bank) -> None:
    request = urllib.request.Request(
        f"{shared.server.base_url}/chat/completions",
        json.dumps({"model": "acme/broken", "messages": [{"role": "user", "content": "hi"}]}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {shared.key}"},
    )
    with pytest.raises(urllib.error.HTTPError) as failure:
        urllib.request.urlopen(request, timeout=60)
    name = failure.value.headers["X-Generation-Id"]
    found = shared.generation(name)
    assert (found["state"], found["status"], found["total_cost"]) == ("failed", failure.value.code, 0)
    assert found["provider_responses"][0]["status"] == 503
    assert found["provider_name"] is None
    content = shared.manage(f"/generation/content?id={name}")["data"]
    assert_has_all("content_error", content["error"])
    assert content["output"] == {"completion": None, "reasoning": None}


def test_a_dropped_stream_has_a_generation_with_what_it_used(shared: Bank) -> None:
    body = {"model": "acme/slow", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    request = urllib.request.Request(
        f"{shared.server.base_url}/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {shared.key}"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        name = response.headers["X-Generation-Id"]
        seen = b""
        while b"word2" not in seen:
            seen += response.readline()
        running = shared.generation(name)  # answered from memory while it runs
        assert (running["state"], running["cancelled"], running["finish_reason"]) == ("started", False, None)
    shared.server.wait_for_event("request_finished", name)
    found = shared.generation(name)
    assert (found["cancelled"], found["status"], found["finish_reason"]) == (True, 499, None)
    assert 1 <= found["native_tokens_completion"] < 200
    assert found["is_usage_estimated"] is True
    assert found["total_cost"] > 0


def test_a_generation_belongs_to_the_key_that_made_it(shared: Bank) -> None:
    _, answer = shared.chat()
    other, _ = shared.make_key()
    path = f"/api/v1/generation?id={answer['id']}"
    assert shared.server.get(path, shared.key)[0] == 200
    status, body = shared.server.get(path, other)
    assert (status, body["error"]["metadata"]["error_type"]) == (404, "not_found")
    assert shared.server.get(path)[0] == 401
    assert shared.server.get("/api/v1/generation?id=gen-1-nothing", shared.key)[0] == 404
    assert shared.server.get("/api/v1/generation", shared.key)[0] == 400


def test_keys_of_the_two_kinds_stay_apart(shared: Bank) -> None:
    management = shared.server.management_key()
    assert shared.chat(management)[0] == 403
    assert shared.server.get("/api/v1/generation?id=x", management)[0] == 403
    for path in ("/keys", "/activity", "/analytics/meta", "/generation/content?id=x"):
        assert shared.server.get(f"/api/v1{path}", shared.key)[0] == 403
    assert shared.server.post("/api/v1/keys", {"name": "x"}, shared.key)[0] == 403
    own = shared.ask("/key", management)["data"]
    assert (own["is_management_key"], own["is_provisioning_key"]) == (True, True)


def test_words_are_kept_only_where_prompts_are_logged(shared: Bank, tmp_path: Path) -> None:
    _, answer = shared.chat(messages=[{"role": "user", "content": "say three words"}])
    content = shared.manage(f"/generation/content?id={answer['id']}")["data"]
    assert content["input"]["messages"] == [{"role": "user", "content": "say three words"}]
    assert content["output"]["completion"] == "one two three"
    with bank(tmp_path) as silent:
        _, answer = silent.chat(messages=[{"role": "user", "content": "PRIVATE-WORDS"}])
        status, body = silent.server.get(
            f"/api/v1/generation/content?id={answer['id']}", silent.server.management_key()
        )
        assert status == 404
        assert "LOG_PROMPTS" in body["error"]["message"]
    stored = b"".join(p.read_bytes() for p in (tmp_path / "state").iterdir())
    assert answer["id"].encode() in stored
    assert b"PRIVATE-WORDS" not in stored


def test_activity_and_analytics_answer_operators(shared: Bank) -> None:
    shared.chat()
    assert shared.manage("/activity") == {"data": []}  # nothing is older than today
    status, body = shared.server.get("/api/v1/activity?date=2020-01-01", shared.server.management_key())
    assert (status, body["error"]["param"]) == (400, "date")
    query = {"metrics": ["request_count", "p95_latency", "error_rate"], "dimensions": ["endpoint"]}
    status, body = shared.server.post("/api/v1/analytics/query", query, shared.server.management_key())
    assert status == 200
    assert_has_all("analytics", body["data"])
    assert_has_all("analytics_metadata", body["data"]["metadata"])
    assert body["data"]["metadata"]["row_count"] == len(body["data"]["data"])
    row = next(row for row in body["data"]["data"] if row["endpoint"] == "fake/acme/m")
    assert row.keys() == {*query["metrics"], "endpoint", "latency_samples"}


def test_every_dimension_of_openrouters_has_an_answer(shared: Bank) -> None:
    shared.chat()
    shared.chat(model="acme/m:floor")
    names = [
        "model",
        "variant",
        "provider",
        "origin",
        "country",
        "finish_reason",
        "external_user",
        "api_key_id",
        "user",
        "workspace",
        "app",
        "context_length_bucket",
        "generation_id",
    ]
    assert {d["name"] for d in shared.manage("/analytics/meta")["data"]["dimensions"]} >= set(names)

    def asked(**query: Any) -> list[dict[str, Any]]:
        question = {"metrics": ["request_count"], **query}
        key = shared.server.management_key()
        status, body = shared.server.post("/api/v1/analytics/query", question, key)
        assert status == 200, body
        found: list[dict[str, Any]] = body["data"]["data"]
        return found

    (total,) = asked()
    for name in names:
        assert sum(row["request_count"] for row in asked(dimensions=[name])) == total["request_count"], name
    assert asked(dimensions=["country"]) == [{"country": None, **total}]
    assert asked(filters=[{"field": "country", "operator": "eq", "value": "DE"}]) == []
    assert {"standard", "floor"} <= {row["variant"] for row in asked(dimensions=["variant"])}
    (only,) = asked(dimensions=["workspace"])
    assert only == {"workspace": WORKSPACE, **total}
    floor = {"field": "variant", "operator": "eq", "value": "floor"}
    assert {row["model"] for row in asked(dimensions=["model"], filters=[floor])} == {"acme/m"}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"metrics": []}, "metrics"),
        ({"metrics": ["nonsense"]}, "metrics[0]"),
        ({"dimensions": ["id; DROP TABLE generation"]}, "dimensions[0]"),
        ({"dimensions": ["model", "provider", "endpoint"]}, "dimensions"),
        ({"granularity": "second"}, "granularity"),
        ({"order_by": {"field": "p50_ttft", "direction": "asc"}}, "order_by.field"),
        ({"filters": [{"field": "model", "operator": "like", "value": "x"}]}, "filters[0].operator"),
        ({"filters": [{"field": "model", "operator": "in", "value": "x"}]}, "filters[0].value"),
        ({"filters": [{"field": "model", "operator": "eq", "value": ["x"]}]}, "filters[0].value"),
        ({"time_range": {"start": "2026-01-02T00:00:00Z", "end": "2026-01-01T00:00:00Z"}}, "time_range"),
        ({"limit": 10_001}, "limit"),
        ({"metric": "x"}, "metric"),
    ],
)
def test_a_question_that_cannot_be_answered_names_its_fault(shared: Bank, change: Any, param: str) -> None:
    query = {"metrics": ["request_count"], **change}
    status, body = shared.server.post("/api/v1/analytics/query", query, shared.server.management_key())
    assert (status, body["error"]["param"]) == (400, param)
