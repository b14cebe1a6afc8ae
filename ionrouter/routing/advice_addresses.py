"""Warnings on the addresses of providers: what will answer 404, redirect, or nobody."""

from __future__ import annotations

from collections.abc import Iterator

from yarl import URL

from ionrouter.routing.document import Catalog
from ionrouter.routing.yaml_source import Loc

Advice = Iterator[tuple[Loc, str]]

# What the router adds to a base_url by itself; the longer of two that end alike first.
_ADDED = ("/chat/completions", "/completions", "/embeddings", "/rerank", "/models")
# Where vendors have their OpenAI-compatible API, by host.
_BASES = {
    "api.openai.com": "/v1",
    "openrouter.ai": "/api/v1",
    "api.together.xyz": "/v1",
    "api.together.ai": "/v1",
    "api.fireworks.ai": "/inference/v1",
    "api.groq.com": "/openai/v1",
    "api.mistral.ai": "/v1",
    "api.x.ai": "/v1",
    "api.anthropic.com": "/v1",
    "api.cerebras.ai": "/v1",
    "api.sambanova.ai": "/v1",
    "api.moonshot.ai": "/v1",
    "api.deepinfra.com": "/v1/openai",
    "api.novita.ai": "/v3/openai",
    "integrate.api.nvidia.com": "/v1",
    "router.huggingface.co": "/v1",
    "generativelanguage.googleapis.com": "/v1beta/openai",
}
_OLLAMA_PORT = 11434  # on whatever host


def advise(catalog: Catalog) -> Advice:
    """Give the place and the words of each warning."""
    for slug, spec in catalog.spec.providers.items():
        if spec.type == "openai" and spec.base_url and (problem := _problem(spec.base_url)):
            yield ("providers", slug, "base_url"), problem


def _problem(text: str) -> str | None:
    try:
        url = URL(text)
    except ValueError:
        return "not a URL that can be asked"
    path = url.path.rstrip("/")
    base = "/v1" if url.port == _OLLAMA_PORT else _BASES.get(url.host or "")
    if url.port == 0:
        return "port 0 is no server's"
    for added in _ADDED:
        if path.endswith(added):
            return f"the router adds {added} itself; write '{url.with_path(path.removesuffix(added))}'"
    is_short = base is not None and path != base and (base.startswith(f"{path}/") or path == "/v1")
    return f"the API of {url.host} is at '{url.with_path(base)}'" if is_short and base else None
