"""Tokens that a model's small files name for the beginning and ends of texts, or add to tokenizer.json.

Published files name tokens that the vocabulary does not have: such a name is told and ignored, as far as
prompts and answers stay right without it. Knows files' keys and ids; encodes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from ionrouter.engine.model_folder import read_file
from ionrouter.errors import ConfigError

MAX_IDS = 1 << 24  # as of a model's vocabulary: every id below the largest gets a place

_NO_ID = (1 << 32) - 1  # llama.cpp's -1, written as it writes ids
_CONFIG = "tokenizer_config.json"
_SPECIALS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class NamedToken:
    """What one key names; `id` is None where the key says none, or, with a `fault`, what is not there."""

    key: str  # with its file: "tokenizer_config.json: eos_token"
    id: int | None = None
    fault: str = ""

    def within(self, vocab_size: int) -> NamedToken:
        """Itself, or without the id if the model's vocabulary does not have it."""
        if self.id is None or self.id < vocab_size:
            return self
        return NamedToken(self.key, None, f"{self.id} is outside the vocabulary of {vocab_size}")


def by_id(value: Any, key: str) -> NamedToken:
    """Read an id: null and -1 are none; raises ConfigError for what cannot be one."""
    if value is None or value == -1 or value == _NO_ID:
        return NamedToken(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_IDS:
        raise ConfigError(f"{key}: {value!r} is no token id")
    return NamedToken(key, value)


def by_text(name: str, config: Mapping[str, Any], texts: Sequence[str]) -> NamedToken:
    """tokenizer_config.json writes a token as a string or as an object with `content`; else ConfigError."""
    key = f"{_CONFIG}: {name}"
    text = _text(config, name)
    if not text:
        return NamedToken(key)
    if text not in texts:
        return NamedToken(key, None, f"tokenizer.json has no token {text!r}")
    return NamedToken(key, texts.index(text))


def generation_ends(folder: Path) -> list[NamedToken]:
    """What generation_config.json ends answers by; where there is no such file, config.json says it."""
    name = "generation_config.json"
    if (folder / name).exists():
        values = read_file(folder / name)
    else:
        name, values = "config.json", {}
        with suppress(ConfigError):  # who reads the sizes says what is wrong with the file
            values = read_file(folder / name)
    value = values.get("eos_token_id")
    return [by_id(each, f"{name}: eos_token_id") for each in (value if isinstance(value, list) else [value])]


def read_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json; special_tokens_map.json counts beside one that lists no added tokens itself."""
    config = read_file(folder / _CONFIG)
    if config.get("added_tokens_decoder") is not None:
        return config
    named = read_file(folder / "special_tokens_map.json")
    return config | {key: named[key] for key in _SPECIALS if named.get(key) is not None}


def with_added(data: dict[str, Any], config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return tokenizer.json with what tokenizer_config.json, or added_tokens.json, adds to it."""
    known = list(data.get("added_tokens") or ())
    vocabulary = (data.get("model") or {}).get("vocab") or {}
    if not isinstance(vocabulary, Mapping):
        vocabulary = {piece[0]: i for i, piece in enumerate(vocabulary)}
    texts = {token["content"] for token in known}
    # Numbered as Hugging Face does, whatever the files say: those that the vocabulary lacks come behind all.
    behind = count(max([len(vocabulary) - 1, *(int(token["id"]) for token in known)]) + 1)
    for token in _added(config, folder):
        if token["content"] not in texts:
            number = vocabulary.get(token["content"])
            known.append({**token, "id": next(behind) if number is None else number})
    return {**data, "added_tokens": known}


def _added(config: Mapping[str, Any], folder: Path) -> Iterable[dict[str, Any]]:
    listed = config.get("added_tokens_decoder")
    if listed is None:
        specials = {_text(config, name) for name in _SPECIALS}
        listed = {
            each: {"content": text, "special": text in specials, "normalized": False}
            for text, each in read_file(folder / "added_tokens.json").items()
        }
    if not isinstance(listed, Mapping) or not all(_is_token(*item) for item in listed.items()):
        raise ConfigError(f"{_CONFIG}: added_tokens_decoder: not an object of ids and tokens with `content`")
    flags = ("special", "single_word", "lstrip", "rstrip", "normalized")
    for _, token in sorted(listed.items(), key=lambda item: int(item[0])):
        yield {"content": token["content"]} | {flag: bool(token.get(flag)) for flag in flags}


def _is_token(number: Any, token: Any) -> bool:
    is_id = isinstance(number, int) or (isinstance(number, str) and number.isascii() and number.isdigit())
    return is_id and isinstance(token, Mapping) and isinstance(token.get("content"), str)


def _text(config: Mapping[str, Any], name: str) -> str:
    token = config.get(name)
    text = token.get("content") if isinstance(token, dict) else token
    if token is None:
        return ""
    if not isinstance(text, str):
        raise ConfigError(f"{_CONFIG}: {name}: neither text nor an object with `content`")
    return text
