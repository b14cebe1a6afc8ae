"""Reading an upstream's answer to GET /models (OpenAI's shape, OpenRouter's, Together's bare list). No HTTP.

Upstream text is not trusted: a row with a strange type is skipped or read without that field, and counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ionrouter.routing.prices import with_long
from ionrouter.routing.table import KnownModel, Price
from ionrouter.routing.values import per_token

MAX_MODELS = 20_000
MAX_WORD, MAX_TEXT = 256, 16_384  # characters of a name, of a description
MAX_WORDS = 256  # of a list of parameters or modalities
MAX_COUNT = 2**53 - 1  # of tokens or seconds: what every reader of JSON takes for a whole number
MAX_OVERRIDES = 16
_PARTS = {
    "audio": "audio",
    "image_token": "image_token",
    "audio_output": "audio_output",
    "image_output": "image_output",
    "reasoning": "internal_reasoning",
}
_LISTED = {
    "prompt": "prompt",
    "completion": "completion",
    "cache_read": "input_cache_read",
    "cache_write": "input_cache_write",
    "cache_write_1h": "input_cache_write_1h",
    **_PARTS,
}
_NAME = re.compile(r"[^\s*]{1,256}")  # and printable, as the names in the file are

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")


@dataclass(frozen=True, slots=True)
class UpstreamModel:
    """One row of an upstream's list."""

    id: str
    name: str
    created: int = 0
    description: str = ""
    known: KnownModel = field(default_factory=KnownModel)
    input_modalities: tuple[str, ...] = ("text",)
    output_modalities: tuple[str, ...] = ("text",)
    declares_output: bool = False  # True: the list says what the model makes
    tokenizer: str = "Other"
    instruct_type: str | None = None
    hugging_face_id: str | None = None


@dataclass(frozen=True, slots=True)
class UpstreamList:
    """What was read, and how many rows could not be."""

    models: tuple[UpstreamModel, ...]
    num_skipped: int = 0


def parse_models(answer: Any) -> UpstreamList:
    """Read {"data": [...]}, {"models": [...]} or a bare list; raises ValueError on anything else."""
    rows = answer
    if isinstance(answer, Mapping):
        rows = answer.get("data", answer.get("models"))
    if not isinstance(rows, list):
        raise ValueError("the answer to /models holds no list of models")
    found: dict[str, UpstreamModel] = {}
    for row in rows[:MAX_MODELS]:
        if (model := _model(row)) is not None:
            found.setdefault(model.id, model)
    return UpstreamList(tuple(found.values()), len(rows) - len(found))


def _model(row: Any) -> UpstreamModel | None:
    model_id = _get(row, "id", str) or _get(row, "name", str)
    if model_id is None or not _NAME.fullmatch(model_id) or not model_id.isprintable():
        return None
    architecture = _get(row, "architecture", Mapping) or {}
    inputs = _texts(architecture.get("input_modalities")) or ("text",)
    outputs = _texts(architecture.get("output_modalities"))
    return UpstreamModel(
        id=model_id,
        name=_text(row, "name") or _text(row, "display_name") or model_id,
        created=_count(row.get("created")) or 0,
        description=_text(row, "description", MAX_TEXT) or "",
        known=_known(row, frozenset(inputs)),
        input_modalities=inputs,
        output_modalities=outputs or ("text",),
        declares_output=bool(outputs),
        tokenizer=_text(architecture, "tokenizer") or "Other",
        instruct_type=_text(architecture, "instruct_type"),
        hugging_face_id=_text(row, "hugging_face_id"),
    )


def _known(row: Mapping[str, Any], inputs: frozenset[str]) -> KnownModel:
    top = _get(row, "top_provider", Mapping) or {}
    # vLLM says max_model_len, Together and OpenRouter context_length.
    context = _count(row.get("context_length")) or _count(row.get("max_model_len"))
    return KnownModel(
        price=_price(_get(row, "pricing", Mapping)),
        context_length=context or _count(top.get("context_length")),
        max_completion_tokens=_count(top.get("max_completion_tokens")),
        supported_parameters=frozenset(_texts(row.get("supported_parameters"))),
        input_modalities=inputs,
    )


def _price(pricing: Mapping[str, Any] | None) -> Price | None:
    """OpenRouter writes USD per token, as text, under prompt; Together USD per million under input."""
    if pricing is None:
        return None
    if (prompt := _usd(pricing.get("prompt"))) is not None:
        completion = _usd(pricing.get("completion"))
        price = Price(
            prompt=prompt,
            completion=prompt if completion is None else completion,
            request=_usd(pricing.get("request")) or 0.0,
        ).changed(_token_prices(pricing))
        return with_long(price, _overrides(pricing.get("overrides")))
    if (prompt := _usd(pricing.get("input"))) is not None:
        completion = _usd(pricing.get("output"))
        return Price(per_token(prompt), per_token(prompt if completion is None else completion))
    return None


def _overrides(listed: Any) -> Iterator[tuple[int, Mapping[str, float | None]]]:
    """Prices of long prompts; those of some hours of the day are not read."""
    for entry in listed[:MAX_OVERRIDES] if isinstance(listed, list) else ():
        above = _count(_get(entry, "min_prompt_tokens", int))
        if above is not None and not any(name.startswith("utc_") for name in entry):
            yield above, _token_prices(entry)


def _token_prices(listed: Mapping[str, Any]) -> Mapping[str, float | None]:
    """By our names. A part of a prompt or completion that is listed as 0 has no price of its own."""
    prices = {field: _usd(listed.get(name)) for field, name in _LISTED.items()}
    return {field: usd for field, usd in prices.items() if usd or field not in _PARTS}


def _get(row: Any, key: str, kind: type[Any]) -> Any:
    value = row.get(key) if isinstance(row, Mapping) else None
    return value if isinstance(value, kind) else None


def _text(row: Any, key: str, max_chars: int = MAX_WORD) -> str | None:
    """Words for people: cut, and without what terminals obey or JSON cannot hold."""
    text: str = (_get(row, key, str) or "")[:max_chars]
    return (text if text.isprintable() else _UNPRINTABLE.sub(" ", text)).strip() or None


def _texts(value: Any) -> tuple[str, ...]:
    """The words of a list; what is long or unprintable is none."""
    words = value[:MAX_WORDS] if isinstance(value, list) else ()
    return tuple(word for word in words if isinstance(word, str) and _is_word(word))


def _is_word(text: str) -> bool:
    return 0 < len(text) <= MAX_WORD and text.isprintable()


def _count(value: Any) -> int | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and 0 < value <= MAX_COUNT else None


def _usd(value: Any) -> float | None:
    """A price, or None: OpenRouter's -1 means that the price varies."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and number >= 0 else None
