"""Which fields reach an endpoint."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from ionrouter.balancing.fields import (
    contract_needs,
    fit,
    lost_parameters,
    may_support,
    undeclared_parameters,
)
from ionrouter.providers.base import UpstreamRequest
from ionrouter.providers.upstream_body import build_body
from ionrouter.routing.endpoints import ION_PARAMETERS
from ionrouter.routing.table import Endpoint, Provider
from ionrouter.schema.request import InferenceRequest
from tests.support.routes import endpoint, request

MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]


def asked(**body: Any) -> InferenceRequest:
    known = frozenset(body) & {
        "temperature",
        "top_k",
        "seed",
        "tools",
        "tool_choice",
        "logprobs",
        "max_tokens",
    }
    return request(body={"messages": MESSAGES, **body}, parameters=known)


@pytest.mark.parametrize(
    ("name", "nothing", "something"),
    [
        ("n", 1, 2),
        ("response_format", {"type": "text"}, {"type": "json_object"}),
        ("logprobs", False, True),
        ("top_logprobs", 0, 2),
        ("structured_outputs", False, True),
        ("tools", [], [{"type": "function"}]),
        ("tool_choice", "auto", "required"),
        ("stop", [], ["x"]),
        ("logit_bias", {}, {"5": 1}),
        ("presence_penalty", 0, 0.1),
        ("frequency_penalty", 0.0, -0.1),
        ("top_a", 0, 0.2),
        ("parallel_tool_calls", True, False),
        ("verbosity", "medium", "low"),
        ("reasoning", {"exclude": True}, {"exclude": True, "effort": "low"}),
        ("reasoning", {}, {"enabled": False}),
    ],
)
def test_what_asks_for_nothing_is_nothing_to_lose(name: str, nothing: Any, something: Any) -> None:
    end = endpoint("e", supported_parameters=frozenset({"temperature"}))
    for value, lost in ((nothing, ()), (something, (name,))):
        wanted = request(body={"messages": MESSAGES, name: value}, parameters=frozenset({name}))
        assert lost_parameters(wanted, end) == undeclared_parameters(wanted, end) == lost
        told = fit(wanted, end)
        assert name not in told.body and told.dropped == lost


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", 1), ("top_p", 1), ("top_k", 0), ("min_p", 0), ("repetition_penalty", 1)),
        ("web_search_options", {}),  # which turns the search on
    ],
)
def test_what_turns_something_off_or_on_is_a_wish(name: str, value: Any) -> None:
    end = endpoint("e", supported_parameters=frozenset({"seed"}))
    wanted = request(body={"messages": MESSAGES, name: value}, parameters=frozenset({name}))
    assert lost_parameters(wanted, end) == fit(wanted, end).dropped == (name,)


def test_of_fields_that_nobody_lists_those_that_are_known_to_ask_nothing_are_not_told() -> None:
    end = endpoint("e", supported_parameters=frozenset({"seed"}))
    unlisted = {"service_tier": "auto", "best_of": 1, "guided_json": {}, "frobnicate": []}
    wanted = request(body={"messages": MESSAGES, **unlisted})
    assert fit(wanted, end).dropped == ("frobnicate", "guided_json")


@pytest.mark.parametrize(("best_of", "dropped"), [(2, ()), (1, ()), (3, ("best_of",))])
def test_the_best_of_as_many_answers_as_are_given_asks_nothing(
    best_of: int, dropped: tuple[str, ...]
) -> None:
    wanted = request(body={"messages": MESSAGES, "n": 2, "best_of": best_of})
    assert fit(wanted, endpoint("e", supported_parameters=frozenset({"n"}))).dropped == dropped


def declaring(*names: str, **provider: Any) -> Endpoint:
    return endpoint(
        "a",
        supported_parameters=frozenset(names),
        provider=Provider(slug="a", name="A", type="openai", **provider),
    )


def test_supported_parameters_are_sent_and_unsupported_sampling_ones_dropped_and_listed() -> None:
    fitted = fit(asked(temperature=0.5, top_k=5, seed=9007199254740993), declaring("temperature", "seed"))
    assert fitted.body == {"messages": MESSAGES, "temperature": 0.5, "seed": 9007199254740993}
    assert fitted.dropped == ("top_k",)


def test_an_endpoint_that_declares_nothing_gets_every_known_parameter() -> None:
    fitted = fit(asked(temperature=0.5, tools=[{"type": "function"}], n=2), declaring())
    assert set(fitted.body) == {"messages", "temperature", "tools", "n"}
    assert fitted.dropped == ()


def test_unknown_fields_go_only_where_they_are_forwarded() -> None:
    assert fit(asked(my_ext={"a": [1]}), declaring()).dropped == ("my_ext",)
    assert fit(asked(my_ext={"a": [1]}), declaring(forward_unknown=True)).body["my_ext"] == {"a": [1]}
    assert fit(asked(my_ext=1), declaring("my_ext")).body["my_ext"] == 1


def test_the_engine_inside_gets_its_own_extras_and_what_it_must_refuse_and_no_unknown_field() -> None:
    inside = endpoint(
        "a",
        supported_parameters=ION_PARAMETERS,
        provider=Provider(slug="a", name="A", type="ion"),
    )
    taken = {"ignore_eos": True, "guided_regex": "a+", "service_tier": "flex", "reasoning": {"effort": "low"}}
    fitted = fit(asked(**taken, frobnicate=1, best_of=2, verbosity="low"), inside)
    assert fitted.body == {"messages": MESSAGES, **taken, "best_of": 2}
    assert fitted.dropped == ("frobnicate", "verbosity")


@pytest.mark.parametrize(
    "name",
    [
        "model",
        "models",
        "stream",
        "stream_options",
        "provider",
        "plugins",
        "session_id",
        "ionrouter",
        "route",
    ],
)
def test_what_is_read_here_never_reaches_an_upstream(name: str) -> None:
    fitted = fit(asked(**{name: "x"}), declaring(name, forward_unknown=True))
    assert name not in fitted.body and name not in fitted.dropped


@pytest.mark.parametrize(
    "name",
    [
        "api_base", "base_url", "api_key", "custom_llm_provider", "model_list", "fallbacks", "extra_headers",
        "extra_body", "litellm_metadata", "mock_tool_calls", "aws_access_key_id", "callbacks", "drop_params",
    ],
)  # fmt: skip
def test_what_client_libraries_read_as_an_instruction_never_reaches_one_and_that_is_told(name: str) -> None:
    fitted = fit(asked(**{name: "x"}), declaring(name, forward_unknown=True))
    assert name not in fitted.body and fitted.dropped == (name,)


def test_another_router_gets_the_callers_provider_object() -> None:
    raw = {"order": ["together"]}
    sent = request(gateway_fields={"provider": raw})
    assert fit(sent, declaring(forward_provider=True)).body["provider"] == raw
    assert "provider" not in fit(sent, declaring()).body


def test_the_clients_body_is_never_changed_and_never_shared() -> None:
    """G44"""
    sent = asked(tools=[{"type": "function", "function": {"name": "f"}}])
    before = copy.deepcopy(sent.body)
    changing = replace(declaring(), provider=Provider(slug="a", name="A", type="litellm"))
    body: Any = fit(sent, changing).body
    body["messages"][0]["content"][0]["text"] = "changed"
    body["tools"][0]["function"]["name"] = "g"
    assert sent.body == before
    plain = fit(sent, declaring()).body
    wire = build_body(UpstreamRequest("gen-1", "chat", declaring(), plain, stream=True))
    assert wire["messages"] == sent.body["messages"]
    assert sent.body == before == plain


def test_null_content_of_a_tool_call_stays() -> None:
    messages = [{"role": "assistant", "content": None, "tool_calls": []}]
    assert fit(request(body={"messages": messages}), declaring()).body["messages"] == messages


@pytest.mark.parametrize(
    ("body", "declared", "sent"),
    [
        ({"max_tokens": 5}, (), {"max_tokens": 5}),
        ({"max_completion_tokens": 5}, (), {"max_tokens": 5}),
        ({"max_completion_tokens": 5}, ("max_tokens",), {"max_tokens": 5}),
        ({"max_tokens": 5}, ("max_completion_tokens",), {"max_completion_tokens": 5}),
        ({"max_tokens": 9, "max_completion_tokens": 5}, (), {"max_tokens": 5}),
        (
            {"max_tokens": 9, "max_completion_tokens": 5},
            ("max_tokens", "max_completion_tokens"),
            {"max_completion_tokens": 5},
        ),
        ({"max_tokens": 5}, ("temperature",), {"max_tokens": 5}),
        ({"max_tokens": None}, (), {}),
    ],
)
def test_exactly_one_name_for_the_length_limit_is_sent(
    body: dict[str, Any], declared: tuple[str, ...], sent: dict[str, Any]
) -> None:
    """G136; a limit is never dropped, it is money."""
    fitted = fit(asked(**body), declaring(*declared))
    assert {k: v for k, v in fitted.body.items() if k != "messages"} == sent
    assert fitted.dropped == ()


@pytest.mark.parametrize(
    ("body", "needs"),
    [
        ({"tools": [{}]}, {"tools"}),
        ({"tools": []}, set()),
        ({"tool_choice": "auto"}, set()),
        ({"tool_choice": "required"}, {"tool_choice"}),
        ({"tool_choice": "none"}, set()),
        ({"tool_choice": "none", "tools": []}, set()),
        ({"tool_choice": "none", "tools": [{}]}, {"tool_choice", "tools"}),
        ({"response_format": {"type": "text"}}, set()),
        ({"response_format": {"type": "json_schema"}}, {"response_format"}),
        ({"logprobs": True}, {"logprobs"}),
        ({"logprobs": False}, set()),
        ({"logprobs": 0}, {"logprobs"}),  # completions: 0 means "no alternatives", and asks for them
        ({"n": 1}, set()),
        ({"n": 2}, {"n"}),
        ({"modalities": ["text", "audio"]}, {"modalities"}),
        ({"temperature": 1.0}, set()),
    ],
)
def test_what_changes_the_answers_contract_depends_on_the_value(
    body: dict[str, Any], needs: set[str]
) -> None:
    assert contract_needs(asked(**body)) == needs


def test_declaring_structured_outputs_declares_a_response_format() -> None:
    assert may_support(declaring("structured_outputs"), "response_format")
    assert not may_support(declaring("temperature"), "response_format")
    assert may_support(declaring("max_tokens"), "max_completion_tokens")


def test_lost_and_undeclared_parameters() -> None:
    sent = asked(temperature=1, top_k=2, tools=[{}])
    assert lost_parameters(sent, declaring("temperature")) == ("tools", "top_k")
    assert lost_parameters(sent, declaring()) == ()
    assert undeclared_parameters(sent, declaring("temperature", "tools")) == ("top_k",)
    assert undeclared_parameters(sent, declaring()) == ("tools",)


def test_a_choice_of_no_tool_where_there_is_none_is_left_out_silently() -> None:
    fitted = fit(asked(tool_choice="none"), declaring("temperature"))
    assert "tool_choice" not in fitted.body and fitted.dropped == ()
    assert undeclared_parameters(asked(tool_choice="none"), declaring("temperature")) == ()


@pytest.mark.parametrize("name", ["anthropic", "gemini", "groq"])
@pytest.mark.parametrize("is_claudes", [True, False])
def test_it_is_told_that_a_tool_is_not_strict(name: str, is_claudes: bool) -> None:
    provider = Provider(slug="a", name="A", type="litellm", litellm_provider=name)
    tool: dict[str, Any] = {"type": "function", "function": {"name": "f", "strict": True}}
    if is_claudes:
        tool["tool_extras"] = {"strict": True}
    fitted = fit(request(body={"messages": [], "tools": [tool]}), endpoint("a", provider=provider))
    is_told = name == "gemini" or (name == "anthropic" and not is_claudes)
    assert fitted.dropped == (("tools.strict",) if is_told else ())
