"""Builds model, endpoint and provider listings from the routing table and the statistics. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from ionrouter.routing.table import Endpoint, ModelRoute, PartPrices, Price, Provider
from ionrouter.schema.models import (
    Architecture,
    EndpointCard,
    ModelCard,
    ModelEndpoints,
    Percentiles,
    Pricing,
    ProviderCard,
    ToolChoiceSupport,
    TopProvider,
    WorkloadPerformance,
    price_string,
)
from ionrouter.schema.request import WHOLE_KINDS
from ionrouter.stats.book import Percentiles as Measured
from ionrouter.stats.published import EndpointSummary

STATUS_DISABLED = -10
# OpenRouter's way to say that a router's price is that of the model it picks.
UNKNOWN_PRICING: dict[str, Any] = {
    "prompt": "-1",
    "completion": "-1",
    "request": "-1",
    "image": "-1",
    "discount": 0,
}


def enabled(model: ModelRoute) -> tuple[Endpoint, ...]:
    return tuple(endpoint for endpoint in model.endpoints if endpoint.disabled is None)


def cheapest(endpoints: Iterable[Endpoint]) -> Endpoint | None:
    return min(endpoints, key=lambda e: (e.price.prompt + e.price.completion, e.id), default=None)


def author_of(model_id: str) -> str:
    author, slash, _ = model_id.partition("/")
    return author if slash else "ionrouter"


def model_card(model: ModelRoute) -> ModelCard:
    """One row of GET /models, priced at its cheapest endpoint that takes traffic."""
    usable = enabled(model) or model.endpoints
    top = cheapest(usable)
    return ModelCard(
        id=model.id,
        owned_by=author_of(model.id),
        canonical_slug=model.id,
        hugging_face_id=model.hugging_face_id,
        name=model.name,
        created=model.created,
        description=model.description,
        context_length=context_length(model),
        architecture=architecture(model),
        pricing=UNKNOWN_PRICING if model.group else pricing(top.price if top else Price()),
        top_provider=TopProvider(
            context_length=top.context_length if top else None,
            max_completion_tokens=top.max_completion_tokens if top else None,
        ),
        supported_parameters=sorted(frozenset().union(*(e.supported_parameters for e in usable))),
        links={"details": f"/api/v1/models/{model.id}/endpoints"},
    )


def for_anthropics(card: dict[str, Any]) -> dict[str, Any]:
    """A model's card with the fields of Anthropic's beside ours."""
    created = datetime.fromtimestamp(card["created"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    limits = {
        "max_input_tokens": card["context_length"],
        "max_tokens": card["top_provider"]["max_completion_tokens"],
    }
    return {**card, "type": "model", "display_name": card["name"], "created_at": created, **limits}


def context_length(model: ModelRoute) -> int | None:
    known = [e.context_length for e in model.endpoints if e.context_length is not None]
    return model.context_length if model.context_length is not None else max(known, default=None)


def architecture(model: ModelRoute) -> Architecture:
    inputs, outputs = list(model.input_modalities), list(model.output_modalities)
    return Architecture(
        modality=f"{'+'.join(inputs)}->{'+'.join(outputs)}",
        input_modalities=inputs,
        output_modalities=outputs,
        tokenizer=model.tokenizer,
        instruct_type=model.instruct_type,
    )


def pricing(price: Price) -> dict[str, Any]:
    overrides, above = [], price
    while above.long is not None:
        overrides.append({"min_prompt_tokens": above.long_above, **_token_prices(above.long)})
        above = above.long
    request = price_string(price.request)
    return Pricing(**_token_prices(price), request=request, overrides=overrides or None).object()


def _token_prices(price: Price) -> dict[str, Any]:
    parts = price.parts or PartPrices()
    prices = {
        "prompt": price.prompt,
        "completion": price.completion,
        "input_cache_read": price.cache_read,
        "input_cache_write": price.cache_write,
        "input_cache_write_1h": parts.cache_write_1h,
        "audio": parts.audio,
        "image_token": parts.image_token,
        "audio_output": parts.audio_output,
        "image_output": parts.image_output,
        "internal_reasoning": parts.reasoning,
    }
    return {name: price_string(usd) for name, usd in prices.items() if usd is not None}


def model_endpoints(model: ModelRoute, endpoints: list[EndpointCard]) -> ModelEndpoints:
    return ModelEndpoints(
        id=model.id,
        name=model.name,
        created=model.created,
        description=model.description,
        architecture=architecture(model),
        endpoints=endpoints,
    )


def endpoint_card(
    model: ModelRoute,
    endpoint: Endpoint,
    summary: EndpointSummary,
    *,
    status: int,
    shows_speed: bool,
    unavailable: str | None = None,
) -> EndpointCard:
    """One endpoint with its statistics; speed is for callers with a key, as at OpenRouter, uptime for all.

    `unavailable` tells of the server's own files, so it is for the same callers as speed.
    """
    recent = summary.last_30m
    latency = percentiles(recent.ttft_ms) if shows_speed else None
    throughput = percentiles(recent.throughput) if shows_speed else None
    return EndpointCard(
        name=f"{endpoint.provider.name} | {model.id}",
        model_id=model.id,
        model_name=model.name,
        provider_name=endpoint.provider.name,
        tag=endpoint.tag,
        quantization=endpoint.quantization,
        context_length=endpoint.context_length or context_length(model) or 0,
        max_completion_tokens=endpoint.max_completion_tokens,
        max_prompt_tokens=None,
        pricing=pricing(endpoint.price),
        supported_parameters=sorted(endpoint.supported_parameters),
        supports_implicit_caching=endpoint.caches,
        status=status if endpoint.disabled is None else STATUS_DISABLED,
        uptime_last_5m=summary.last_5m.uptime,
        uptime_last_30m=recent.uptime,
        uptime_last_1d=summary.last_1d.uptime,
        latency_last_30m=latency,
        throughput_last_30m=throughput,
        supports_tool_choice=tool_choice_support(endpoint),
        perf_last_30m_by_workload={
            _workload(model): WorkloadPerformance(
                latency=latency, throughput=throughput, request_count=recent.num_attempts
            )
        },
        endpoint_id=endpoint.id,
        disabled=endpoint.disabled,
        unavailable=unavailable if shows_speed else None,
    )


def _workload(model: ModelRoute) -> str:
    """OpenRouter's name for what a model does."""
    return next((kind for kind in WHOLE_KINDS if kind in model.output_modalities), "text_generation")


def percentiles(measured: Measured | None) -> Percentiles | None:
    if measured is None:
        return None
    values = {name: round(getattr(measured, name), 3) for name in ("p50", "p75", "p90", "p99")}
    return Percentiles(**values, n=measured.n)


def tool_choice_support(endpoint: Endpoint) -> ToolChoiceSupport:
    can = "tool_choice" in endpoint.supported_parameters
    return ToolChoiceSupport(auto=can, function=can, none=can, required=can)


def provider_card(provider: Provider) -> ProviderCard:
    return ProviderCard(
        name=provider.name,
        slug=provider.slug,
        privacy_policy_url=provider.privacy_policy_url,
        terms_of_service_url=provider.terms_of_service_url,
        status_page_url=provider.status_page_url,
    )
