"""The caller's `provider.options`: more fields for one provider's endpoints, laid over the body. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ionrouter.balancing.fields import CONTENT, copied
from ionrouter.routing.table import Endpoint, RoutingTable
from ionrouter.routing.tags import is_named, means_nobody
from ionrouter.schema.fields import is_instruction
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
_WITHHELD = CONTENT | _COUNTED | {"model", "stream", "stream_options"}


class Options(Struct, frozen=True):
    """What an endpoint gets beside the body, and the names left out of that, as the caller wrote them."""

    given: Mapping[str, Any] = {}
    dropped: tuple[str, ...] = ()


_NONE = Options()


def options_for(request: InferenceRequest, endpoint: Endpoint) -> Options:
    """Collect the options for this endpoint's provider, less what no caller may set there.

    The engine inside has none beside the fields of a request.
    """
    if not request.preferences.options:
        return _NONE
    has_none = endpoint.provider.type == "ion"
    given: dict[str, Any] = {}
    dropped: list[str] = []
    for provider, options in request.preferences.options.items():
        if not is_named(provider, endpoint):
            continue
        for name, value in options.items():
            lowered = name.lower()
            if has_none or lowered in _WITHHELD or is_instruction(lowered):
                dropped.append(f"provider.options.{provider}.{name}")
            else:
                given[name] = copied(value)
    return Options(given, tuple(sorted(dropped)))


def unknown_options(request: InferenceRequest, table: RoutingTable) -> tuple[str, ...]:
    """Name the options that are for nobody; those for others than who serves are for somebody.

    Another router among the providers gets the whole `provider` object, and may know whom they are for.
    """
    names = request.preferences.options
    if not names or any(provider.forward_provider for provider in table.providers.values()):
        return ()
    return tuple(f"provider.options.{name}" for name in sorted(names) if means_nobody(name, table))
