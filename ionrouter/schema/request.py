"""One request after validation, as the router sees it. Frozen; `body` is never changed by anyone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field

if TYPE_CHECKING:
    from ionrouter.schema.spans import RequestSpan

Kind = Literal["chat", "completions", "embeddings", "rerank"]
EXAMPLE_PROMPT_TOKENS = 1000  # of the request by which shares and scores are told where nobody gives one
WHOLE_KINDS: frozenset[Kind] = frozenset({"embeddings", "rerank"})  # no text comes back: nothing to stream
SortKey = Literal["price", "throughput", "latency", "exacto"]


class PercentileCutoffs(Struct, frozen=True):
    """Cut-offs at percentiles: {"p50": 2.0}. Throughput in tokens/s, latency in seconds."""

    values: Mapping[str, float] = field(default_factory=dict)


class ProviderPreferences(Struct, frozen=True):
    """OpenRouter's `provider` object, parsed. Names match provider slug, tag or display name, any case."""

    order: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    allow_fallbacks: bool = True
    require_parameters: bool = False
    data_collection: Literal["allow", "deny"] = "allow"
    zdr: bool = False
    enforce_distillable_text: bool = False
    quantizations: tuple[str, ...] = ()
    sort: SortKey | None = None
    sort_partition: Literal["model", "none"] = "model"
    max_price: Mapping[str, float] = field(default_factory=dict)  # prompt, completion: USD per million tokens
    preferred_min_throughput: PercentileCutoffs | None = None
    preferred_max_latency: PercentileCutoffs | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Overrides(Struct, frozen=True):
    """Our own extension, the request's `ionrouter` object; and the wish to see what is sent."""

    strategy: str | None = None
    value_of_time: float | None = None  # USD per second
    explain: bool = False
    echoes: bool = False  # what is sent upstream; asked for with `debug`, and known of streams alone


class Client(Struct, frozen=True):
    """Who says it is calling: for records and reports, never for routing or caching."""

    user_agent: str | None = None
    referer: str | None = None  # HTTP-Referer: the app's address
    title: str | None = None  # X-OpenRouter-Title, X-Title: the app's name
    user: str | None = None  # the body's `user`: the app's own end user
    span: RequestSpan | None = None  # its trace; None: nobody keeps one


NOBODY = Client()


class InferenceRequest(Struct, frozen=True):
    """What resolve, select and dispatch read.

    `body` holds the client's JSON with gateway-only names (model, models, provider, plugins, session_id,
    ionrouter, ...) taken out: what may go upstream. `parameters` are its keys that count as model
    parameters (temperature, tools, response_format, ...). `prompt_tokens` is an estimate (characters / 4
    unless a tokenizer counted); `max_tokens` is the caller's cap on new tokens.
    """

    id: str  # gen-<unix seconds>-<20 alphanumerics>
    kind: Kind
    model: str
    body: Mapping[str, Any]
    stream: bool = False
    models: tuple[str, ...] = ()
    parameters: frozenset[str] = frozenset()
    input_modalities: frozenset[str] = frozenset({"text"})
    preferences: ProviderPreferences = field(default_factory=ProviderPreferences)
    overrides: Overrides = field(default_factory=Overrides)
    prompt_tokens: int = 0
    context_tokens: int | None = None  # of the longest prompt, where a request holds several; None: all of it
    max_tokens: int | None = None
    service_tier: str | None = None
    session_id: str | None = None
    key_id: str | None = None
    arrived_at: float = 0.0  # monotonic seconds
    gateway_fields: Mapping[str, Any] = field(
        default_factory=dict
    )  # raw values of the names taken out of `body`
    client: Client = field(default_factory=Client)
    notes: tuple[str, ...] = ()  # what the router changed in the request, for the answer's report
