"""What the worker is asked to call: litellm's arguments from an attempt, by an allow-list. No sockets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from ionrouter.providers.base import UpstreamRequest
from ionrouter.providers.outgoing import USER_AGENT, checked_headers
from ionrouter.providers.rerank_body import sent_documents
from ionrouter.providers.upstream_body import with_one_length, without_protected
from ionrouter.routing.table import Endpoint
from ionrouter.schema import json
from ionrouter.schema.claudes_fields import tool_of_claude, whole_results, without_claudes
from ionrouter.schema.fields import AS_CLAUDE, MODEL_PARAMETERS
from ionrouter.schema.reasoning_details import thoughts_of
from ionrouter.schema.request import WHOLE_KINDS
from ionrouter.schema.turn_order import in_order

# Whatever else a body holds could be one of litellm's own switches (api_base, fallbacks, mock_response ...).
_INPUT = frozenset(("messages", "prompt", "input", "suffix", "echo", "best_of"))
_OTHER = frozenset(
    (
        "functions",
        "function_call",
        "modalities",
        "audio",
        "service_tier",
        "prompt_cache_key",
        "cache_control",
        "thinking",
        "prompt_logprobs",
    )
)
_EMBEDDING = frozenset(("input", "dimensions", "encoding_format", "input_type"))
_RERANK = frozenset(
    ("query", "documents", "top_n", "rank_fields", "max_chunks_per_doc", "max_tokens_per_doc", "instruction")
)
CLAUDE = "anthropic-claude-v1"  # reasoning details that are Claude's own
# litellm's providers that want an answer's thoughts back, and in which field.
_THOUGHTS = dict.fromkeys(("deepseek", "moonshot", "zai"), "reasoning_content")
_NOT_LITELLM = frozenset(("reasoning", "structured_outputs", "top_a"))
_ALLOWED = (MODEL_PARAMETERS | _INPUT | _OTHER) - _NOT_LITELLM


def build_call(request: UpstreamRequest, key: str | None) -> dict[str, Any]:
    """Build the call frame's content; the key goes here and nowhere else."""
    endpoint = request.endpoint
    provider = endpoint.provider
    name = provider.litellm_name
    return {
        "kind": request.kind,
        "stream": request.stream and request.kind not in WHOLE_KINDS,
        "model": f"{name}/{endpoint.upstream_model}",
        "arguments": _sendable(_arguments(request)),
        "extra_body": without_protected(request.options),
        "api_key": key,
        "api_base": provider.base_url,
        "allow_http": provider.allow_http,
        "headers": {"User-Agent": USER_AGENT, **checked_headers(provider.headers)},
        "connect_s": endpoint.timeouts.connect_s,
        "total_s": endpoint.timeouts.total_s,
    }


def _arguments(request: UpstreamRequest) -> dict[str, Any]:
    if request.kind == "rerank":
        asked = {**request.body, **without_protected(request.options)}  # litellm has no extra_body for rerank
        given = {name: asked[name] for name in _RERANK if asked.get(name) is not None}
        return {**given, "documents": sent_documents(request.body)}
    if request.kind == "embeddings":
        return {name: value for name, value in request.body.items() if name in _EMBEDDING}
    endpoint = request.endpoint
    body = with_one_length(dict(request.body), endpoint.option("max_tokens_field"))
    allowed = {name: value for name, value in body.items() if name in _ALLOWED and value is not None}
    name = endpoint.provider.litellm_name
    if isinstance(messages := allowed.get("messages"), list):
        wants_content = endpoint.option("reasoning_field", _THOUGHTS.get(name)) == "reasoning_content"
        with_thoughts = _with_content if wants_content else _with_thinking
        if name == "anthropic":  # litellm joins an assistant's messages that follow each other
            messages = [
                _with_addresses(piece) for message in whole_results(messages) for piece in _pieces(message)
            ]
        allowed["messages"] = [with_thoughts(without_claudes(message)) for message in messages]
    if isinstance(tools := allowed.get("tools"), list):
        allowed["tools"] = list(map(tool_of_claude if name == "anthropic" else without_claudes, tools))
    return {**allowed, **_reasoning(body, endpoint)}


def _pieces(message: Any) -> Iterable[Any]:
    return in_order(message) if isinstance(message, Mapping) else (message,)


def _with_addresses(message: Any) -> Any:
    """Files named by address, which Claude fetches, where litellm does not want to fetch them itself."""
    content = message.get("content") if isinstance(message, Mapping) else None
    return {**message, "content": list(map(_with_address, content))} if isinstance(content, list) else message


def _with_address(part: Any) -> Any:
    file = part.get("file") if isinstance(part, Mapping) and part.get("type") == "file" else None
    address = file.get("file_data") if isinstance(file, Mapping) else None
    is_address = isinstance(address, str) and address.startswith(("https://", "http://"))
    return {**part, "file": {"file_id": address}} if is_address else part


def _with_thinking(message: Any) -> Any:
    """Claude's signed thoughts in litellm's words: without them Claude refuses a tool loop."""
    details = message.get("reasoning_details") if isinstance(message, Mapping) else None
    blocks = [
        block
        for detail in (details if isinstance(details, list) else ())
        if isinstance(detail, Mapping) and detail.get("format") == CLAUDE and (block := _thinking(detail))
    ]
    return {**message, "thinking_blocks": blocks} if blocks else message


def _with_content(message: Any) -> Any:
    """An answer's thoughts where its maker wants them: else it refuses the turn after a tool's result."""
    is_answer = isinstance(message, Mapping) and message.get("role") == "assistant"
    thoughts = thoughts_of(message) if is_answer else ""
    return {**message, "reasoning_content": thoughts} if thoughts else message


def _thinking(detail: Mapping[str, Any]) -> dict[str, Any] | None:
    if detail.get("data"):
        return {"type": "redacted_thinking", "data": detail["data"]}
    if not detail.get("signature"):
        return None  # nobody would take an unsigned thought back
    return {"type": "thinking", "thinking": detail.get("text") or "", "signature": detail["signature"]}


def _sendable(arguments: dict[str, Any]) -> dict[str, Any]:
    """Replace lone surrogates, on which some of litellm's clients fail, by U+FFFD."""
    if b"\\ud" not in json.dumps(arguments):  # orjson writes plain UTF-8, so an escape is rare
        return arguments
    return cast(dict[str, Any], _without_surrogates(arguments))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_without_surrogates(name): _without_surrogates(item) for name, item in value.items()}
    return [_without_surrogates(item) for item in value] if isinstance(value, list) else value


def _reasoning(body: Mapping[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    """OpenRouter's `reasoning` object in litellm's words."""
    reasoning = body.get("reasoning")
    if not isinstance(reasoning, Mapping):
        return {}
    if endpoint.provider.litellm_name == "anthropic":
        return _thinking_of(reasoning)
    if isinstance(budget := reasoning.get("max_tokens"), int):
        return {"thinking": {"type": "enabled", "budget_tokens": budget}}
    if isinstance(effort := reasoning.get("effort"), str):
        return {"reasoning_effort": effort}
    return {"reasoning_effort": "medium"} if reasoning.get("enabled") else {}


def _thinking_of(reasoning: Mapping[str, Any]) -> dict[str, Any]:
    """The same for Claude, as its newest models take it; litellm_thinking.py knows the others."""
    effort, budget, asked = (reasoning.get(name) for name in ("effort", "max_tokens", AS_CLAUDE))
    if reasoning.get("enabled") is False or effort == "none" or budget == 0:
        return {"reasoning_effort": "none"}
    if isinstance(asked, Mapping) and asked.get("type") in ("enabled", "adaptive"):
        thinking = {name: asked[name] for name in ("type", "budget_tokens", "display") if name in asked}
        is_told = asked["type"] == "adaptive" and isinstance(effort, str)
        return {"thinking": thinking, **({"output_config": {"effort": effort}} if is_told else {})}
    if isinstance(budget, int):
        return {"thinking": {"type": "enabled", "budget_tokens": budget}}
    if isinstance(effort, str):
        return {"reasoning_effort": effort}
    return {"reasoning_effort": "medium"} if reasoning.get("enabled") else {}
