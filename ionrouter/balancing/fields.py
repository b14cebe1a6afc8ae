"""Which fields of a request fit an endpoint: what is sent, what is dropped, what forbids the endpoint.

A parameter that shapes sampling is dropped and listed where it is not supported; one that changes the
answer's contract forbids the endpoint. An endpoint that declares nothing may support anything: the upstream
decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from ionrouter.balancing.plain_messages import make_plain
from ionrouter.balancing.reasoning import thought_fields
from ionrouter.routing.table import Endpoint
from ionrouter.schema.claudes_fields import without_claudes
from ionrouter.schema.fields import GATEWAY_FIELDS, MODEL_PARAMETERS, TOOL_EXTRAS, is_instruction
from ionrouter.schema.request import InferenceRequest

# The request itself, for every kind.
CONTENT = frozenset(
    {
        "messages",
        "prompt",
        "input",
        "suffix",
        "echo",
        "encoding_format",
        "dimensions",
        "input_type",
        "query",
        "documents",
        "top_n",
    }
)
_LENGTH = ("max_completion_tokens", "max_tokens")  # the first wins where a client sends both
_MARK = "cache_control"  # read here for how long a session stays, and by who caches

_WITHOUT_STRICT = frozenset({"anthropic", "gemini"})  # litellm's providers whose tools it gives no `strict`

# vLLM's older names for structured outputs.
GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")

# Unlisted fields that change what the client gets back: the local engine follows them or refuses them by
# name, so that another endpoint may serve them; to drop them would answer another question.
_CONTRACT_OF_ION = frozenset({"functions", "function_call", "best_of", *GUIDED})
# Not dropped for it either: the place in its queue and the session are made of them before it is asked.
# Thinking is the model's own affair: one that does not think answers as it does.
_READ_FOR_ION = frozenset({"service_tier", "prompt_cache_key", "cache_salt", "reasoning", "reasoning_effort"})


class Fitted(Struct, frozen=True):
    """A body for one endpoint, and the names left out.

    It shares no list or dict with the client's, unless its door writes it out as it is: there a copy of
    every message would be for nobody.
    """

    body: Mapping[str, Any]
    dropped: tuple[str, ...]


def _wants_tool_choice(value: Any) -> bool:
    return value not in (None, "auto")


def _wants_format(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") not in (None, "text")


# Parameter -> whether this value changes what the client gets back.
_CONTRACT: Mapping[str, Callable[[Any], bool]] = {
    "tools": bool,
    "tool_choice": _wants_tool_choice,
    "response_format": _wants_format,
    "structured_outputs": bool,
    "logprobs": lambda value: value is not None and value is not False,
    "top_logprobs": bool,
    "prompt_logprobs": lambda value: value is not None,
    "n": lambda value: isinstance(value, int) and value > 1,
    "modalities": lambda value: bool(value) and value != ["text"],
    "audio": bool,
}
# Sampling parameter or unlisted field -> values that every server takes where it gets none.
_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "top_a": (0,),
    "logit_bias": ({},),
    "stop": ([],),
    "parallel_tool_calls": (True,),  # allows, and demands none
    "verbosity": ("medium",),
    "service_tier": ("auto", "default"),
    "functions": ([],),
}
# Declaring any of these names declares the key.
_SYNONYMS: Mapping[str, frozenset[str]] = {
    "response_format": frozenset({"response_format", "structured_outputs"}),
    "structured_outputs": frozenset({"response_format", "structured_outputs"}),
    "tool_choice": frozenset({"tool_choice"}),
    "max_tokens": frozenset(_LENGTH),
    "max_completion_tokens": frozenset(_LENGTH),
    "reasoning": frozenset({"reasoning", "reasoning_effort", "include_reasoning"}),
    "reasoning_effort": frozenset({"reasoning", "reasoning_effort"}),
}


def asks_nothing(name: str, body: Mapping[str, Any]) -> bool:
    """Ask whether a parameter of a body that an endpoint does not get would have changed nothing.

    One answer (`n: 1`), plain text, no tools, no penalty; thoughts are left out here. A temperature or top_p
    of 1 is a wish, as are all values that turn off what some servers or models have on.
    """
    value = body.get(name)
    if name == "tool_choice" and value == "none" and not body.get("tools"):
        return True  # no tool can be called anyway
    if name == "best_of":  # one answer, or as many as are given anyway
        return value in (1, body.get("n"))
    if name in _CONTRACT:
        return not _CONTRACT[name](value)
    if name == "reasoning" and isinstance(value, Mapping):
        return all(key == "exclude" or said is None for key, said in value.items())
    return value in _NOTHING.get(name, ())


def contract_needs(request: InferenceRequest) -> frozenset[str]:
    """Name the parameters of a request that an endpoint must support, as their values are."""
    body = request.body  # has fewer names than the table, and what is absent is not wanted
    if _CONTRACT.keys().isdisjoint(body):
        return frozenset()
    return frozenset([name for name in body if name in _CONTRACT and not asks_nothing(name, body)])


def declares(endpoint: Endpoint, name: str) -> bool:
    """Ask whether an endpoint says that it supports a parameter."""
    return not endpoint.supported_parameters.isdisjoint(_SYNONYMS.get(name, {name}))


def may_support(endpoint: Endpoint, name: str) -> bool:
    """Ask whether a parameter could work: declared, or nothing is declared at all."""
    return not endpoint.supported_parameters or declares(endpoint, name)


def lost_parameters(request: InferenceRequest, endpoint: Endpoint) -> tuple[str, ...]:
    """Name the parameters that this endpoint would not get, in order."""
    if not endpoint.supported_parameters:
        return ()
    return tuple(
        sorted(
            name
            for name in request.parameters
            if not declares(endpoint, name) and not asks_nothing(name, request.body)
        )
    )


def undeclared_parameters(request: InferenceRequest, endpoint: Endpoint) -> tuple[str, ...]:
    """Name what `require_parameters` objects to: of an endpoint that declares nothing, the contract's."""
    if endpoint.supported_parameters:
        return lost_parameters(request, endpoint)
    return tuple(sorted(contract_needs(request)))


def fit(request: InferenceRequest, endpoint: Endpoint) -> Fitted:
    """Build the body for one endpoint from the client's, which stays as it is."""
    body: dict[str, Any] = {}
    dropped: list[str] = []
    is_shared = endpoint.provider.type == "openai"
    for name, value in request.body.items():
        if name in GATEWAY_FIELDS:
            continue
        if name in _LENGTH:
            body.update(_length(request.body, endpoint))
        elif name in CONTENT or _takes(request, endpoint, name):
            body[name] = value if is_shared else copied(value)
        elif not asks_nothing(name, request.body):
            dropped.append(name)
    if is_shared and not endpoint.provider.forward_provider:
        make_plain(body, endpoint.supported_parameters, thought_fields(endpoint))
    elif endpoint.provider.type != "litellm":  # whose adapter knows who is Claude
        for name in ("messages", "tools"):
            if isinstance(items := body.get(name), list):
                body[name] = list(map(without_claudes, items))
    if endpoint.provider.forward_provider and request.gateway_fields.get("provider"):
        body["provider"] = copied(request.gateway_fields["provider"])  # another router reads it too
    if (mark := request.gateway_fields.get(_MARK)) is not None and _caches_by_mark(endpoint):
        body[_MARK] = copied(mark)
    if endpoint.provider.type == "litellm" and _loses_strict(
        body.get("tools"), endpoint.provider.litellm_name
    ):
        dropped.append("tools.strict")
    return Fitted(body, tuple(sorted(dropped)) if dropped else ())


def _loses_strict(tools: Any, name: str) -> bool:
    """Ask whether litellm leaves a tool's `strict` out. Claude gets it of callers who speak as Claude's do.

    Its bounds on strict schemas are narrower than OpenAI's, so that others' requests would be refused.
    """
    if name not in _WITHOUT_STRICT or not isinstance(tools, list):
        return False
    functions = [
        tool.get("function") for tool in tools if isinstance(tool, dict) and not _is_kept(tool, name)
    ]
    return any(isinstance(function, dict) and function.get("strict") is True for function in functions)


def _is_kept(tool: Mapping[str, Any], name: str) -> bool:
    extras = tool.get(TOOL_EXTRAS)
    return name == "anthropic" and isinstance(extras, Mapping) and extras.get("strict") is True


def _caches_by_mark(endpoint: Endpoint) -> bool:
    """Ask whether a mark of the whole request, which has its prompt cached, is known there."""
    if endpoint.provider.forward_provider or _MARK in endpoint.supported_parameters:
        return True
    return endpoint.provider.type == "litellm" and endpoint.provider.litellm_name == "anthropic"


def _takes(request: InferenceRequest, endpoint: Endpoint, name: str) -> bool:
    if endpoint.provider.type == "ion" and name in _READ_FOR_ION | _CONTRACT_OF_ION:
        return True
    if name in MODEL_PARAMETERS or name in request.parameters or name in _CONTRACT:
        return may_support(endpoint, name)
    is_taken = endpoint.provider.forward_unknown or name in endpoint.supported_parameters
    return is_taken and not is_instruction(name)


def _length(body: Mapping[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    """Send one of the two names for the same limit: the client's if declared, else the one that is."""
    name, value = _LENGTH[0], body.get(_LENGTH[0])
    if value is None:
        name, value = _LENGTH[1], body.get(_LENGTH[1])
    if value is None:
        return {}
    if name not in endpoint.supported_parameters:
        declared = [other for other in _LENGTH if other in endpoint.supported_parameters]
        # The older name is the one that servers which declare nothing know.
        name = declared[0] if declared else "max_tokens"
    return {name: value}


def copied(value: Any) -> Any:
    """Copy containers, share leaves: an adapter that rewrites its body must not touch the next attempt's."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value
