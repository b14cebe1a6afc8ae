"""Keys, credits and generations as clients read and write them. pydantic keeps required keys present.

Money in USD, times as ISO 8601 UTC, durations in milliseconds.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictStr

WORKSPACE = "00000000-0000-0000-0000-000000000000"  # there is one
Reset = Literal["daily", "weekly", "monthly"]


def _utc(value: datetime.datetime) -> datetime.datetime:
    if value.utcoffset() != datetime.timedelta(0):
        raise ValueError("must be UTC, such as 2026-12-31T00:00:00Z")
    return value


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("should be a string")
    return value


def _workspace(value: str | None) -> str | None:
    if value not in (None, WORKSPACE):
        raise ValueError(f"there is one workspace here, {WORKSPACE}")
    return value


Name = Annotated[StrictStr, Field(min_length=1, max_length=256)]
Usd = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Moment = Annotated[datetime.datetime, BeforeValidator(_text), AfterValidator(_utc)]


class KeyToMake(BaseModel):
    """The body of POST /keys. Unknown names are errors: a misspelt limit must not make an unlimited key."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    limit: Usd | None = None
    limit_reset: Reset | None = None
    expires_at: Moment | None = None
    include_byok_in_limit: StrictBool = False
    creator_user_id: Annotated[StrictStr, Field(min_length=1, max_length=256)] | None = None
    workspace_id: Annotated[StrictStr | None, AfterValidator(_workspace)] = None


class KeyToChange(BaseModel):
    """The body of PATCH /keys/{hash}: what is absent stays; null takes a limit away."""

    model_config = ConfigDict(extra="forbid")

    name: Name | None = None
    disabled: StrictBool | None = None
    limit: Usd | None = None
    limit_reset: Reset | None = None
    include_byok_in_limit: StrictBool | None = None

    def changes(self) -> dict[str, Any]:
        """What was said; null counts only where it means something."""
        nullable = {"limit", "limit_reset"}
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return {name: value for name, value in given.items() if value is not None or name in nullable}


class Windows(BaseModel):
    """USD over four stretches. Upstream keys are the operator's own, so nothing is `byok` here."""

    usage: float
    usage_daily: float
    usage_weekly: float
    usage_monthly: float
    byok_usage: float = 0
    byok_usage_daily: float = 0
    byok_usage_weekly: float = 0
    byok_usage_monthly: float = 0


class KeyCard(Windows):
    """One row of GET /keys."""

    hash: str
    name: str
    label: str
    disabled: bool
    limit: float | None
    limit_remaining: float | None
    limit_reset: Reset | None
    include_byok_in_limit: bool
    created_at: str
    updated_at: str | None
    expires_at: str | None
    last_used_at: str | None
    creator_user_id: str | None
    external_user: None = None
    workspace_id: str = WORKSPACE


class RateLimit(BaseModel):
    requests: int = -1
    interval: str = "10s"
    note: str = "deprecated: this server limits no rate per key"


class FreeModelRequests(BaseModel):
    """-1: free models are not counted."""

    limit: int = -1
    used: int = 0
    remaining: int = -1


class KeyBudget(BaseModel):
    scope: Literal["key_limit"] = "key_limit"
    limit_usd: float
    spend_usd: float
    remaining_usd: float
    reset_interval: Reset | None
    resets_at: str | None
    include_byok: bool
    budget_id: None = None
    guardrail_id: None = None


class CurrentKey(Windows):
    """GET /key: what the caller's key may do and has done."""

    label: str
    limit: float | None = None
    limit_remaining: float | None = None
    limit_reset: Reset | None = None
    include_byok_in_limit: bool = False
    is_free_tier: bool = False
    is_management_key: bool = False
    is_provisioning_key: bool = False
    creator_user_id: str | None = None
    expires_at: str | None = None
    rate_limit: RateLimit = Field(default_factory=RateLimit)
    allowed_data_regions: list[str] = Field(default_factory=lambda: ["global"])
    budgets: list[KeyBudget] = Field(default_factory=list)
    effective_budget: KeyBudget | None = None
    free_model_daily_requests: FreeModelRequests = Field(default_factory=FreeModelRequests)
    organization_id: None = None
    workspace_id: str | None = WORKSPACE


class ProviderResponse(BaseModel):
    """One attempt. `failure`, `message`, `cost` and whether that is an estimate are ours."""

    status: int | None
    provider_name: str
    endpoint_id: str
    model_permaslug: str
    is_byok: bool = False
    latency: float
    failure: str | None
    message: str | None
    cost: float
    is_usage_estimated: bool


class GenerationCard(BaseModel):
    """GET /generation. Null: not measured, not known, or no such thing here."""

    id: str
    request_id: str
    upstream_id: str | None
    created_at: str
    model: str
    provider_name: str | None
    provider_responses: list[dict[str, Any]]
    router: None = None
    api_type: Literal["completions", "embeddings", "rerank"] | None
    app_id: None = None
    origin: str
    http_referer: str | None
    user_agent: str | None
    external_user: str | None
    session_id: str | None
    preset_id: None = None
    workspace_id: str | None = WORKSPACE
    data_region: Literal["global"] = "global"
    streamed: bool
    cancelled: bool
    finish_reason: str | None
    native_finish_reason: str | None
    service_tier: str | None
    latency: float | None
    generation_time: float | None
    moderation_latency: None = None
    tokens_prompt: int
    tokens_completion: int
    native_tokens_prompt: int
    native_tokens_completion: int
    native_tokens_reasoning: int
    native_tokens_cached: int
    native_tokens_completion_images: None = None
    num_media_prompt: None = None
    num_media_completion: None = None
    num_input_audio_prompt: None = None
    num_search_results: None = None
    num_fetches: None = None
    total_cost: float
    usage: float
    cache_discount: None = None
    upstream_inference_cost: None = None
    is_byok: bool = False
    web_search_engine: None = None
    response_cache_source_id: str | None = None
    state: str  # ours: started, finished, failed, cancelled, aborted
    status: int | None  # ours: what the client saw
    error: str | None  # ours
    is_usage_estimated: bool  # ours
    time_to_first_token: float | None  # ours: arrival to the first content, fallbacks included
    queue_time: float | None  # ours: of the attempt that served, before work on it began
