"""What of `provider.options` reaches an endpoint, and what limits make of it."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.balancing.options import options_for, unknown_options
from ionrouter.balancing.prompt_bound import most_prompt_tokens
from ionrouter.departures import upstream_request
from ionrouter.providers.upstream_body import build_body
from ionrouter.routing.table import Endpoint, Provider
from ionrouter.schema.request import InferenceRequest, ProviderPreferences
from tests.support.routes import endpoint, request, route, table

MESSAGES = [{"role": "user", "content": "hi"}]


def at(**provider: Any) -> Endpoint:
    return endpoint("a", provider=Provider(**{"slug": "a", "name": "A", "type": "openai"} | provider))


def asked(**options: Any) -> InferenceRequest:
    body = {"messages": MESSAGES, "max_tokens": 1}
    return request(body=body, max_tokens=1, preferences=ProviderPreferences(options=options))


def test_they_reach_the_named_provider_without_what_no_caller_may_set() -> None:
    got = options_for(
        asked(
            A={"safe_prompt": True, "api_base": "http://x", "model": "other", "litellm_params": {}},
            b={"raw": 1},
        ),
        at(),
    )
    assert got.given == {"safe_prompt": True}
    assert got.dropped == (
        "provider.options.A.api_base",
        "provider.options.A.litellm_params",
        "provider.options.A.model",
    )


@pytest.mark.parametrize("key", ["together", "Together AI", "together ai ", "TOGETHER", "together-ai/m"])
def test_a_provider_is_named_as_elsewhere(key: str) -> None:
    end = endpoint("together-ai/m", provider=Provider(slug="together", name="Together AI", type="openai"))
    assert options_for(asked(**{key: {"top_k": 3}}), end).given == {"top_k": 3}
    a_table = table(route("m", end))
    assert unknown_options(asked(**{key: {"top_k": 3}, "togehter": {}}), a_table) == (
        "provider.options.togehter",
    )


def test_what_another_router_may_know_is_not_called_unknown() -> None:
    end = at(forward_provider=True)
    assert unknown_options(asked(elsewhere={}), table(route("m", end))) == ()


@pytest.mark.parametrize(
    "name", ["api_version", "timeout", "stream_options", "cache", "aws_access_key_id", "Mock_Response"]
)
def test_what_is_withheld_is_told(name: str) -> None:
    sent = upstream_request(asked(a={name: 1, "kept": 1}), at())
    assert build_body(sent.request).get("kept") == 1
    assert name not in build_body(sent.request)
    assert sent.dropped == (f"provider.options.a.{name}",)


def test_the_engine_inside_takes_none_and_that_is_told() -> None:
    got = options_for(asked(a={"ignore_eos": True}), at(type="ion"))
    assert (got.given, got.dropped) == ({}, ("provider.options.a.ignore_eos",))


@pytest.mark.parametrize(
    "name",
    [
        *("max_tokens", "max_completion_tokens", "n", "best_of", "num_predict", "max_new_tokens"),
        *("maxOutputTokens", "generationConfig", "candidateCount", "N", "service_tier"),
    ],
)
def test_how_much_is_answered_is_said_in_the_request_where_limits_look(name: str) -> None:
    sent = upstream_request(asked(a={name: 500_000, "kept": 1}), at())
    assert build_body(sent.request) | {"model": ""} == {
        "messages": MESSAGES,
        "max_tokens": 1,
        "kept": 1,
        "model": "",
    }
    assert sent.dropped == (f"provider.options.a.{name}",)


def test_a_limit_counts_the_texts_in_them() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "x" * 10_000}}]
    assert most_prompt_tokens(asked(a={"tools": tools})) >= most_prompt_tokens(asked()) + 10_000
