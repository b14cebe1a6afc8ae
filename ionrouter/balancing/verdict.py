"""What the client is told when nobody answered: before any attempt, or after all of them.

Tables from failure classes and filters to statuses. Never a 401 or 402 from an upstream: the caller's
key is not at fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ionrouter.balancing.plan import Plan
from ionrouter.balancing.screen import TEMPORARY, Exclusion
from ionrouter.balancing.select import promising, retry_at
from ionrouter.errors import AllAttemptsFailed, AvailabilityError, FailureClass, RequestError, UpstreamError
from ionrouter.schema.request import InferenceRequest, Kind

ERROR_TYPES = {
    400: "invalid_request",
    403: "permission_denied",
    413: "payload_too_large",
    422: "unprocessable",
    429: "rate_limit_exceeded",
    500: "server",
    502: "provider_unavailable",
    503: "provider_overloaded",
    504: "timeout",
}
# An upstream's status -> ours, for transient failures; all others are 502.
_TRANSIENT = {408: 504, 504: 504, 524: 504, 503: 503, 529: 503}
_WORDED = {"timeout": 504, "provider_overloaded": 503, "overloaded_error": 503}
MAX_TOLD = 6  # excluded endpoints named in a message; `availability.excluded` has them all
INTERNAL = "internal"  # code of a fault in our own provider client


def client_status(error: UpstreamError) -> int:
    """Translate one failure into the status a client sees."""
    if error.failure is FailureClass.TRANSIENT:
        if error.code == INTERNAL:
            return 500
        worded = _WORDED.get(error.error_type or "", _WORDED.get(error.code or "", 502))
        return _TRANSIENT.get(error.status or 0, worded)
    if error.failure is FailureClass.REQUEST:
        return error.status if error.status is not None and 400 <= error.status < 500 else 400
    return {
        FailureClass.DOMAIN: 502,
        FailureClass.CAPACITY: 429,
        FailureClass.ENDPOINT_REQUEST: 400,
        FailureClass.CONTENT: 403,
        FailureClass.OWN_LIMIT: 503,
        FailureClass.CLIENT_LEFT: 499,
        FailureClass.STOPPED: 503,
        FailureClass.LOST_RACE: 499,
    }[error.failure]


def client_error_type(error: UpstreamError) -> str:
    """Name a failure in OpenRouter's vocabulary; the upstream's own word where it is about the request."""
    is_about_request = error.failure in (
        FailureClass.REQUEST,
        FailureClass.ENDPOINT_REQUEST,
        FailureClass.CONTENT,
    )
    if is_about_request and error.error_type:
        return error.error_type
    return ERROR_TYPES.get(client_status(error), "invalid_request")


def all_failed(
    errors: Sequence[tuple[str, UpstreamError]], left_out: Sequence[Exclusion] = (), now: float = 0.0
) -> AllAttemptsFailed:
    """Sum up a walk: the last telling failure speaks; a provider that refuses our account tells nothing.

    Of `left_out`, endpoints that were not asked, one may be back before those that were.
    """
    telling = [error for _, error in errors if error.failure is not FailureClass.DOMAIN]
    last = telling[-1] if telling else errors[-1][1]
    waits = [e.retry_after_s for _, e in errors if e.retry_after_s is not None and e.retry_after_s >= 0]
    waits += [
        max(e.until - now, 0.0)
        for e in left_out
        if e.filter in TEMPORARY and e.until is not None and not e.is_domain
    ]
    status = client_status(last)
    return AllAttemptsFailed(
        last.message if telling else _refusal(last),
        status,
        errors,
        retry_after_s=min(waits, default=None) if status in (429, 503) else None,
        error_type=client_error_type(last),
        param=last.param,
    )


def _refusal(error: UpstreamError) -> str:
    """What a client may know of a provider that is set up wrong; the log says all."""
    if error.status is not None and 300 <= error.status < 400:
        return (
            "The provider answered with a redirect, which the router does not follow: its base_url is wrong"
        )
    return "The provider refused the router's own account or model"


def nobody_left(plan: Plan, request: InferenceRequest, now: float) -> RequestError:
    """Explain a plan without candidates: wait (429, 503), change the request (400), or give up (404)."""
    filters = {e.filter for e in plan.exclusions}
    if filters & TEMPORARY or plan.candidates:  # candidates: others held their half-open trials
        return _come_back(plan, request, now)
    for name, error_type in (
        ("capability", "invalid_request"),
        ("input_modalities", "invalid_request"),
        ("context_length", "context_length_exceeded"),
    ):
        telling = next((e for e in plan.exclusions if e.filter == name), None)
        if telling is not None:
            message = f"No endpoint of {request.model} can take this request: it {telling.reason}"
            if name == "context_length":
                message = f"This request does not fit {request.model}: {telling.reason}"
            return RequestError(message, error_type=error_type, param=_param(name, telling.reason, request))
    code = "constraint_filtered"
    if filters <= {"disabled"}:
        code = "no_endpoints"
    elif filters <= {"data_policy:zdr", "data_policy:training", "disabled"}:
        code = "privacy_restricted"
    return AvailabilityError(
        f"No endpoints found for {request.model}: {_removed(plan)}",
        availability=_availability(code, plan, request, retryable=False),
    )


def _removed(plan: Plan) -> str:
    """Say which filter removed which endpoint."""
    return _told(plan.exclusions) if plan.exclusions else "it has none"


def _told(exclusions: Sequence[Exclusion]) -> str:
    """Name endpoints, each with its reason; of many the first."""
    told = [f"{e.endpoint.id} ({e.reason})" for e in exclusions[:MAX_TOLD]]
    num_more = len(exclusions) - len(told)
    return "; ".join(told) + (f"; and {num_more} more" if num_more else "")


def _come_back(plan: Plan, request: InferenceRequest, now: float) -> AvailabilityError:
    """Time will help: 429 when limits alone are in the way, else 503.

    What keeps a local model from answering (it loads, its file is broken, it hangs) is told: only the
    server's owner can mend it.
    """
    temporary = {e.filter for e in promising([e for e in plan.exclusions if e.filter in TEMPORARY])}
    moment = retry_at(plan.exclusions)
    wait_s = None if moment is None else max(moment - now, 0.0)
    is_limit = temporary == {"retry_after"}
    code = "capacity_exhausted" if is_limit else "temporarily_unavailable"
    availability = _availability(code, plan, request, retryable=True)
    headers = {}
    if wait_s is not None:
        seconds = max(1, int(-(-wait_s // 1)))
        headers, availability["retry_after"] = {"Retry-After": str(seconds)}, seconds
    local = [e for e in plan.exclusions if e.filter == "loading"]
    return AvailabilityError(
        f"{request.model} is {'rate-limited upstream' if is_limit else 'temporarily unavailable'}"
        + (f": {_told(local)}" if local else ""),
        status=429 if is_limit else 503,
        error_type="rate_limit_exceeded" if is_limit else "provider_overloaded",
        availability=availability,
        headers=headers,
    )


def _availability(code: str, plan: Plan, request: InferenceRequest, *, retryable: bool) -> dict[str, Any]:
    """OpenRouter's `error.availability` object."""
    published = sorted({e.filter for e in plan.exclusions} - TEMPORARY - {"disabled"})
    return {
        "code": code,
        "retryable": retryable,
        "requested_models": list(dict.fromkeys((request.model, *request.models))),
        "docs_url": "docs/routing.md",
        **({"excluded_by": published} if published else {}),
        "excluded": [
            {"endpoint": e.endpoint.id, "filter": e.filter, "reason": e.reason} for e in plan.exclusions
        ],
    }


_PROMPTS: dict[Kind, str] = {
    "chat": "messages",
    "completions": "prompt",
    "embeddings": "input",
    "rerank": "documents",
}


def _param(name: str, reason: str, request: InferenceRequest) -> str:
    """The field at fault, where one can be named."""
    if name == "capability":
        return reason.removeprefix("does not support ").split(", ")[0]
    return _PROMPTS[request.kind]
