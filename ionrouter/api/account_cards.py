"""Rows of the store as objects of the API. Pure; knows no HTTP and no SQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ionrouter.schema import json
from ionrouter.schema.accounts import (
    CurrentKey,
    GenerationCard,
    KeyBudget,
    KeyCard,
    ProviderResponse,
)
from ionrouter.store.generation import Generation
from ionrouter.store.keys import ApiKey
from ionrouter.store.periods import iso, resets_at
from ionrouter.store.spending import DIGITS, SpendingBook

# Ours -> the names of the generation record.
API_TYPES: Mapping[str, Literal["embeddings", "rerank"]] = {"embeddings": "embeddings", "rerank": "rerank"}


def key_card(key: ApiKey, spending: SpendingBook, now: float) -> KeyCard:
    spent = spending.of(key.hash)
    return KeyCard(
        hash=key.hash,
        name=key.name,
        label=key.label,
        disabled=key.is_disabled,
        limit=key.limit,
        limit_remaining=_usd(spending.remaining(key, now)),
        limit_reset=key.limit_reset,
        include_byok_in_limit=key.includes_byok,
        created_at=iso(key.created_at),
        updated_at=_iso(key.updated_at),
        expires_at=_iso(key.expires_at),
        last_used_at=_iso(spent.last_used_at),
        creator_user_id=key.creator_user_id,
        **windows(spending, key.hash, now),
    )


def current_key(key: ApiKey | None, spending: SpendingBook, now: float) -> CurrentKey:
    """Describe the caller's key; None is whoever calls while keys are off."""
    if key is None:
        return CurrentKey(label="keys are off", **windows(spending, None, now))
    budget = key_budget(key, spending, now)
    is_management = key.kind == "management"
    return CurrentKey(
        label=key.label,
        limit=key.limit,
        limit_remaining=_usd(spending.remaining(key, now)),
        limit_reset=key.limit_reset,
        include_byok_in_limit=key.includes_byok,
        is_management_key=is_management,
        is_provisioning_key=is_management,
        creator_user_id=key.creator_user_id,
        expires_at=_iso(key.expires_at),
        budgets=[budget] if budget else [],
        effective_budget=budget,
        **windows(spending, key.hash, now),
    )


def key_budget(key: ApiKey, spending: SpendingBook, now: float) -> KeyBudget | None:
    if key.limit is None:
        return None
    return KeyBudget(
        limit_usd=key.limit,
        spend_usd=round(spending.of(key.hash).since(key.limit_reset, now), DIGITS),
        remaining_usd=_usd(spending.remaining(key, now)) or 0.0,
        reset_interval=key.limit_reset,
        resets_at=_iso(resets_at(key.limit_reset, now)),
        include_byok=key.includes_byok,
    )


def windows(spending: SpendingBook, key: str | None, now: float) -> dict[str, Any]:
    spent = spending.of(key)
    return {
        "usage": round(spent.since(None, now), DIGITS),
        "usage_daily": round(spent.since("daily", now), DIGITS),
        "usage_weekly": round(spent.since("weekly", now), DIGITS),
        "usage_monthly": round(spent.since("monthly", now), DIGITS),
    }


def generation_card(row: Generation) -> GenerationCard:
    total_s, first_s = row.duration_s, row.ttft_s if row.is_stream else None
    return GenerationCard(
        id=row.id,
        request_id=row.id,
        upstream_id=row.upstream_id,
        created_at=iso(row.started_at),
        model=row.model or row.requested_model,
        provider_name=row.provider,
        provider_responses=[_attempt(a) for a in json.loads(row.attempts)],
        api_type=API_TYPES.get(row.kind, "completions"),
        origin=row.referer or row.title or "",
        http_referer=row.referer,
        user_agent=row.user_agent,
        external_user=row.user,
        session_id=row.session_id,
        streamed=row.is_stream,
        cancelled=row.state == "cancelled",
        finish_reason=row.finish_reason,
        native_finish_reason=row.native_finish_reason,
        service_tier=row.service_tier,
        latency=_ms(total_s),
        generation_time=_ms(total_s if total_s is None or first_s is None else max(total_s - first_s, 0.0)),
        tokens_prompt=row.prompt_tokens,
        tokens_completion=row.completion_tokens,
        native_tokens_prompt=row.prompt_tokens,
        native_tokens_completion=row.completion_tokens,
        native_tokens_reasoning=row.reasoning_tokens,
        native_tokens_cached=row.cached_tokens,
        total_cost=round(row.cost, DIGITS),
        usage=round(row.cost, DIGITS),
        response_cache_source_id=row.source_id,
        state=row.state,
        status=row.status,
        error=row.error,
        is_usage_estimated=row.is_usage_estimated,
        time_to_first_token=_ms(first_s),
        queue_time=_ms(row.queue_s),
    )


def _attempt(attempt: dict[str, Any]) -> dict[str, Any]:
    """Optional names are absent rather than null: clients take the one, not always the other."""
    card = ProviderResponse(
        status=attempt["status"],
        provider_name=attempt["provider"],
        endpoint_id=attempt["endpoint"],
        model_permaslug=attempt["model"],
        latency=_ms(attempt["latency_s"]) or 0.0,
        failure=attempt["failure"],
        message=attempt["message"],
        cost=round(attempt["cost"], DIGITS),
        is_usage_estimated=attempt.get("is_usage_estimated", False),  # older rows do not say it
    ).model_dump()
    optional = {"id": attempt["upstream_id"], "routed_service_tier": attempt["service_tier"]}
    return card | {name: value for name, value in optional.items() if value is not None}


def _usd(amount: float | None) -> float | None:
    return None if amount is None else round(amount, DIGITS)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _iso(moment: float | None) -> str | None:
    return None if moment is None else iso(moment)
