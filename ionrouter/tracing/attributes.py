"""What spans say, as attributes: OpenTelemetry's conventions for HTTP and generative AI, `ionrouter.*`. Pure.

Never a prompt, an answer, a stop sequence, a tool, or an upstream's own words, which may quote any of them.
Source: github.com/open-telemetry/semantic-conventions-genai, client inference (status: development).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from yarl import URL

from ionrouter.errand import Errand
from ionrouter.errors import FailureClass
from ionrouter.routing.table import Provider
from ionrouter.schema.events import AttemptRecord, RequestRecord
from ionrouter.schema.request import InferenceRequest, Kind
from ionrouter.tracing.wishes import MAX_CHARS, Value

Attributes = dict[str, Value | list[str]]
OPERATIONS: Mapping[Kind, str] = {
    "chat": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
    "rerank": "rerank",  # the conventions have no word for it
}
# The conventions' names where they differ from litellm's and ours; else a provider keeps its slug.
PROVIDERS: Mapping[str, str] = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "google-ai-studio": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "moonshotai": "moonshot_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
# Field of the body that goes upstream -> attribute and what it must be.
_NUMBERS: tuple[tuple[str, str, type[int] | type[float]], ...] = (
    ("max_tokens", "gen_ai.request.max_tokens", int),
    ("max_completion_tokens", "gen_ai.request.max_tokens", int),
    ("temperature", "gen_ai.request.temperature", float),
    ("top_p", "gen_ai.request.top_p", float),
    ("top_k", "gen_ai.request.top_k", int),
    ("frequency_penalty", "gen_ai.request.frequency_penalty", float),
    ("presence_penalty", "gen_ai.request.presence_penalty", float),
    ("seed", "gen_ai.request.seed", int),
    ("dimensions", "gen_ai.embeddings.dimension.count", int),
)
_NOBODYS_FAULT = frozenset({FailureClass.CLIENT_LEFT, FailureClass.STOPPED, FailureClass.LOST_RACE})


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as HTTP brought it, before its body is read."""

    method: str
    route: str  # "/api/v1/chat/completions"
    path: str
    scheme: str
    host: str | None = None
    user_agent: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)  # traceparent and tracestate, where they came


def of_arrival(arrival: Arrival) -> Attributes:
    found: Attributes = {
        "http.request.method": arrival.method,
        "http.route": arrival.route,
        "url.path": arrival.path,
        "url.scheme": arrival.scheme,
    }
    if arrival.host:
        host, port = _host_of(f"{arrival.scheme}://{arrival.host}")
        found |= {"server.address": host, "server.port": port} if host else {}
    if arrival.user_agent:
        found["user_agent.original"] = arrival.user_agent[:MAX_CHARS]
    return found


def of_caller(request: InferenceRequest) -> Attributes:
    """Whose request it is, as the caller says it."""
    named = {"user.id": request.client.user, "session.id": request.session_id}
    return {name: value[:MAX_CHARS] for name, value in named.items() if value}


def of_report(record: RequestRecord, strategy: str) -> Attributes:
    """What became of a request. Tokens are on its attempts only, so that a sum counts them once."""
    found: dict[str, Value | None] = {
        "ionrouter.request.id": record.id,
        "ionrouter.kind": record.kind,
        "ionrouter.stream": record.stream,
        "ionrouter.requested_model": record.requested_model[:MAX_CHARS],
        "ionrouter.served_model": record.served_model,
        "ionrouter.endpoint": record.served_endpoint,
        "ionrouter.strategy": strategy or None,
        "ionrouter.attempts": len(record.attempts),
        "ionrouter.cost_usd": record.cost.total,
        "ionrouter.time_to_first_token": record.ttft_s,
        "ionrouter.key": record.key_id,
    }
    return {name: value for name, value in found.items() if value is not None}


def of_attempt(errand: Errand) -> Attributes:
    """What one attempt asks of whom."""
    endpoint, body = errand.endpoint, errand.upstream.body
    found: Attributes = {
        "gen_ai.operation.name": OPERATIONS[errand.request.kind],
        "gen_ai.provider.name": provider_name(endpoint.provider),
        "gen_ai.request.model": endpoint.upstream_model,
        "ionrouter.endpoint": endpoint.id,
        "ionrouter.model": errand.route.id,
        "ionrouter.attempt": errand.number,
        "ionrouter.role": errand.role,
        "ionrouter.fallback": errand.role == "main" and errand.number > 1,
        "ionrouter.reason": errand.reason[:MAX_CHARS],
    }
    host, port = _host_of(endpoint.provider.base_url or "")
    if host:
        found |= {"server.address": host, "server.port": port}
    if errand.upstream.stream:
        found["gen_ai.request.stream"] = True
    if errand.is_exploring:
        found["ionrouter.exploring"] = True
    if errand.request.session_id:
        found["gen_ai.conversation.id"] = errand.request.session_id[:MAX_CHARS]
    return found | _of_body(body)


def of_attempt_end(record: AttemptRecord) -> Attributes:
    """What one attempt came to."""
    found: Attributes = {"ionrouter.cost_usd": record.cost.total}
    if record.failure is None or record.status not in (None, 499):  # 499 is a word of ours
        found["http.response.status_code"] = record.status or 200
    if record.failure is not None:
        found["error.type"] = record.failure.value
        found["ionrouter.after_commit"] = record.after_commit
    if record.ttft_s is not None:
        found["gen_ai.response.time_to_first_chunk"] = record.ttft_s
    if record.finish_reason is not None:
        found["gen_ai.response.finish_reasons"] = [record.finish_reason]
    if record.upstream_id:
        found["gen_ai.response.id"] = record.upstream_id[:MAX_CHARS]
    if record.upstream_model:
        found["gen_ai.response.model"] = record.upstream_model[:MAX_CHARS]
    if record.usage is not None:
        usage = record.usage
        found["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        found["gen_ai.usage.output_tokens"] = usage.completion_tokens
        details = (
            ("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens),
            ("gen_ai.usage.cache_write.input_tokens", usage.cache_write_tokens),
            ("gen_ai.usage.reasoning.output_tokens", usage.reasoning_tokens),
        )
        found |= {name: count for name, count in details if count}
        if record.is_usage_estimated:
            found["ionrouter.usage_estimated"] = True
    return found


def is_error(record: AttemptRecord) -> bool:
    """Whether an attempt failed: a client that left and a race that was lost are no errors."""
    return record.failure is not None and record.failure not in _NOBODYS_FAULT


def error_of(record: RequestRecord | None, status: int | None) -> str | None:
    """The `error.type` of a request: the class of its last failure, or its status; None: no error of ours.

    A stream that broke has the HTTP status 200 and another one in its record.
    """
    told = record.status if record is not None else status
    if told == 499 or (record is None and status is None):
        return FailureClass.CLIENT_LEFT.value
    if told is None or told < 500:
        return None
    failures = [a.failure for a in record.attempts if is_error(a)] if record is not None else []
    return failures[-1].value if failures and failures[-1] is not None else str(told)


def provider_name(provider: Provider) -> str:
    """A provider as the conventions call it, else its slug."""
    return PROVIDERS.get(provider.litellm_name, provider.slug)


def _of_body(body: Mapping[str, Any]) -> Attributes:
    found: Attributes = {}
    for key, name, form in _NUMBERS:
        value = body.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63:
            found[name] = form(value)
    if isinstance(count := body.get("n"), int) and count > 1:
        found["gen_ai.request.choice.count"] = count
    if isinstance(form_ := body.get("response_format"), Mapping):
        found["gen_ai.output.type"] = "text" if form_.get("type") == "text" else "json"
    reasoning = body.get("reasoning")
    effort = body.get("reasoning_effort") or (isinstance(reasoning, Mapping) and reasoning.get("effort"))
    if isinstance(effort, str) and effort:
        found["gen_ai.request.reasoning.level"] = effort[:MAX_CHARS]
    return found


@lru_cache(maxsize=1024)
def _host_of(url: str) -> tuple[str, int]:
    """Host and port of an address; an empty host where there is none."""
    try:
        parsed = URL(url)
        return parsed.host or "", parsed.port or 0
    except ValueError:
        return "", 0
