"""litellm's price list, read from the JSON file in its wheel. Never imports litellm (seconds, 300 MB)."""

from __future__ import annotations

import datetime
import difflib
import functools
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson

from ionrouter.errors import ConfigError
from ionrouter.routing.table import KnownModel, Price

FILE_NAME = "model_prices_and_context_window_backup.json"

# What the list's flags say about request fields. A flag that is absent says nothing.
_FIELDS_BY_FLAG = {
    "supports_function_calling": ("tools", "tool_choice"),
    "supports_parallel_function_calling": ("parallel_tool_calls",),
    "supports_response_schema": ("response_format", "structured_outputs"),
    "supports_reasoning": ("reasoning", "include_reasoning"),
}
SAMPLING_PARAMETERS = frozenset(
    {
        *("temperature", "top_p", "max_tokens", "max_completion_tokens", "stop"),
        *("frequency_penalty", "presence_penalty"),
    }
)
# Anthropic's models take no penalties, and what no flag tells.
_CLAUDES = frozenset({"temperature", "max_tokens", "max_completion_tokens", "stop", "parallel_tool_calls"})
_CLAUDES_SAMPLING = frozenset({"top_p", "top_k"})  # which the newest have no longer
_MODALITIES = {
    "image": "supports_vision",
    "file": "supports_pdf_input",
    "audio": "supports_audio_input",
    "video": "supports_video_input",
}

_LONG = re.compile(r"input_cost_per_token_above_(\d{1,6})k_tokens")
# Endings say for whom: `_above_200k_tokens`, then `_priority`.
_FIELDS = {
    "prompt": "input_cost_per_token",
    "completion": "output_cost_per_token",
    "cache_read": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
    "cache_write_1h": "cache_creation_input_token_cost_above_1hr",
    "audio": "input_cost_per_audio_token",
    "image_token": "input_cost_per_image_token",
    "audio_output": "output_cost_per_audio_token",
    "image_output": "output_cost_per_image_token",
    "reasoning": "output_cost_per_reasoning_token",
}
_TIERS = ("flex", "priority", "ultrafast")

# The list splits some providers, either with a hyphen (vertex_ai-llama_models) or like this.
_PARTS = {
    "bedrock": ("bedrock_converse", "bedrock_mantle"),
    "cohere": ("cohere_chat",),
    "azure": ("azure_text",),
}


@dataclass(frozen=True, slots=True)
class PriceBook:
    """The list by litellm's model key, e.g. `together_ai/meta-llama/Llama-3.3-70B-Instruct-Turbo`."""

    entries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def find(self, litellm_provider: str, model: str) -> KnownModel | None:
        """What the list knows of `model` at `litellm_provider`, or None."""
        entry = self._entry(litellm_provider, model)
        return None if entry is None else _known(entry)

    def deprecated_on(self, litellm_provider: str, model: str) -> datetime.date | None:
        """The date at which the provider retires the model, if the list has one."""
        entry = self._entry(litellm_provider, model) or {}
        try:
            return datetime.date.fromisoformat(str(entry.get("deprecation_date", "")))
        except ValueError:
            return None

    def successor_of(self, litellm_provider: str, model: str) -> str | None:
        """What the list names as the model's replacement."""
        successor = (self._entry(litellm_provider, model) or {}).get("successor_model")
        return successor if isinstance(successor, str) else None

    def models_of(self, litellm_provider: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Upstream names and entries of one provider."""
        prefix = f"{litellm_provider}/"
        for key, entry in self.entries.items():
            if _belongs(entry, litellm_provider):
                yield key.removeprefix(prefix), entry

    def is_provider(self, litellm_provider: str) -> bool:
        """Whether the list has any model of that provider."""
        return any(_belongs(entry, litellm_provider) for entry in self.entries.values())

    def similar_providers(self, litellm_provider: str) -> list[str]:
        """Provider names of the list that are spelled alike."""
        names = {str(entry.get("litellm_provider")) for entry in self.entries.values()}
        return difflib.get_close_matches(litellm_provider, sorted(names), n=1)

    def upstream_name(self, litellm_provider: str, model_id: str) -> str | None:
        """The provider's own name for a model known by `model_id` elsewhere, e.g. in OpenRouter's list.

        Compares letters and digits only: `meta-llama/llama-3.3-70b-instruct` finds
        `accounts/fireworks/models/llama-v3p3-70b-instruct`. The shortest of several wins.
        """
        wanted = _letters(model_id.rsplit("/", 1)[-1])
        fits = [
            name
            for name, entry in self.models_of(litellm_provider)
            if entry.get("mode") in ("chat", "completion")
            and _letters(name.rsplit("/", 1)[-1]) in (wanted, f"{wanted}turbo")
        ]
        return min(fits, key=lambda name: (len(name), name), default=None)

    def _entry(self, litellm_provider: str, model: str) -> Mapping[str, Any] | None:
        if (entry := self.entries.get(f"{litellm_provider}/{model}")) is not None:
            return entry
        if model.startswith(f"{litellm_provider}/"):
            return None  # the key of another entry, not the provider's own name
        entry = self.entries.get(model)
        return entry if entry is not None and _belongs(entry, litellm_provider) else None


def _belongs(entry: Mapping[str, Any], litellm_provider: str) -> bool:
    owner = str(entry.get("litellm_provider", ""))
    return litellm_provider in (owner, owner.split("-", 1)[0]) or owner in _PARTS.get(litellm_provider, ())


def _letters(name: str) -> str:
    name = re.sub(r"(?<=\d)p(?=\d)", "", name.lower())  # Fireworks writes 3.3 as 3p3
    return re.sub(r"\bv(?=\d)|[^a-z0-9]", "", name)


def _known(entry: Mapping[str, Any]) -> KnownModel:
    takes = {name for name, flag in _MODALITIES.items() if entry.get(flag) is True}
    return KnownModel(
        price=_price(entry),
        context_length=_tokens(entry.get("max_input_tokens") or entry.get("max_tokens")),
        max_completion_tokens=_tokens(entry.get("max_output_tokens")),
        supported_parameters=_parameters(entry),
        input_modalities=frozenset({"text", *takes}),
    )


def _price(entry: Mapping[str, Any]) -> Price | None:
    prompt, completion = entry.get("input_cost_per_token"), entry.get("output_cost_per_token")
    if not isinstance(prompt, int | float) or not isinstance(completion, int | float):
        return None
    request = _dollars(entry.get("input_cost_per_query")) or 0.0
    if not (prompt or completion or request) and any(map(_is_charged, entry.items())):
        return None  # by something that is no token and no request: not free
    price = Price(request=request).changed(_listed(entry))
    usual = with_long(price, _long_prices(entry))
    return replace(usual, tiers=tuple(_tiers(entry, price)))


def _listed(entry: Mapping[str, Any], ending: str = "") -> Mapping[str, float | None]:
    """USD per token by field, None where the list does not say."""
    return {field: _dollars(entry.get(f"{name}{ending}")) for field, name in _FIELDS.items()}


def _long_prices(
    entry: Mapping[str, Any], tier: str = ""
) -> Iterator[tuple[int, Mapping[str, float | None]]]:
    """What long prompts cost: `input_cost_per_token_above_200k_tokens` and the like, of any length."""
    for name in entry:
        if (found := _LONG.fullmatch(name)) is not None:
            ending = name.removeprefix("input_cost_per_token")
            usual, own = _listed(entry, ending), _listed(entry, f"{ending}{tier}")
            yield int(found[1]) * 1000, {**usual, **{k: usd for k, usd in own.items() if usd is not None}}


def _tiers(entry: Mapping[str, Any], usual: Price) -> Iterator[tuple[str, Price]]:
    """What other levels of service cost, where the list has both sides; what it leaves out costs as usual."""
    for tier in _TIERS:
        said = _listed(entry, f"_{tier}")
        if said["prompt"] is not None and said["completion"] is not None:
            yield tier, with_long(usual.changed(said), _long_prices(entry, f"_{tier}"))


def with_long(price: Price, named: Iterable[tuple[int, Mapping[str, float | None]]]) -> Price:
    """Add prices of prompts of more tokens than so many: USD per token by field, None as of shorter ones."""
    steps: list[tuple[int, Price]] = []
    longest = price
    for above, said in sorted(named, key=itemgetter(0)):
        steps.append((above, longest))
        longest = longest.changed(said)
    for above, shorter in reversed(steps):
        longest = replace(shorter, long=longest, long_above=above)
    return longest


def _is_charged(named: tuple[str, Any]) -> bool:
    name, value = named
    return "cost" in name and isinstance(value, int | float) and value > 0


def _dollars(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _tokens(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and value > 0 else None


def _parameters(entry: Mapping[str, Any]) -> frozenset[str]:
    named = {name for flag, names in _FIELDS_BY_FLAG.items() if entry.get(flag) is True for name in names}
    if not named:
        return frozenset()
    if entry.get("litellm_provider") != "anthropic":
        return frozenset(named | SAMPLING_PARAMETERS)
    is_sampled = entry.get("supports_sampling_params") is not False
    return frozenset(named | _CLAUDES | (_CLAUDES_SAMPLING if is_sampled else set()))


def find_price_file() -> Path | None:
    """Where the installed litellm keeps its price list, without importing it."""
    spec = importlib.util.find_spec("litellm")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / FILE_NAME
    return path if path.is_file() else None


@functools.lru_cache(maxsize=2)
def read_price_book(path: Path | None = None) -> PriceBook:
    """Read litellm's list (default: the installed one); an absent file gives an empty book."""
    path = path or find_price_file()
    if path is None:
        return PriceBook()
    try:
        entries = orjson.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"litellm's price list {path} is damaged: {error}") from None
    return PriceBook({key: entry for key, entry in entries.items() if key != "sample_spec"})
