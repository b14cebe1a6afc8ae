"""From a parsed body to a frozen request: what is read, what goes upstream, how faults are named."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ionrouter.errors import RequestError
from ionrouter.schema.chat import ChatRequest
from ionrouter.schema.common import GENERATION_ID, new_generation_id
from ionrouter.schema.fields import GATEWAY_FIELDS, MODEL_PARAMETERS
from ionrouter.schema.request import InferenceRequest, PercentileCutoffs
from ionrouter.schema.validation import field_path, validated

HI = [{"role": "user", "content": "hi"}]


def frozen(**body: Any) -> InferenceRequest:
    whole = {"model": "m", "messages": HI, **body}
    parsed = validated(ChatRequest, whole)
    return parsed.to_request(
        whole,
        kind="chat",
        request_id="gen-1",
        characters=parsed.num_characters(),
        modalities=parsed.input_modalities(),
        session_id=None,
        key_id=None,
        arrived_at=1.0,
    )


def test_what_the_gateway_reads_never_goes_upstream_and_no_parameter_is_among_it() -> None:
    assert not GATEWAY_FIELDS & MODEL_PARAMETERS
    request = frozen(provider={"only": ["a"]}, user="u", trace={}, cache_control={"type": "ephemeral"})
    assert not request.body.keys() & GATEWAY_FIELDS
    assert request.gateway_fields["user"] == "u"


@pytest.mark.parametrize("value", [16.0, 1.6e1])
@pytest.mark.parametrize(
    "name", ["max_tokens", "max_completion_tokens", "top_k", "seed", "n", "prompt_logprobs", "top_logprobs"]
)
def test_a_whole_number_may_be_written_as_a_double(name: str, value: float) -> None:
    """Clients whose JSON knows doubles only; upstreams get what they expect."""
    sent = frozen(logprobs=True, **{name: value}).body[name]
    assert (sent, type(sent)) == (16, int)


def test_so_may_a_budget_of_thoughts() -> None:
    sent = frozen(reasoning={"max_tokens": 2e3}).body["reasoning"]["max_tokens"]
    assert (sent, type(sent)) == (2000, int)


@pytest.mark.parametrize("value", [1.5, True, "5", 1e30, float(2**60)])
def test_what_is_no_whole_number_stays_refused(value: Any) -> None:
    with pytest.raises(RequestError, match="max_tokens: should be an integer"):
        frozen(max_tokens=value)


def test_models_are_tried_once_each_in_order() -> None:
    request = frozen(models=["b", "m", "b", "c"])
    assert (request.model, request.models) == ("m", ("b", "c"))
    assert frozen(model=None, models=["x", "y"]).model == "x"


def test_preferences_are_read_whole() -> None:
    preferences = frozen(
        provider={
            "order": ["a"],
            "only": ["b"],
            "ignore": ["c"],
            "allow_fallbacks": False,
            "require_parameters": True,
            "data_collection": "deny",
            "zdr": True,
            "quantizations": ["fp8"],
            "sort": {"by": "latency", "partition": "none"},
            "max_price": {"prompt": "0.5", "completion": 2},
            "preferred_max_latency": 1.5,
            "preferred_min_throughput": {"p90": 50},
            "options": {"a": {"k": 1}},
        }
    ).preferences
    assert (preferences.order, preferences.only, preferences.ignore) == (("a",), ("b",), ("c",))
    assert (preferences.allow_fallbacks, preferences.require_parameters, preferences.zdr) == (
        False,
        True,
        True,
    )
    assert (preferences.data_collection, preferences.quantizations) == ("deny", ("fp8",))
    assert (preferences.sort, preferences.sort_partition) == ("latency", "none")
    assert preferences.max_price == {"prompt": 0.5, "completion": 2.0}
    assert preferences.preferred_max_latency == PercentileCutoffs({"p50": 1.5})
    assert preferences.preferred_min_throughput == PercentileCutoffs({"p90": 50.0})
    assert preferences.options == {"a": {"k": 1}}


def test_null_preferences_are_none_at_all() -> None:
    assert frozen(provider=None).preferences == frozen().preferences
    assert frozen(provider={"order": None, "sort": None}).preferences == frozen().preferences
    assert frozen(provider={"sort": "price"}).preferences.sort == "price"


@pytest.mark.parametrize(
    ("body", "excluded"),
    [
        ({"include_reasoning": False}, {"exclude": True}),
        ({"include_reasoning": True}, None),
        ({"include_reasoning": False, "reasoning": {"effort": "low"}}, {"effort": "low"}),
    ],
)
def test_the_legacy_reasoning_switch_is_translated(body: dict[str, Any], excluded: object) -> None:
    assert frozen(**body).body.get("reasoning") == excluded


def test_a_switched_off_plugin_is_no_fault() -> None:
    assert frozen(plugins=[{"id": "web", "enabled": False}]).model == "m"
    with pytest.raises(RequestError, match="plugin 'unheard-of' is not supported"):
        frozen(plugins=[{"id": "unheard-of"}])


def test_tokens_are_estimated_from_text_tools_and_calls() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "d" * 400}}
    call = {"id": "1", "function": {"name": "f", "arguments": "a" * 400}}
    plain = frozen().prompt_tokens
    assert frozen(tools=[tool]).prompt_tokens >= plain + 100
    assert frozen(messages=[*HI, {"role": "assistant", "tool_calls": [call]}]).prompt_tokens >= plain + 100


def test_generation_ids_look_like_openrouters() -> None:
    made = new_generation_id(1795823634.9)
    assert re.fullmatch(r"gen-1795823634-[A-Za-z0-9]{20}", made)
    assert GENERATION_ID.fullmatch(made)
    assert made != new_generation_id(1795823634.9)


def test_places_are_written_as_people_write_them() -> None:
    assert field_path(("messages", 0, "content", 2, "text")) == "messages[0].content[2].text"
    assert field_path(()) == ""


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_fields = st.sampled_from(sorted((GATEWAY_FIELDS | MODEL_PARAMETERS | {"messages"}) - {"stream"}))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault
@given(st.dictionaries(_fields, _json, max_size=4))
def test_no_body_is_more_than_a_request_error(body: dict[str, Any]) -> None:
    """Whatever a client sends is a frozen request or a 400 with a message, never another exception."""
    try:
        request = frozen(**body)
    except RequestError as error:
        assert error.status == 400
        assert error.message
    else:
        assert not request.body.keys() & GATEWAY_FIELDS
        assert request.parameters <= request.body.keys()
