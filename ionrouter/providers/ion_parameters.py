"""An OpenAI-shaped body to what the local engine samples by. Checks every field; changes nothing it is given.

Whatever would change the answer and cannot be done here is refused by name, never left out in silence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ionrouter.engine.ion import SamplingParams
from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.providers.ion_grammar import grammar_of
from ionrouter.schema.request import Kind

SUPPORTED_PARAMETERS = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
        "frequency_penalty", "seed", "stop", "max_tokens", "max_completion_tokens", "logprobs",
        "top_logprobs", "n", "min_tokens", "ignore_eos", "stop_token_ids", "echo", "top_a", "logit_bias",
        "prompt_logprobs",
        "response_format", "structured_outputs", "tools", "tool_choice", "parallel_tool_calls",
        "guided_json", "guided_regex", "guided_choice",
        "guided_grammar",
    }
)  # fmt: skip

MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 128
MAX_STOPS = 64
MAX_BIASES = 1024
_SMALLEST_TOP_P = 1e-6  # top_p 0 means "the most likely token alone"; the engine wants (0, 1]
_SMALLEST_PENALTY = 1e-30  # float32 would make 0 of less, which no logit can be divided by
_SEED_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """What the loaded model can do: tokens of prompt and answer together, ids, tokens of an answer."""

    context_length: int
    vocab_size: int
    max_completion_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One request, checked. `sampling.seed` is the first choice's; choice i of a prompt adds i."""

    sampling: SamplingParams
    num_choices: int = 1
    wants_logprobs: bool = False
    echo: bool = False
    prompt_logprobs: int | None = None  # vLLM's: how many alternatives to report beside each prompt token

    @property
    def scores_prompt(self) -> bool:
        return self.sampling.prompt_logprobs >= 0

    def sampling_of(self, choice: int) -> SamplingParams:
        seed = (self.sampling.seed + choice) & _SEED_MASK
        # The first choice scores the prompt for all.
        scored = self.sampling.prompt_logprobs if choice == 0 else -1
        return replace(self.sampling, seed=seed, prompt_logprobs=scored)


# Field -> whether its value changes nothing, given the body. Anything else needs an endpoint that can do it.
_NEUTRAL: Mapping[str, Callable[[Any, Mapping[str, Any]], bool]] = {
    "functions": lambda value, body: value == [],
    "function_call": lambda value, body: value in ("none", "auto"),
    "modalities": lambda value, body: value == ["text"],
    "audio": lambda value, body: False,
    "prediction": lambda value, body: False,
    "web_search_options": lambda value, body: False,
    "suffix": lambda value, body: value == "",
    "best_of": lambda value, body: value in (1, body.get("n")),
}


@dataclass(frozen=True, slots=True)
class _Range:
    least: float
    most: float
    default: float
    excludes_least: bool = False

    def __str__(self) -> str:
        return f"{'(' if self.excludes_least else '['}{self.least:g}, {self.most:g}]"

    def holds(self, value: float) -> bool:
        is_above = value > self.least if self.excludes_least else value >= self.least
        return is_above and value <= self.most


_TOKEN_ID = re.compile("[0-9]{1,20}")  # Python makes no number of thousands of digits
_BIAS = _Range(-100, 100, 0)

# OpenRouter's ranges (docs/api.md); neutral values as defaults.
_NUMBERS: Mapping[str, _Range] = {
    "temperature": _Range(0, 2, 1),
    "top_p": _Range(0, 1, 1),
    "min_p": _Range(0, 1, 0),
    "top_a": _Range(0, 1, 0),
    "repetition_penalty": _Range(0, 2, 1, excludes_least=True),
    "presence_penalty": _Range(-2, 2, 0),
    "frequency_penalty": _Range(-2, 2, 0),
}


def parse_parameters(
    body: Mapping[str, Any], kind: Kind, limits: Limits, *, num_prompt: int, random_seed: int
) -> Plan:
    """Check a body against the model's limits; raises UpstreamError (400) naming the field.

    `num_prompt` is the longest prompt's tokens, `random_seed` what an absent seed means.
    """
    _refuse_unsupported(body)
    numbers = {name: _number(body, name, allowed) for name, allowed in _NUMBERS.items()}
    logprobs = _num_logprobs(body, kind)
    echo = _boolean(body, "echo") if kind == "completions" else False
    reported = _integer(body, "prompt_logprobs")
    if reported is not None:
        _within("prompt_logprobs", reported, MAX_TOP_LOGPROBS)
    max_tokens = _max_tokens(body, limits, num_prompt, least=0 if echo else 1)
    seed = _integer(body, "seed")
    grammar = grammar_of(body)
    if grammar is not None:
        _refuse_beside_grammar(body)
    sampling = SamplingParams(
        max_tokens=max_tokens,
        top_k=_top_k(body, limits.vocab_size),
        seed=(random_seed if seed is None else seed) & _SEED_MASK,
        stop=_stops(body.get("stop")),
        stop_ids=_token_ids(body, "stop_token_ids", limits.vocab_size),
        ignore_eos=_boolean(body, "ignore_eos"),
        min_tokens=_min_tokens(body, max_tokens),
        logprobs=logprobs,
        temperature=numbers["temperature"],
        top_p=max(numbers["top_p"], _SMALLEST_TOP_P),
        min_p=numbers["min_p"],
        top_a=numbers["top_a"],
        logit_bias=_logit_bias(body, limits.vocab_size),
        grammar=grammar if max_tokens > 0 else None,
        repetition_penalty=max(numbers["repetition_penalty"], _SMALLEST_PENALTY),
        presence_penalty=numbers["presence_penalty"],
        frequency_penalty=numbers["frequency_penalty"],
        prompt_logprobs=max(logprobs if echo else -1, -1 if reported is None else reported),
    )
    return Plan(sampling, _num_choices(body), logprobs >= 0, echo, reported)


def invalid(param: str, message: str) -> UpstreamError:
    """Make the error of a value that any endpoint would refuse."""
    return UpstreamError(
        FailureClass.REQUEST, f"{param}: {message}", status=400, error_type="invalid_request", param=param
    )


def unsupported(param: str, what: str | None = None) -> UpstreamError:
    """Make the error of a wish that another endpoint may fulfil."""
    return UpstreamError(
        FailureClass.ENDPOINT_REQUEST,
        f"{param}: the local engine does not support {what or param}",
        status=400,
        error_type="invalid_request",
        param=param,
    )


def require_length(num_prompt: int, limits: Limits, param: str) -> None:
    """Refuse a prompt that leaves no room for one new token, naming both lengths."""
    if num_prompt >= limits.context_length:
        raise UpstreamError(
            FailureClass.ENDPOINT_REQUEST,
            f"{param}: the prompt has {num_prompt} tokens, but the context length is {limits.context_length} "
            f"tokens, of which at least one must be left for the answer",
            status=400,
            code="context_length_exceeded",
            error_type="context_length_exceeded",
            param=param,
        )


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    for name, is_neutral in _NEUTRAL.items():
        value = body.get(name)
        if value is not None and not is_neutral(value, body):
            raise unsupported(name)


def _refuse_beside_grammar(body: Mapping[str, Any]) -> None:
    """A grammar says when the answer is complete; what would go on beyond its end contradicts it."""
    for name in ("min_tokens", "ignore_eos"):
        if body.get(name):
            raise invalid(name, "does not go together with a grammar, which says when an answer is complete")


def _logit_bias(body: Mapping[str, Any], vocab_size: int) -> tuple[tuple[int, float], ...]:
    """Token id (in JSON a string) -> what is added to its logit."""
    given = body.get("logit_bias")
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise invalid("logit_bias", "expected an object: token id to number")
    if len(given) > MAX_BIASES:
        raise invalid("logit_bias", f"{len(given)} entries are more than {MAX_BIASES}")
    out = []
    for key in given:
        path = f"logit_bias.{key}"
        token = int(key) if _TOKEN_ID.fullmatch(str(key)) else -1
        if not 0 <= token < vocab_size:
            raise invalid(path, f"no token id below {vocab_size}")
        out.append((token, _number({path: given[key]}, path, _BIAS)))
    return tuple(out)


def _number(body: Mapping[str, Any], name: str, allowed: _Range) -> float:
    value = body.get(name)
    if value is None:
        return allowed.default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise invalid(name, f"expected a number in {allowed}")
    if not allowed.holds(value):
        raise invalid(name, f"{value:g} is outside {allowed}")
    return float(value)


def _integer(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(name, "expected an integer")
    return value


def _boolean(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise invalid(name, "expected true or false")
    return value


def _top_k(body: Mapping[str, Any], vocab_size: int) -> int:
    """0, -1 and anything from the vocabulary's size on mean off."""
    value = _integer(body, "top_k") or 0
    if value < -1:
        raise invalid("top_k", f"{value} is below -1 (off)")
    return 0 if value == -1 or value >= vocab_size else value


def _max_tokens(body: Mapping[str, Any], limits: Limits, num_prompt: int, *, least: int) -> int:
    """Take the caller's cap, and what is left of the context if that is less."""
    left = limits.context_length - num_prompt
    if limits.max_completion_tokens is not None:
        left = min(left, limits.max_completion_tokens)
    # max_tokens is the deprecated alias: with both given the newer name holds.
    for name in ("max_completion_tokens", "max_tokens"):
        value = _integer(body, name)
        if value is not None:
            if value < least:
                raise invalid(name, f"{value} is below {least}")
            return min(value, left)
    return left


def _min_tokens(body: Mapping[str, Any], max_tokens: int) -> int:
    value = _integer(body, "min_tokens") or 0
    if not 0 <= value <= max_tokens:
        raise invalid("min_tokens", f"{value} is outside [0, {max_tokens}] (max_tokens)")
    return value


def _num_choices(body: Mapping[str, Any]) -> int:
    value = _integer(body, "n")
    if value is None:
        return 1
    if not 1 <= value <= MAX_CHOICES:
        raise invalid("n", f"{value} is outside [1, {MAX_CHOICES}]")
    return value


def _num_logprobs(body: Mapping[str, Any], kind: Kind) -> int:
    """Return how many alternatives to report beside the chosen token; -1: no log-probabilities."""
    if kind == "completions":
        count = _integer(body, "logprobs")
        return -1 if count is None else _within("logprobs", count, MAX_TOP_LOGPROBS)
    top = _integer(body, "top_logprobs")
    if not _boolean(body, "logprobs"):
        if top:
            raise invalid("top_logprobs", "needs logprobs: true")
        return -1
    return _within("top_logprobs", top or 0, MAX_TOP_LOGPROBS)


def _within(name: str, count: int, most: int) -> int:
    if not 0 <= count <= most:
        raise invalid(name, f"{count} is outside [0, {most}]")
    return count


def _stops(value: Any) -> tuple[bytes, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list | tuple) or not all(isinstance(stop, str) and stop for stop in stops):
        raise invalid("stop", "expected a string or a list of strings, none of them empty")
    if len(stops) > MAX_STOPS:
        raise invalid("stop", f"{len(stops)} strings are more than {MAX_STOPS}")
    try:
        return tuple(dict.fromkeys(stop.encode("utf-8") for stop in stops))
    except UnicodeEncodeError:
        raise invalid("stop", "holds a lone surrogate, which is no text") from None


def _token_ids(body: Mapping[str, Any], name: str, vocab_size: int) -> tuple[int, ...]:
    ids = body.get(name)
    return () if ids is None else tuple(check_token_ids(ids, name, vocab_size))


def check_token_ids(ids: Any, name: str, vocab_size: int) -> list[int]:
    """Check a list of token ids."""
    if not isinstance(ids, list | tuple):
        raise invalid(name, "expected a list of token ids")
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise invalid(name, f"{token!r} is not a token id below {vocab_size}")
    return list(ids)
