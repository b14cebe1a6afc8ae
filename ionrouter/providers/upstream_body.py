"""The JSON an OpenAI-shaped upstream gets: final fields, our model name, usage always asked for.

What decides where a request goes (model, address, key, headers) never comes from a caller's options.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from yarl import URL

from ionrouter.providers.base import UpstreamRequest
from ionrouter.providers.rerank_body import sent_documents
from ionrouter.schema.fields import is_instruction
from ionrouter.schema.request import WHOLE_KINDS

# What the request itself says, or what is said here of each.
_OWN = frozenset(("model", "messages", "prompt", "input", "query", "documents", "stream", "stream_options"))
_LENGTH_FIELDS = ("max_completion_tokens", "max_tokens")  # the first wins when a caller gives both


def is_protected(name: str) -> bool:
    """Whether a field may never come from a caller: it chooses the model, the address or the credentials."""
    lowered = name.lower()
    return lowered in _OWN or is_instruction(lowered)


def without_protected(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` without protected names."""
    return {name: value for name, value in options.items() if not is_protected(name)}


def build_body(request: UpstreamRequest) -> dict[str, Any]:
    """Build the body for POST; never changes `request.body`."""
    body = {**request.body}
    if request.options:
        body.update(without_protected(request.options))
    body["model"] = request.endpoint.upstream_model
    if not body.keys().isdisjoint(_LENGTH_FIELDS):
        body = with_one_length(body, request.endpoint.option("max_tokens_field") or _length_field(request))
    asked = body.pop("stream_options", None)
    if request.kind == "rerank":
        body["documents"] = sent_documents(body)
    if request.stream and request.kind not in WHOLE_KINDS:
        body["stream"] = True
        body["stream_options"] = {**(asked if isinstance(asked, dict) else {}), "include_usage": True}
    return body


def with_one_length(body: dict[str, Any], field: Any = None) -> dict[str, Any]:
    """Keep one cap on new tokens, under `field` when the endpoint names the one it takes."""
    given = [name for name in _LENGTH_FIELDS if body.get(name) is not None]
    if not given or (len(given) == 1 and field is None):
        return body
    name = field if field in _LENGTH_FIELDS else given[0]
    rest = {key: value for key, value in body.items() if key not in _LENGTH_FIELDS}
    return {**rest, name: body[given[0]]}


def _length_field(request: UpstreamRequest) -> str | None:
    """What is known of an address: OpenAI's reasoning models refuse `max_tokens`, and all take the other."""
    endpoint = request.endpoint
    is_told = bool(endpoint.supported_parameters)  # then it has the name that is declared
    is_new = not is_told and request.kind == "chat" and _is_openai(endpoint.provider.base_url)
    return "max_completion_tokens" if is_new else None


@lru_cache(maxsize=256)
def _is_openai(base_url: str | None) -> bool:
    host = URL(base_url or "").host or ""
    return host == "api.openai.com" or host.endswith(".openai.azure.com")


def count_choices(body: Mapping[str, Any]) -> int:
    """Count the choices a stream will hold: `n` for each prompt (a completions request may have several)."""
    n, prompt = body.get("n"), body.get("prompt")
    is_many = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)
    return (n if isinstance(n, int) and n > 0 else 1) * (len(prompt) if is_many and prompt else 1)
