"""OpenRouter's `reasoning` object in the words that an endpoint knows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec.structs import replace
from yarl import URL

from ionrouter.routing.table import Endpoint
from ionrouter.schema.efforts import DEFAULT_EFFORT, EFFORT_SHARES
from ionrouter.schema.fields import AS_CLAUDE
from ionrouter.schema.request import InferenceRequest

_WISHES = ("reasoning", "reasoning_effort")
_CONTENT = "reasoning_content"
# They refuse the turn after a tool's result without the thoughts that led to the call.
_WANT_CONTENT = ("deepseek.com", "moonshot.ai", "moonshot.cn", "z.ai", "bigmodel.cn", "xiaomimimo.com")


def thinking(request: InferenceRequest) -> InferenceRequest:
    """Turn reasoning on where the caller said nothing about it (`:thinking`)."""
    wish = request.body.get("reasoning")
    is_said = bool(request.body.get("reasoning_effort")) or (
        isinstance(wish, Mapping) and any(name in wish for name in ("effort", "max_tokens", "enabled"))
    )
    if is_said:
        return request
    body = {**request.body, "reasoning": {**(wish if isinstance(wish, Mapping) else {}), "enabled": True}}
    return replace(request, body=body, parameters=request.parameters | {"reasoning"})


def in_words_of(endpoint: Endpoint, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Say one thing once: `reasoning` to routers and endpoints that declare it, else `reasoning_effort`.

    Only for servers that get our JSON as it is; the other doors translate on their own.
    """
    is_wished = "reasoning" in body or "reasoning_effort" in body
    if not is_wished or endpoint.provider.type != "openai":
        return body
    rest = {name: value for name, value in body.items() if name not in _WISHES}
    wish = body.get("reasoning")
    wish = {key: said for key, said in wish.items() if key != AS_CLAUDE} if isinstance(wish, Mapping) else {}
    effort = body.get("reasoning_effort")
    if endpoint.provider.forward_provider or "reasoning" in endpoint.supported_parameters:
        said = {**wish, "effort": effort} if effort else wish
        return {**rest, "reasoning": said} if said else rest
    effort = effort or effort_of(wish, body)
    return {**rest, "reasoning_effort": effort} if effort else rest


def effort_of(wish: Mapping[str, Any], body: Mapping[str, Any]) -> str | None:
    """The effort that comes nearest to a `reasoning` object; None where it asks for none in particular."""
    if isinstance(effort := wish.get("effort"), str):
        return effort
    if wish.get("enabled") is False:
        return "none"
    budget = wish.get("max_tokens")
    if not isinstance(budget, int):
        return DEFAULT_EFFORT if wish.get("enabled") else None
    if budget == 0:
        return "none"
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    if not isinstance(most, int):
        return DEFAULT_EFFORT
    return min(EFFORT_SHARES, key=lambda name: abs(EFFORT_SHARES[name] - budget / most))


def thought_fields(endpoint: Endpoint) -> tuple[str, ...]:
    """Name the fields in which a server of OpenAI's shapes takes an answer's thoughts back.

    Several: it is one of ours, and which it reads depends on what it is; empty: nobody knows, so they stay
    where the caller put them.
    """
    if said := endpoint.option("reasoning_field"):
        return (said,)
    if _wants_content(endpoint.provider.base_url):
        return (_CONTENT,)
    return ("reasoning", _CONTENT) if endpoint.provider.forward_unknown else ()


@lru_cache(maxsize=256)
def _wants_content(base_url: str | None) -> bool:
    host = URL(base_url or "").host or ""
    return any(host == name or host.endswith(f".{name}") for name in _WANT_CONTENT)
