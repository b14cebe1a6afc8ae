"""Hard filters: each removes what it should, says why, and removes nothing else."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ionrouter.balancing.fields import contract_needs
from ionrouter.balancing.health import Health
from ionrouter.balancing.screen import FILTERS, Exclusion, Subject, screen
from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.routing.table import Endpoint, Provider
from ionrouter.routing.tags import matches
from ionrouter.schema.load import EngineLoad
from ionrouter.schema.request import InferenceRequest, ProviderPreferences
from tests.support.routes import endpoint, price, request, route


def judged(
    asked: InferenceRequest, at: Endpoint, health: Health | None = None, load: EngineLoad | None = None
) -> Exclusion | None:
    subject = Subject(at, asked, health or Health(), load, 100.0, contract_needs(asked))
    return screen(subject, route("m", at))


def wishing(**wishes: Any) -> InferenceRequest:
    return request(preferences=ProviderPreferences(**wishes))


def with_provider(**changes: Any) -> Endpoint:
    return endpoint("a", provider=Provider(slug="a", name="A", type="fake", **changes))


TOOLS = request(body={"messages": [], "tools": [{}]}, parameters=frozenset({"tools"}))


@pytest.mark.parametrize(
    ("asked", "kept", "removed", "name", "says"),
    [
        (request(), endpoint("a"), endpoint("a", disabled="A_KEY is unset"), "disabled", "A_KEY is unset"),
        (wishing(only=("a",)), endpoint("a"), endpoint("b"), "allowed_providers", "only"),
        (wishing(ignore=("b",)), endpoint("a"), endpoint("b"), "allowed_providers", "ignore"),
        (
            wishing(order=("a",), allow_fallbacks=False),
            endpoint("a"),
            endpoint("b"),
            "allowed_providers",
            "order",
        ),
        (
            wishing(quantizations=("fp8",)),
            endpoint("a", quantization="mxfp8"),
            endpoint("a", quantization="fp16"),
            "quantization",
            "fp16",
        ),
        (
            wishing(quantizations=("fp4",)),
            endpoint("a", quantization="nvfp4"),
            endpoint("a", quantization="unknown"),
            "quantization",
            "unknown",
        ),
        (
            wishing(quantizations=("mxfp4",)),
            endpoint("a", quantization="mxfp4"),
            endpoint("a", quantization="fp4"),
            "quantization",
            "fp4",
        ),
        (
            wishing(max_price={"prompt": 1.0}),
            endpoint("a", price=price(1.0, 99)),
            endpoint("a", price=price(1.01, 0)),
            "max_price",
            "prompt price 1.01",
        ),
        (
            wishing(max_price={"completion": 0}),
            endpoint("a", price=price(9, 0)),
            endpoint("a", price=price(0, 0.1)),
            "max_price",
            "completion",
        ),
        (
            wishing(max_price={"request": 0.01}),
            endpoint("a", price=price(request=0.01)),
            endpoint("a", price=price(request=0.02)),
            "max_price",
            "request",
        ),
        (
            wishing(data_collection="deny"),
            with_provider(data_collection="deny"),
            with_provider(),
            "data_policy:training",
            "train",
        ),
        (wishing(zdr=True), with_provider(zdr=True), with_provider(), "data_policy:zdr", "retention"),
        (
            request(prompt_tokens=100, max_tokens=28),
            endpoint("a", context_length=128),
            endpoint("a", context_length=127),
            "context_length",
            "about 100 prompt tokens + 28 max_tokens",
        ),
        (
            request(max_tokens=50),
            endpoint("a", max_completion_tokens=50),
            endpoint("a", max_completion_tokens=49),
            "context_length",
            "49",
        ),
        (
            request(parameters=frozenset({"seed"}), preferences=ProviderPreferences(require_parameters=True)),
            endpoint("a", supported_parameters=frozenset({"seed"})),
            endpoint("a", supported_parameters=frozenset({"stop"})),
            "require_parameters",
            "seed",
        ),
        (
            request(input_modalities=frozenset({"text", "image"})),
            endpoint("a", input_modalities=frozenset({"text", "image"})),
            endpoint("a"),
            "input_modalities",
            "image",
        ),
        (
            TOOLS,
            endpoint("a", supported_parameters=frozenset({"tools"})),
            endpoint("a", supported_parameters=frozenset({"seed"})),
            "capability",
            "tools",
        ),
        (TOOLS, endpoint("a"), endpoint("a", supported_parameters=frozenset({"n"})), "capability", "tools"),
    ],
)
def test_a_filter_removes_what_it_is_for_and_says_why(
    asked: InferenceRequest, kept: Endpoint, removed: Endpoint, name: str, says: str
) -> None:
    assert judged(asked, kept) is None
    exclusion = judged(asked, removed)
    assert exclusion is not None
    assert exclusion.filter == name and says in exclusion.reason


def test_nothing_is_known_to_allow_distillation() -> None:
    exclusion = judged(wishing(enforce_distillable_text=True), endpoint("a"))
    assert exclusion is not None and exclusion.filter == "distillable"


def test_zero_data_retention_false_filters_nothing() -> None:
    assert judged(wishing(zdr=False, data_collection="allow"), endpoint("a")) is None


@pytest.mark.parametrize(
    ("stated", "engines"), [(None, 100), (1_000_000, 100), (100, 1_000_000), (100, None)]
)
def test_the_smaller_of_the_files_context_and_the_engines_counts(
    stated: int | None, engines: int | None
) -> None:
    at, load = endpoint("a", context_length=stated), EngineLoad(ready=True, context_length=engines)
    assert judged(request(prompt_tokens=90, max_tokens=10), at, load=load) is None
    over = judged(request(prompt_tokens=91, max_tokens=10), at, load=load)
    assert over is not None and (over.filter, over.room) == ("context_length", 100)
    assert "over the context length 100" in over.reason


def test_an_unknown_context_length_is_no_obstacle() -> None:
    assert judged(request(prompt_tokens=10**9), endpoint("a")) is None


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (EngineLoad(ready=True), None),
        (EngineLoad(ready=False, reason="loading"), "loading"),
        (EngineLoad(ready=False, reason="failed: no such file"), "failed: no such file"),
        (EngineLoad(ready=False), None),  # cold: priced, not excluded
    ],
)
def test_a_loading_local_model_is_left_out(load: EngineLoad, reason: str | None) -> None:
    exclusion = judged(request(), endpoint("a"), load=load)
    assert (exclusion.reason if exclusion else None) == reason


def test_retry_after_keeps_away_until_its_time() -> None:
    health = Health()
    health.retry_at = 107.0
    exclusion = judged(request(), endpoint("a"), health)
    assert exclusion is not None
    assert (exclusion.filter, exclusion.until) == ("retry_after", 107.0)
    health.retry_at = 100.0
    assert judged(request(), endpoint("a"), health) is None


def test_an_open_breaker_keeps_away_and_tells_whose_fault_it_was() -> None:
    health = Health()
    health.fail(100.0, UpstreamError(FailureClass.DOMAIN, "no"), 0.1, 0.0, after_commit=False)
    exclusion = judged(request(), endpoint("a"), health)
    assert exclusion is not None
    assert exclusion.filter == "breaker_open" and exclusion.is_domain
    assert "refuses our account" in exclusion.reason


def test_a_trial_under_way_keeps_everybody_else_away() -> None:
    health = Health()
    for _ in range(3):
        health.breaker.fail(80.0)
    assert judged(request(), endpoint("a"), health) is None
    health.breaker.try_acquire(100.0)
    exclusion = judged(request(), endpoint("a"), health)
    assert exclusion is not None and "trial" in exclusion.reason


@pytest.mark.parametrize(
    ("name", "does"),
    [
        ("deepinfra", True),
        ("DeepInfra", True),
        ("Deep Infra", True),
        ("deep infra", True),
        ("deepinfra/turbo", True),
        ("DEEPINFRA/TURBO", True),
        ("deepinfra/fp8", False),
        ("deep", False),
        ("deepinfra/", False),
    ],
)
def test_names_match_slug_tag_and_display_name_in_any_case(name: str, does: bool) -> None:
    one = endpoint(
        "x", tag="deepinfra/turbo", provider=Provider(slug="deepinfra", name="Deep Infra", type="fake")
    )
    assert matches(name, one) is does


def test_another_service_tier_is_only_meant_by_its_full_tag() -> None:
    flex = endpoint("x", tag="openai/flex", provider=Provider(slug="openai", name="OpenAI", type="fake"))
    assert not matches("openai", flex) and not matches("OpenAI", flex)
    assert matches("openai/flex", flex)


ODD_REQUESTS = (
    request(),
    request(input_modalities=frozenset({"text", "image"})),
    request(prompt_tokens=90, max_tokens=20),
    request(max_tokens=500),
    request(prompt_tokens=5000, context_tokens=50),
    *(request(service_tier=tier) for tier in ("flex", "priority", "default", "odd")),
    TOOLS,
    wishing(only=("b",)),
    wishing(zdr=True),
)
ODD_ENDPOINTS = (
    endpoint("a"),
    endpoint("a", disabled="A_KEY is unset"),
    endpoint("a", service_tier="flex"),
    endpoint("a", context_length=100),
    endpoint("a", max_completion_tokens=100),
    endpoint("a", input_modalities=frozenset({"image"})),
    endpoint("a", supported_parameters=frozenset({"seed"})),
)
ODD_LOADS = (
    None,
    EngineLoad(ready=True),
    EngineLoad(ready=True, context_length=50),
    EngineLoad(ready=False),
    EngineLoad(ready=False, reason="loading"),
)


def odd_healths() -> list[Health]:
    waiting, over, broken, trying = Health(), Health(), Health(), Health()
    waiting.retry_at, over.retry_at = 100.5, 100.0
    broken.breaker.trip(99.0)
    trying.breaker.trip(50.0)
    trying.breaker.try_acquire(100.0)
    return [Health(), waiting, over, broken, trying]


@pytest.mark.parametrize("asked", ODD_REQUESTS)
def test_nothing_is_let_through_that_one_of_the_filters_objects_to(asked: InferenceRequest) -> None:
    cases = itertools.product(ODD_ENDPOINTS, odd_healths(), ODD_LOADS)
    for at, health, load in cases:
        asked_as = route("m", at, endpoint("b", service_tier="flex"))
        subject = Subject(at, asked, health, load, 100.0, contract_needs(asked), asked_as)
        objecting = next((name for name, objection in FILTERS if objection(subject)), None)
        found = screen(subject, asked_as)
        assert (found and found.filter) == objecting
