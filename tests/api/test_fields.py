"""The fields of a request over a real socket: faults name their field, values arrive as they were sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.edge import EdgeServer, edge_server

CHAT = "/api/v1/chat/completions"
OK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def _raw(server: EdgeServer, data: Any) -> tuple[int, Any]:
    async with server.session.post(
        server.url(CHAT), data=data, headers={"Content-Type": "application/json"}
    ) as answer:
        assert answer.content_type == "application/json"
        return answer.status, await answer.json()


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "messages", "messages: should have at least 1 item"),
    ({"messages": "hi"}, "messages", "messages: should be an array"),
    (
        {"messages": [{"role": "wizard", "content": "x"}]},
        "messages[0].role",
        "messages[0].role: should be 'system'",
    ),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "messages[0].role: is required"),
    ({"messages": [{"role": "user"}]}, "messages[0]", "a user message needs content"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]", "needs tool_call_id"),
    (
        {"messages": [{"role": "user", "content": 5}]},
        "messages[0].content",
        "a string or should be an array, got 5",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
        "messages[0].content[0]",
        "unknown content part type 'smell'",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        "messages[0].content[0]",
        "needs 'image_url' (an object)",
    ),
    ({"temperature": 2.5}, "temperature", "temperature: should be less than or equal to 2, got 2.5"),
    ({"temperature": "0.5"}, "temperature", 'temperature: should be a number, got "0.5"'),
    ({"temperature": True}, "temperature", "temperature: should be a number, got true"),
    ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1, got 0"),
    ({"max_tokens": 1.5}, "max_tokens", "should be an integer"),
    ({"stream": "yes"}, "stream", "stream: should be true or false"),
    ({"stop": 5}, "stop", "stop: should be a string or should be an array"),
    ({"n": 0}, "n", "n: "),
    ({"logit_bias": {"5": 101}}, "logit_bias.5", "logit_bias.5: "),
    ({"tools": [{"type": "function"}]}, "tools[0]", "needs 'function'"),
    ({"tool_choice": "maybe"}, "tool_choice", "tool_choice: "),
    ({"response_format": {"type": "json_schema"}}, "response_format", "needs 'json_schema'"),
    (
        {"provider": {"ordr": ["a"], "sort": "price"}},
        "provider.ordr",
        "provider: Unrecognized key(s) in object: 'ordr'",
    ),
    (
        {"provider": {"max_price": {"prompt": "cheap"}}},
        "provider.max_price.prompt",
        "a number or a numeric string",
    ),
    ({"provider": {"quantizations": ["fp7"]}}, "provider.quantizations", "'fp7' is no quantization"),
    (
        {"ionrouter": {"stratgy": "price"}},
        "ionrouter.stratgy",
        "ionrouter: Unrecognized key(s) in object: 'stratgy'",
    ),
    ({"ionrouter": {"value_of_time": -1}}, "ionrouter.value_of_time", "ionrouter.value_of_time: "),
    ({"plugins": [{"id": "web"}]}, "plugins[0]", "plugin 'web' is not supported"),
    ({"reasoning": {"effort": "low", "max_tokens": 5}}, "reasoning", "give effort or max_tokens, not both"),
    ({"reasoning_effort": "low", "reasoning": {"max_tokens": 5}}, "reasoning_effort", "not both"),
    ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning_effort", "contradicts"),
    ({"session_id": "x" * 257}, "session_id", "session_id: "),
    ({"model": None}, "model", "model: is required"),
    ({"models": ["a"] * 1025}, "models", "models: should have at most 1024 items"),
    ({"messages": []}, "messages", "messages: should have at least 1 item"),
    ({"model": ""}, "model", "model: should have at least 1 character"),
    ({"stop": ["x"] * 17}, "stop", "stop: should have at most 16 items"),
]


@pytest.mark.parametrize(("change", "param", "says"), BAD, ids=[json.dumps(c)[:60] for c, _, _ in BAD])
async def test_a_fault_names_its_field(tmp_path: Path, change: dict[str, Any], param: str, says: str) -> None:
    async with edge_server(tmp_path) as server:
        status, _, body = await server.chat(**change)
        assert server.routes.requests == []
    assert status == 400
    assert body["error"]["param"] == param
    assert says in body["error"]["message"]


async def test_values_arrive_as_they_were_sent(tmp_path: Path) -> None:
    """G140: vendor fields, big integers and nulls inside messages are kept; gateway fields are not."""
    sent = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": 1},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low"},
        "seed": 9007199254740993,
        "my_ext": {"a": [1, None]},
        "temperature": 0,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": "object"}},
        },
        "messages": [
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "user", "content": "x"},
        ],
    }
    gateway = {
        "provider": {"order": ["a"]},
        "models": ["b"],
        "route": "fallback",
        "user": "u",
        "session_id": "s",
        "metadata": {"k": "v"},
        "usage": {"include": True},
        "stream_options": {"include_usage": True},
        "ionrouter": {"strategy": "price"},
        "trace": {"trace_id": "t"},
    }
    async with edge_server(tmp_path) as server:
        assert (await server.chat(**sent, **gateway, top_p=None))[0] == 200
        (request,) = server.routes.requests
    assert dict(request.body) == sent
    assert request.parameters == {
        "top_k", "min_p", "repetition_penalty", "logit_bias", "parallel_tool_calls", "reasoning", "seed",
        "temperature", "response_format",
    }  # fmt: skip
    assert request.models == ("b",)
    assert request.preferences.order == ("a",)
    assert request.overrides.strategy == "price"
    assert request.session_id == "s"
    assert request.gateway_fields["provider"] == {"order": ["a"]}


@pytest.mark.parametrize(
    "field",
    [
        {"api_base": "http://127.0.0.1:9666/v1"},
        {"base_url": "http://127.0.0.1:9666/v1"},
        {"extra_headers": {"Authorization": "Bearer x"}},
        {"extra_body": {"api_base": "http://127.0.0.1:9666"}},
    ],
)
async def test_nothing_a_caller_adds_counts_as_a_model_parameter(
    tmp_path: Path, field: dict[str, Any]
) -> None:
    """G127, G128, the edge's half: such names never become parameters."""
    async with edge_server(tmp_path) as server:
        await server.chat(**field)
        (request,) = server.routes.requests
    assert request.parameters == frozenset()


async def test_options_for_nobody_are_told_and_those_for_another_provider_are_not(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        options = {"Fake": {"top_k": 1}, "far": {"top_k": 1}, "togehter": {"top_k": 1}}
        _, headers, _ = await server.chat(provider={"options": options})
    assert headers["X-Ionrouter-Dropped"] == "provider.options.togehter"


async def test_a_name_given_twice_in_json_is_read_once(tmp_path: Path) -> None:
    """G128: the object that is checked is the object that is used."""
    async with edge_server(tmp_path) as server:
        await _raw(server, b'{"model":"m","model":"other","messages":[{"role":"user","content":"x"}]}')
        (request,) = server.routes.requests
    assert request.model == "other"
    assert "model" not in request.body


async def test_explicit_zero_is_a_value_and_null_is_absent(tmp_path: Path) -> None:
    """G65, for requests."""
    async with edge_server(tmp_path) as server:
        await server.chat(temperature=0, top_k=0, seed=0, max_tokens=None, frequency_penalty=0.0)
        (request,) = server.routes.requests
    assert request.parameters == {"temperature", "top_k", "seed", "frequency_penalty"}
    assert request.max_tokens is None


@pytest.mark.parametrize("price", [0.5, "0.5", 0, "0"])
async def test_prices_are_numbers_or_strings(tmp_path: Path, price: object) -> None:
    async with edge_server(tmp_path) as server:
        assert (await server.chat(provider={"max_price": {"prompt": price}}))[0] == 200
        (request,) = server.routes.requests
    assert request.preferences.max_price == {"prompt": float(price)}  # type: ignore[arg-type]


async def test_newer_and_legacy_limits_and_sessions(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        await server.chat(max_tokens=9, max_completion_tokens=5)
        await server.chat(max_tokens=9, headers={"x-session-id": "header"})
        await server.chat(prompt_cache_key="cache", route="sort", include_reasoning=False)
        first, second, third = server.routes.requests
        assert_bad = await server.chat(headers={"x-session-id": "x" * 300})
    assert (first.max_tokens, second.max_tokens) == (5, 9)
    assert (second.session_id, third.session_id) == ("header", "cache")
    assert third.preferences.sort_partition == "none"
    assert third.body["reasoning"] == {"exclude": True}
    assert assert_bad[0] == 400


async def test_a_long_cache_key_is_a_session_by_its_hash(tmp_path: Path) -> None:
    """Sessions are remembered by the ten thousand, and kept with each request: they must be short."""
    one, other = "x" * 100_000, "x" * 100_001
    async with edge_server(tmp_path) as server:
        for key in (one, one, other, "x" * 256):
            assert (await server.chat(prompt_cache_key=key))[0] == 200
        first, again, third, short = (request.session_id for request in server.routes.requests)
    assert first is not None
    assert first == again
    assert first != third
    assert len(first) < 100
    assert short == "x" * 256
    assert server.routes.requests[0].body["prompt_cache_key"] == one  # the upstream's is whole


@pytest.mark.parametrize(
    ("prompt", "status", "tokens"),
    [
        ("hi there", 200, 2),
        (["hi there", "you"], 200, 3),
        ([1, 2], 200, 2),
        ([[1, 2], [3]], 200, 3),
        ([], 400, 0),
        ([""] * 129, 400, 0),
        ([[]], 400, 0),
        (5, 400, 0),
        ([1, "a"], 400, 0),
        (None, 400, 0),
    ],
)
async def test_prompts_are_text_or_token_ids(
    tmp_path: Path, prompt: object, status: int, tokens: int
) -> None:
    async with edge_server(tmp_path) as server:
        answer = await server.post("/api/v1/completions", {"model": "m", "prompt": prompt, "stream": True})
        assert [r.prompt_tokens for r in server.routes.requests] == ([tokens] if status == 200 else [])
    assert answer[0] == status
    if status == 400:
        assert answer[2]["error"]["param"].startswith("prompt")


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"prompt": ["a"] * 129}, "prompt", "prompt: should have at most 128 items"),
        ({"prompt": []}, "prompt", "prompt: should be a string or should have at least 1 item"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens: 0 makes sense with echo only"),
    ],
)
async def test_a_fault_of_a_completions_request_names_its_field_too(
    tmp_path: Path, change: dict[str, Any], param: str, says: str
) -> None:
    async with edge_server(tmp_path) as server:
        _, _, body = await server.post("/v1/completions", {"model": "m", "prompt": "x", **change})
    assert (body["error"]["param"], says in body["error"]["message"]) == (param, True), body


async def test_no_new_tokens_are_for_scoring_a_prompt_only(tmp_path: Path) -> None:
    """E08, E10, the edge's half."""
    base = {"model": "m", "prompt": "x", "stream": True}
    async with edge_server(tmp_path) as server:
        statuses = [
            (await server.post("/v1/completions", {**base, **change}))[0]
            for change in ({"max_tokens": 0, "echo": True}, {"max_tokens": 0}, {"top_k": -1}, {"top_k": -2})
        ]
    assert statuses == [200, 400, 200, 400]
