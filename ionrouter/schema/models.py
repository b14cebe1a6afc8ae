"""Model and endpoint listings as clients read them. A pydantic model per object keeps required keys present.

Prices are strings in USD per token. Latency is in milliseconds, throughput in tokens per second.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Architecture(BaseModel):
    modality: str | None
    input_modalities: list[str]
    output_modalities: list[str]
    tokenizer: str
    instruct_type: str | None


class Pricing(BaseModel):
    """Strings, because 1e-07 printed by a float is what clients trip over; absent keys are left out."""

    prompt: str
    completion: str
    request: str = "0"
    image: str = "0"
    input_cache_read: str | None = None
    input_cache_write: str | None = None
    input_cache_write_1h: str | None = None
    audio: str | None = None
    image_token: str | None = None
    audio_output: str | None = None
    image_output: str | None = None
    internal_reasoning: str | None = None
    discount: float = 0
    overrides: list[dict[str, Any]] | None = None  # what requests cost whose prompt is longer than so much

    def object(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class TopProvider(BaseModel):
    context_length: int | None
    max_completion_tokens: int | None
    is_moderated: bool = False


class ModelCard(BaseModel):
    """One row of GET /models; `object` and `owned_by` are OpenAI's."""

    model_config = ConfigDict(protected_namespaces=())

    id: str
    object: str = "model"
    owned_by: str
    canonical_slug: str
    hugging_face_id: str | None
    name: str
    created: int
    description: str
    context_length: int | None
    architecture: Architecture
    pricing: dict[str, Any]
    top_provider: TopProvider
    per_request_limits: None = None
    supported_parameters: list[str]
    default_parameters: None = None
    supported_voices: None = None
    links: dict[str, str]


class Percentiles(BaseModel):
    p50: float
    p75: float
    p90: float
    p99: float
    n: int  # how many requests the percentiles stand for


class WorkloadPerformance(BaseModel):
    latency: Percentiles | None
    throughput: Percentiles | None
    request_count: int | None


class ToolChoiceSupport(BaseModel):
    auto: bool
    function: bool
    none: bool
    required: bool


class EndpointCard(BaseModel):
    """One endpoint of GET /models/{author}/{slug}/endpoints, with every field the newest clients require."""

    model_config = ConfigDict(protected_namespaces=())

    name: str
    model_id: str
    model_name: str
    provider_name: str
    tag: str
    quantization: str
    context_length: int
    max_completion_tokens: int | None
    max_prompt_tokens: int | None
    pricing: dict[str, Any]
    supported_parameters: list[str]
    supports_implicit_caching: bool
    status: int
    uptime_last_5m: float | None
    uptime_last_30m: float | None
    uptime_last_1d: float | None
    latency_last_30m: Percentiles | None
    throughput_last_30m: Percentiles | None
    native_tools: dict[str, Any] = Field(default_factory=dict)
    service_tier: str | None = None
    supports_diarization: bool = False
    supports_tool_choice: ToolChoiceSupport
    perf_last_30m_by_workload: dict[str, WorkloadPerformance]
    endpoint_id: str  # ours: the name explain, metrics and X-Ionrouter-Route use
    disabled: str | None = None  # ours: why it takes no traffic
    unavailable: str | None = None  # ours: why the engine inside cannot answer now, for callers with a key


class ModelEndpoints(BaseModel):
    id: str
    name: str
    created: int
    description: str
    architecture: Architecture
    endpoints: list[EndpointCard]


class ProviderCard(BaseModel):
    name: str
    slug: str
    privacy_policy_url: str | None
    terms_of_service_url: str | None
    status_page_url: str | None
    headquarters: str | None = None
    datacenters: list[str] | None = None


def price_string(usd_per_token: float) -> str:
    """Write a price without an exponent and without float noise: 1e-07 -> "0.0000001"."""
    text = f"{usd_per_token:.15f}".rstrip("0").rstrip(".")
    return text or "0"
