"""What upstreams' error codes, types, statuses mean. Tables only.

Codes and types were collected from the public error references of OpenAI, Anthropic, Google, Together,
Fireworks, Groq, Mistral, DeepSeek, OpenRouter, vLLM, SGLang, llama.cpp and Ollama.
"""

from __future__ import annotations

from dataclasses import dataclass

from ionrouter.errors import FailureClass


@dataclass(frozen=True, slots=True)
class Verdict:
    """A failure class with the status it stands for. Vague: the words may still say something closer."""

    failure: FailureClass
    status: int
    error_type: str | None = None  # None: the usual one of the status
    is_vague: bool = False


_TRANSIENT = FailureClass.TRANSIENT
_DOMAIN = FailureClass.DOMAIN
_CAPACITY = FailureClass.CAPACITY
_REQUEST = FailureClass.REQUEST
_ENDPOINT = FailureClass.ENDPOINT_REQUEST
_CONTENT = FailureClass.CONTENT

CONTEXT_LENGTH = Verdict(_ENDPOINT, 400, "context_length_exceeded")
UNSUPPORTED = Verdict(_ENDPOINT, 400, "invalid_request")
MODERATED = Verdict(_CONTENT, 403, "content_policy_violation")
UNKNOWN_MODEL = Verdict(_DOMAIN, 404, "not_found")
BAD_KEY = Verdict(_DOMAIN, 401, "authentication")
NO_MONEY = Verdict(_DOMAIN, 402, "payment_required")
FORBIDDEN = Verdict(_DOMAIN, 403, "permission_denied")
TOO_MANY = Verdict(_CAPACITY, 429, "rate_limit_exceeded")
OVERLOADED = Verdict(_TRANSIENT, 503, "provider_overloaded")
BROKEN = Verdict(_TRANSIENT, 500, "server")
TOO_SLOW = Verdict(_TRANSIENT, 504, "timeout")
UNREACHABLE = Verdict(_TRANSIENT, 502, "provider_unavailable")
INVALID = Verdict(_REQUEST, 400, "invalid_request")

_CODES: dict[Verdict, str] = {
    CONTEXT_LENGTH: """context_length_exceeded context_window_exceeded exceed_context_size_error
        model_context_window_exceeded input_too_long prompt_too_long string_above_max_length
        max_context_length_exceeded tokens_limit_reached""",
    UNSUPPORTED: """unsupported_parameter unsupported_value unknown_parameter extra_forbidden
        unsupported_model_feature unsupported_feature not_supported unsupported_operation
        parameter_not_supported tool_use_not_supported unrecognized_parameter""",
    MODERATED: """content_policy_violation content_filter moderation_blocked content_moderation
        responsibleaipolicyviolation responsible_ai_policy_violation data_inspection_failed sensitive_content
        prompt_blocked safety_violation invalid_prompt""",
    UNKNOWN_MODEL: """model_not_found model_not_available model_not_exist deployment_not_found unknown_model
        invalid_model model_decommissioned model_deprecated model_terms_required no_such_model not_found
        invalid_model_error model_not_supported""",
    BAD_KEY: """invalid_api_key incorrect_api_key missing_api_key invalid_authentication unauthorized
        unauthenticated authentication_failed invalid_token token_expired expired_api_key api_key_invalid
        account_deactivated""",
    NO_MONEY: """insufficient_funds insufficient_credits insufficient_balance billing_not_active
        billing_hard_limit_reached payment_required credit_limit_reached out_of_credits account_suspended
        arrearage""",
    FORBIDDEN: """permission_denied access_denied forbidden unsupported_country_region_territory
        organization_restricted ip_not_authorized""",
    TOO_MANY: """rate_limit_exceeded rate_limit rate_limited rate_limit_reached too_many_requests
        insufficient_quota quota_exceeded resource_exhausted throttled throttling_exception tokens requests
        capacity_exceeded tpm_limit rpm_limit concurrency_limit_exceeded""",
    OVERLOADED: """overloaded engine_overloaded model_overloaded server_overloaded service_unavailable
        unavailable engine_overloaded_error model_loading model_not_ready slow_down""",
    BROKEN: "server_error internal_error internal_server_error internal unknown_error",
    TOO_SLOW: "timeout request_timeout deadline_exceeded gateway_timeout",
    UNREACHABLE: "bad_gateway provider_unavailable provider_error upstream_error connection_error",
}
_TYPES: dict[Verdict, str] = {
    CONTEXT_LENGTH: "context_length_exceeded exceed_context_size_error",
    MODERATED: "content_policy_violation content_filter content_filter_error image_generation_user_error",
    UNKNOWN_MODEL: "not_found_error notfounderror model_not_found",
    BAD_KEY: "authentication_error authenticationerror invalid_authentication_error unauthorized",
    NO_MONEY: "billing_error payment_required insufficient_credits",
    FORBIDDEN: "permission_error permission_denied_error permissiondeniederror access_terminated_error",
    TOO_MANY: """rate_limit_error ratelimiterror insufficient_quota tokens requests rate_limit_exceeded
        rate_limit_reached_error exceeded_current_quota_error too_many_requests""",
    OVERLOADED: """overloaded_error engine_overloaded_error service_unavailable service_unavailable_error
        serviceunavailableerror unavailable_error""",
    BROKEN: "internal_server_error internalservererror internal_error server_error",
    TOO_SLOW: "timeout_error timeout",
    UNREACHABLE: "bad_gateway upstream_error provider_error",
    Verdict(_REQUEST, 413): "request_too_large",
    UNSUPPORTED: "extra_forbidden not_supported_error",
}


def _by_name(groups: dict[Verdict, str]) -> dict[str, Verdict]:
    return {name: verdict for verdict, names in groups.items() for name in names.split()}


BY_CODE = _by_name(_CODES)
BY_TYPE = _by_name(_TYPES)

# Types that many servers put on everything: they count only where no HTTP status says otherwise.
_VAGUE_INVALID = Verdict(_REQUEST, 400, "invalid_request", is_vague=True)
WEAK_TYPES: dict[str, Verdict] = {
    **dict.fromkeys(
        ("invalid_request_error", "invalid_request", "badrequesterror", "bad_request", "validation_error"),
        _VAGUE_INVALID,
    ),
    "api_error": BROKEN,
}

BY_STATUS: dict[int, Verdict] = {
    400: INVALID,
    401: BAD_KEY,
    402: NO_MONEY,
    403: FORBIDDEN,
    404: UNKNOWN_MODEL,
    405: Verdict(_DOMAIN, 405, "not_found"),
    407: Verdict(_DOMAIN, 407, "authentication"),
    408: Verdict(_TRANSIENT, 408, "timeout"),
    409: Verdict(_TRANSIENT, 409, "provider_unavailable"),
    410: Verdict(_DOMAIN, 410, "not_found"),
    413: Verdict(_REQUEST, 413, "payload_too_large"),
    422: Verdict(_REQUEST, 422, "unprocessable"),
    423: Verdict(_TRANSIENT, 423, "provider_unavailable"),
    424: Verdict(_TRANSIENT, 424, "provider_unavailable"),
    425: Verdict(_TRANSIENT, 425, "provider_unavailable"),
    426: Verdict(_DOMAIN, 426, "provider_unavailable"),
    429: TOO_MANY,
    451: Verdict(_DOMAIN, 451, "permission_denied"),
    498: Verdict(_CAPACITY, 498, "rate_limit_exceeded"),  # Groq: flex capacity exceeded
    499: Verdict(_TRANSIENT, 499, "provider_unavailable"),
    **{status: Verdict(_TRANSIENT, status, "provider_unavailable") for status in range(500, 600)},
    500: BROKEN,
    502: UNREACHABLE,
    503: OVERLOADED,
    504: TOO_SLOW,
    524: Verdict(_TRANSIENT, 524, "timeout"),
    529: Verdict(_TRANSIENT, 529, "provider_overloaded"),
}
# OpenRouter's vocabulary for `error.metadata.error_type`, by status.
ERROR_TYPES: dict[int, str] = {status: v.error_type or "unmapped" for status, v in BY_STATUS.items()}


def by_status(status: int) -> Verdict:
    """Judge by HTTP status alone: a redirect is F2, an unlisted 4xx F4, anything else unexpected F1."""
    if status in BY_STATUS:
        return BY_STATUS[status]
    if 300 <= status < 400:
        return Verdict(_DOMAIN, status, "provider_unavailable")
    if 400 <= status < 500:
        return Verdict(_REQUEST, status, "invalid_request")
    return UNREACHABLE
