"""What an OpenAI-shaped upstream gets in its body."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ionrouter.providers.upstream_body import build_body, count_choices, is_protected
from tests.support.endpoints import HELLO, make_endpoint, make_request


def body_of(body: dict[str, Any], *, stream: bool = False, **options: Any) -> dict[str, Any]:
    endpoint = make_endpoint("http://127.0.0.1:1/v1", options=options.pop("endpoint_options", None))
    return build_body(make_request(endpoint, {**HELLO, **body}, stream=stream, **options))


def test_the_model_is_the_endpoints_and_nothing_is_added() -> None:
    """G141."""
    assert body_of({"temperature": 0}) == {**HELLO, "temperature": 0, "model": "up-model"}


def test_a_stream_always_asks_for_usage() -> None:
    """G23."""
    assert body_of({}, stream=True) == {
        **HELLO, "model": "up-model", "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    asked = body_of({"stream_options": {"include_usage": False, "x": 1}}, stream=True)
    assert asked["stream_options"] == {"include_usage": True, "x": 1}
    assert "stream_options" not in body_of({"stream_options": {"include_usage": True}})


def test_embeddings_never_stream() -> None:
    body = body_of({"input": "x"}, stream=True, kind="embeddings")
    assert "stream" not in body
    assert "stream_options" not in body


def test_values_pass_unchanged() -> None:
    """G133, G140: null content, big integers, unknown fields."""
    sent: dict[str, Any] = {
        "messages": [{"role": "assistant", "content": None, "tool_calls": []}],
        "seed": 9007199254740993,
        "top_k": 5,
        "logit_bias": {"5": 1},
        "my_ext": {"a": [1]},
    }
    before = copy.deepcopy(sent)
    body = body_of(sent)
    assert {name: body[name] for name in sent} == before
    assert sent == before


@pytest.mark.parametrize(
    ("given", "field", "expected"),
    [
        ({"max_tokens": 5}, None, {"max_tokens": 5}),
        ({"max_completion_tokens": 5}, None, {"max_completion_tokens": 5}),
        ({"max_tokens": 9, "max_completion_tokens": 5}, None, {"max_completion_tokens": 5}),
        ({"max_tokens": 5}, "max_completion_tokens", {"max_completion_tokens": 5}),
        ({"max_completion_tokens": 5}, "max_tokens", {"max_tokens": 5}),
        ({"max_tokens": 9, "max_completion_tokens": 5}, "max_tokens", {"max_tokens": 5}),
        ({}, "max_tokens", {}),
        ({"max_tokens": None, "max_completion_tokens": 5}, "max_tokens", {"max_tokens": 5}),
    ],
)
def test_one_length_field_goes_out_under_the_endpoints_name(
    given: dict[str, Any], field: str | None, expected: dict[str, Any]
) -> None:
    """G136."""
    body = body_of(given, endpoint_options={"max_tokens_field": field} if field else None)
    assert {k: v for k, v in body.items() if k.startswith("max_")} == expected


def test_a_providers_option_is_the_default_of_its_endpoints() -> None:
    endpoint = make_endpoint("http://x/v1")
    provider = {"max_tokens_field": "max_completion_tokens"}
    object.__setattr__(endpoint.provider, "options", provider)
    assert build_body(make_request(endpoint, {"max_tokens": 5}))["max_completion_tokens"] == 5


@pytest.mark.parametrize(
    ("base_url", "kind", "field", "expected"),
    [
        ("https://api.openai.com/v1", "chat", None, "max_completion_tokens"),
        ("https://me.openai.azure.com/openai/v1", "chat", None, "max_completion_tokens"),
        ("https://api.openai.com/v1", "chat", "max_tokens", "max_tokens"),
        ("https://api.openai.com/v1", "completions", None, "max_tokens"),
        ("https://api.openai.com.example/v1", "chat", None, "max_tokens"),
        ("https://openai.example/v1", "chat", None, "max_tokens"),
    ],
)
def test_openai_gets_the_name_that_all_its_models_take(
    base_url: str, kind: Any, field: str | None, expected: str
) -> None:
    options = {"max_tokens_field": field} if field else None
    endpoint = make_endpoint(base_url, options=options)
    body = build_body(make_request(endpoint, {"max_tokens": 5}, kind=kind))
    assert {name: value for name, value in body.items() if name.startswith("max_")} == {expected: 5}


@pytest.mark.parametrize(
    "name",
    ["model", "messages", "stream", "API_BASE", "base_url", "api_key", "extra_headers", "extra_body",
     "headers",
     "custom_llm_provider", "model_list", "fallbacks", "api_version", "litellm_params", "aws_access_key_id",
     "mock_response", "num_retries"],
)  # fmt: skip
def test_options_of_a_caller_cannot_choose_model_address_or_credentials(name: str) -> None:
    """G127, G128."""
    assert is_protected(name)
    body = body_of({}, options={name: "evil", "top_k": 3})
    assert body == {**HELLO, "model": "up-model", "top_k": 3}


@pytest.mark.parametrize(
    ("body", "expected"),
    [({}, 1), ({"n": 3}, 3), ({"prompt": "x", "n": 2}, 2), ({"prompt": ["a", "b"]}, 2),
     ({"prompt": ["a", "b"], "n": 2}, 4), ({"prompt": [1, 2, 3]}, 1), ({"prompt": [[1, 2], [3]]}, 2),
     ({"n": "x"}, 1), ({"n": 0}, 1), ({"prompt": []}, 1)],
)  # fmt: skip
def test_choices_are_counted_by_prompt_and_n(body: dict[str, Any], expected: int) -> None:
    assert count_choices(body) == expected
