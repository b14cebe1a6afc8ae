"""The caller's `provider.options`: more fields for one provider's endpoints, laid over the body. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ionrouter.balancing.fields import CONTENT, FORBIDDEN, copied
from ionrouter.routing.table import Endpoint
from ionrouter.schema.request import InferenceRequest

# How much is answered, also under the names that it has elsewhere (llama.cpp and Ollama, TGI, Gemini, Cohere,
# Hugging Face), in lower case.
LENGTHS = frozenset(
    {
        "max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "maxoutputtokens",
        "n_predict", "num_predict",
    }
)  # fmt: skip
COUNTS = frozenset(
    {"n", "best_of", "num_generations", "num_return_sequences", "candidate_count", "candidatecount"}
)
# Limits and prices look for these, and for the tier, in the request alone.
_COUNTED = LENGTHS | COUNTS | {"generation_config", "generationconfig", "service_tier"}
_WITHHELD = FORBIDDEN | CONTENT | _COUNTED | {"model", "stream"}


class Options(Struct, frozen=True):
    """What an endpoint gets beside the body, and the names left out of that, as the caller wrote them."""

    given: Mapping[str, Any] = {}
    dropped: tuple[str, ...] = ()


_NONE = Options()


def options_for(request: InferenceRequest, endpoint: Endpoint) -> Options:
    """Collect the options for this endpoint's provider, less what no caller may set there."""
    if not request.preferences.options:
        return _NONE
    slugs = (endpoint.provider.slug.lower(), endpoint.tag.lower())
    given: dict[str, Any] = {}
    dropped: list[str] = []
    for provider, options in request.preferences.options.items():
        if provider.lower() not in slugs:
            continue
        for name, value in options.items():
            lowered = name.lower()
            if lowered in _WITHHELD or lowered.startswith("litellm_"):
                dropped.append(f"provider.options.{provider}.{name}")
            else:
                given[name] = copied(value)
    return Options(given, tuple(sorted(dropped)))
