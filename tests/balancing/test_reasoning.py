"""One wish to think, in each endpoint's words."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.balancing.reasoning import in_words_of, thinking
from ionrouter.routing.table import Endpoint, Provider
from tests.support.routes import endpoint, request


def at(*declared: str, **provider: Any) -> Endpoint:
    server = Provider("s", "S", provider.pop("type", "openai"), **provider)
    return endpoint("e", provider=server, supported_parameters=frozenset(declared))


@pytest.mark.parametrize(
    ("body", "effort"),
    [
        ({"reasoning": {"effort": "high"}}, "high"),
        ({"reasoning": {"enabled": True}}, "medium"),
        ({"reasoning": {"enabled": False}}, "none"),
        ({"reasoning": {"max_tokens": 900}, "max_tokens": 1000}, "xhigh"),
        ({"reasoning": {"max_tokens": 250}, "max_completion_tokens": 1000}, "low"),
        ({"reasoning": {"max_tokens": 250}}, "medium"),
        ({"reasoning": {"max_tokens": 0}}, "none"),
        ({"reasoning_effort": "low"}, "low"),
        ({"reasoning_effort": "low", "reasoning": {"exclude": True}}, "low"),
        ({"reasoning": {"exclude": True}}, None),
        ({"reasoning": {}}, None),
    ],
)
def test_a_server_that_does_not_declare_the_object_gets_an_effort(body: dict[str, Any], effort: str) -> None:
    for server in (at(), at("reasoning_effort")):
        said = in_words_of(server, body)
        assert said.get("reasoning_effort") == effort and "reasoning" not in said


def test_routers_and_servers_that_declare_the_object_get_one_object() -> None:
    body = {"reasoning": {"exclude": True}, "reasoning_effort": "low", "seed": 1}
    for server in (at("reasoning"), at(forward_provider=True)):
        assert in_words_of(server, body) == {"seed": 1, "reasoning": {"exclude": True, "effort": "low"}}
    assert body["reasoning"] == {"exclude": True}


@pytest.mark.parametrize("server", [at(), at("reasoning"), at(forward_provider=True)])
def test_what_claude_alone_is_told_goes_to_no_server_of_openais_shapes(server: Endpoint) -> None:
    body = {"reasoning": {"effort": "low", "thinking": {"type": "adaptive", "display": "omitted"}}}
    said = in_words_of(server, body)
    assert said in ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"})


def test_doors_that_translate_on_their_own_get_what_the_caller_said() -> None:
    body = {"reasoning": {"effort": "high"}}
    assert in_words_of(at(type="litellm"), body) is body
    plain = {"seed": 1}
    assert in_words_of(at(), plain) is plain


@pytest.mark.parametrize(
    ("said", "reasoning"),
    [
        ({}, {"enabled": True}),
        ({"reasoning": {"exclude": True}}, {"exclude": True, "enabled": True}),
        ({"reasoning": {"effort": "low"}}, {"effort": "low"}),
        ({"reasoning": {"enabled": False}}, {"enabled": False}),
        ({"reasoning_effort": "none"}, None),
    ],
)
def test_thinking_is_on_unless_the_caller_says_otherwise(said: dict[str, Any], reasoning: Any) -> None:
    asked = thinking(request(body={"messages": [], **said}))
    assert asked.body.get("reasoning") == reasoning
    assert ("reasoning" in asked.parameters) is (
        reasoning is not None and reasoning.get("enabled") is True and said != {"reasoning": reasoning}
    )
