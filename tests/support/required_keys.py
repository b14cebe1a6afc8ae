"""The keys that strict clients demand of each accounting answer, by the published schema and its delta."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WINDOWS = (
    "usage usage_daily usage_weekly usage_monthly "
    "byok_usage byok_usage_daily byok_usage_weekly byok_usage_monthly"
)
REQUIRED: Mapping[str, frozenset[str]] = {
    name: frozenset(keys.split())
    for name, keys in {
        "generation": "id upstream_id total_cost cache_discount upstream_inference_cost created_at model "
        "app_id streamed cancelled provider_name latency moderation_latency generation_time finish_reason "
        "service_tier tokens_prompt tokens_completion native_tokens_prompt native_tokens_completion "
        "native_tokens_completion_images native_tokens_reasoning native_tokens_cached num_media_prompt "
        "num_input_audio_prompt num_media_completion num_search_results num_fetches web_search_engine origin "
        "usage is_byok native_finish_reason external_user api_type preset_id router provider_responses "
        "user_agent http_referer data_region workspace_id request_id session_id response_cache_source_id",
        "provider_response": "status provider_name endpoint_id model_permaslug is_byok latency",
        "content": "input output error",
        "content_output": "completion reasoning",
        "content_error": "status message provider_name raw previous_errors",
        "key": f"label limit limit_remaining limit_reset include_byok_in_limit {WINDOWS} is_free_tier "
        "is_management_key is_provisioning_key creator_user_id expires_at rate_limit allowed_data_regions "
        "budgets effective_budget free_model_daily_requests organization_id workspace_id",
        "rate_limit": "requests interval note",
        "free_model_daily_requests": "limit used remaining",
        "budget": "scope limit_usd spend_usd remaining_usd reset_interval resets_at include_byok budget_id "
        "guardrail_id",
        "key_card": "hash name label disabled limit limit_remaining limit_reset include_byok_in_limit "
        f"{WINDOWS} created_at updated_at expires_at last_used_at creator_user_id external_user workspace_id",
        "credits": "total_credits total_usage",
        "activity": "date model model_permaslug endpoint_id provider_name usage byok_usage_inference "
        "requests prompt_tokens completion_tokens reasoning_tokens cached_tokens",
        "analytics": "data metadata",
        "analytics_metadata": "query_time_ms row_count truncated",
        "meta": "metrics dimensions operators granularities",
        "meta_metric": "name display_label is_rate display_format",
    }.items()
}


def assert_has_all(name: str, found: Mapping[str, Any]) -> None:
    """Every required key is there, whatever its value."""
    missing = REQUIRED[name] - found.keys()
    assert not missing, f"{name} lacks {sorted(missing)}"
