"""Text to ids and back for one model, from its GGUF metadata or its Hugging Face folder.

Special tokens come only from where the caller says they may (the template, never the user): what a user
types stays text. Knows no templates, requests or engines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from ionrouter.engine import byte_bpe
from ionrouter.engine.tool_format import READABLE_TOKENS
from ionrouter.errors import ConfigError

# tokenizer.ggml.token_type, as llama.cpp numbers them
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5

# Control tokens that end an answer whatever they are declared as: many GGUF files name only one of them.
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>")


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A control token; `lstrip`/`rstrip`: it swallows the white space beside it in template text."""

    id: int
    text: str
    lstrip: bool = False
    rstrip: bool = False


@dataclass(frozen=True)
class Tokenizer:
    """What a model reads and writes. Immutable; encoding is thread-safe and runs without the GIL."""

    num_tokens: int
    specials: tuple[SpecialToken, ...]
    bos_id: int | None
    eos_id: int | None
    adds_bos: bool  # plain prompts start with BOS
    stop_ids: tuple[int, ...]  # EOS, end of turn, what generation_config.json lists
    chat_template: str | None
    _fast: FastTokenizer = field(repr=False)  # knows no special tokens
    _texts: tuple[str, ...] = field(repr=False)  # vocabulary text of each id, "" for holes
    _raw_ids: frozenset[int] = field(repr=False)  # ids whose text is not in the byte alphabet

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        """Turn a prompt without a template into ids; special tokens' names stay text."""
        return self._with_bos(self._plain(text), add_bos)

    def encode_template(self, text: str, mark: str = "", *, add_bos: bool = False) -> list[int]:
        """Turn a rendered template into ids: special tokens' names become them, unless `mark` cuts them.

        The mark itself is dropped. BOS is never doubled.
        """
        ids: list[int] = []
        at = 0
        for match in self._special_pattern.finditer(text):
            ids += self._plain(_unmarked(text[at : match.start()], mark))
            ids.append(self._longest_first[(match.lastindex or 1) - 1].id)
            at = match.end()
        return self._with_bos(ids + self._plain(_unmarked(text[at:], mark)), add_bos)

    def _with_bos(self, ids: list[int], add_bos: bool) -> list[int]:
        if add_bos and self.adds_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def token_bytes(self, size: int | None = None) -> list[bytes]:
        """Raw bytes of every id, empty for hidden ones; padded to `size`, the model's vocabulary."""
        table = [b"" if i in self.hidden_ids else self._bytes(i) for i in range(self.num_tokens)]
        return table + [b""] * ((size or 0) - len(table))

    def bytes_of(self, token_id: int) -> bytes:
        """Bytes of one id for people: a special token shows its name."""
        return self._bytes(token_id) if 0 <= token_id < self.num_tokens else b""

    def text_of_special(self, token_id: int | None) -> str:
        """Name of BOS or EOS as templates write it; empty without one."""
        if token_id is None or not 0 <= token_id < self.num_tokens:
            return ""
        return self._texts[token_id]

    @cached_property
    def special_ids(self) -> frozenset[int]:
        return frozenset(special.id for special in self.specials)

    @cached_property
    def hidden_ids(self) -> frozenset[int]:
        """Special tokens that are no part of an answer's text: all but those that mark thoughts and calls."""
        return frozenset(special.id for special in self.specials if special.text not in READABLE_TOKENS)

    @property
    def special_texts(self) -> tuple[str, ...]:
        return tuple(special.text for special in self.specials)

    def _plain(self, text: str) -> list[int]:
        if not text:
            return []
        ids: list[int] = self._fast.encode(text, add_special_tokens=False).ids
        return ids

    @cached_property
    def _longest_first(self) -> list[SpecialToken]:
        # So that no name hides a longer one that begins with it.
        return sorted(self.specials, key=lambda special: -len(special.text))

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        """One group for each of `_longest_first`."""
        parts = [
            (r"\s*" if special.lstrip else "")
            + f"({re.escape(special.text)})"
            + (r"\s*" if special.rstrip else "")
            for special in self._longest_first
        ]
        return re.compile("|".join(parts) or r"(?!)")

    def _bytes(self, token_id: int) -> bytes:
        text = self._texts[token_id]
        return (
            text.encode("utf-8", "surrogateescape") if token_id in self._raw_ids else byte_bpe.bytes_of(text)
        )


def _unmarked(text: str, mark: str) -> str:
    return text.replace(mark, "") if mark else text


def from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build from a GGUF file's own metadata; raises ConfigError naming the key that is missing or unknown."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ConfigError(f"tokenizer.ggml.model: only byte-level BPE ('gpt2') is supported, not {kind!r}")
    texts = _required(metadata, "tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(texts)
    if len(types) != len(texts):
        raise ConfigError(f"tokenizer.ggml.token_type: {len(types)} entries for {len(texts)} tokens")
    # Control tokens stay out of the vocabulary that text is merged into: no text can produce them.
    hidden = {i for i, kind in enumerate(types) if kind in (_CONTROL, _UNKNOWN, _UNUSED)}
    raw = {i for i, kind in enumerate(types) if kind == _USER_DEFINED}
    vocabulary = {text: i for i, text in enumerate(texts) if i not in hidden}
    fast = byte_bpe.build(
        str(metadata.get("tokenizer.ggml.pre") or "default"),
        vocabulary,
        _required(metadata, "tokenizer.ggml.merges"),
        [texts[i] for i in sorted(raw)],
    )
    specials = tuple(SpecialToken(i, texts[i]) for i in sorted(hidden) if texts[i])
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    declared = [metadata.get(f"tokenizer.ggml.{key}") for key in keys]
    named = [special.id for special in specials if special.text in _ENDS]
    return Tokenizer(
        num_tokens=len(texts),
        specials=specials,
        bos_id=_id(metadata.get("tokenizer.ggml.bos_token_id")),
        eos_id=_id(metadata.get("tokenizer.ggml.eos_token_id")),
        adds_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        stop_ids=_ids(declared + named),
        chat_template=metadata.get("tokenizer.chat_template"),
        _fast=fast,
        _texts=tuple(texts),
        _raw_ids=frozenset(raw | hidden),
    )


def from_folder(folder: Path) -> Tokenizer:
    """Build from a Hugging Face folder: tokenizer.json and the small files beside it."""
    data = _read_json(folder / "tokenizer.json", required=True)
    config = _read_json(folder / "tokenizer_config.json")
    added = {int(token["id"]): token for token in data.get("added_tokens", ())}
    _require_byte_level(data, folder)
    specials = tuple(
        SpecialToken(i, token["content"], bool(token.get("lstrip")), bool(token.get("rstrip")))
        for i, token in sorted(added.items())
        if token.get("special")
    )
    texts = _texts_by_id(data["model"]["vocab"], added)
    eos_id = _id_of(config.get("eos_token"), texts)
    bos_id = _id_of(config.get("bos_token"), texts)
    return Tokenizer(
        num_tokens=len(texts),
        specials=specials,
        bos_id=bos_id,
        eos_id=eos_id,
        adds_bos=_adds_bos(data, config, bos_id),
        stop_ids=_ids([eos_id, *_generation_eos(folder)]),
        chat_template=_folder_template(folder, config),
        _fast=_without_specials(data),
        _texts=texts,
        _raw_ids=frozenset(added),
    )


def _required(metadata: Mapping[str, Any], key: str) -> Sequence[str]:
    value = metadata.get(key)
    if not value:
        raise ConfigError(f"{key}: missing from the file")
    return list(value)


def _id(value: Any) -> int | None:
    return None if value is None else int(value)


def _ids(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(int(value) for value in values if value is not None))


def _read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if required:
            raise ConfigError(f"{path}: missing; the folder needs a fast tokenizer") from None
        return {}
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected an object")
    return value


def _require_byte_level(data: Mapping[str, Any], folder: Path) -> None:
    kind = data.get("model", {}).get("type")
    if kind not in ("BPE", None) or '"ByteLevel"' not in json.dumps(data.get("pre_tokenizer")):
        raise ConfigError(f"{folder / 'tokenizer.json'}: only byte-level BPE is supported, not {kind}")


def _without_specials(data: Mapping[str, Any]) -> FastTokenizer:
    """Load the tokenizer as it is, except that special tokens are unknown to it and nothing is added."""
    ordinary = [token for token in data.get("added_tokens", ()) if not token.get("special")]
    model = dict(data["model"])
    special_texts = {token["content"] for token in data.get("added_tokens", ()) if token.get("special")}
    model["vocab"] = {text: i for text, i in model["vocab"].items() if text not in special_texts}
    # The library numbers added tokens after the vocabulary unless it finds them there.
    model["vocab"] |= {token["content"]: int(token["id"]) for token in ordinary}
    model["unk_token"] = model.get("unk_token") if model.get("unk_token") in model["vocab"] else None
    plain = {**data, "model": model, "added_tokens": ordinary, "post_processor": None}
    plain |= {"truncation": None, "padding": None, "decoder": None}
    try:
        return FastTokenizer.from_str(json.dumps(plain))
    except Exception as error:  # the library raises no narrower class
        raise ConfigError(f"tokenizer.json: {error}") from error


def _texts_by_id(vocabulary: Mapping[str, int], added: Mapping[int, Any]) -> tuple[str, ...]:
    by_id = {i: text for text, i in vocabulary.items()} | {i: token["content"] for i, token in added.items()}
    return tuple(by_id.get(i, "") for i in range(max(by_id) + 1))


def _id_of(token: Any, texts: Sequence[str]) -> int | None:
    """tokenizer_config.json writes a token as a string or as an object with `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return texts.index(text) if text in texts else None


def _adds_bos(data: Mapping[str, Any], config: Mapping[str, Any], bos_id: int | None) -> bool:
    """Say whether plain prompts get BOS: by the config, else by what the post-processor would add."""
    if bos_id is None:
        return False
    if config.get("add_bos_token") is not None:
        return bool(config["add_bos_token"])
    return str(config.get("bos_token") or "\0") in json.dumps(data.get("post_processor"), ensure_ascii=False)


def _generation_eos(folder: Path) -> list[Any]:
    value = _read_json(folder / "generation_config.json").get("eos_token_id")
    return value if isinstance(value, list) else [value]


def _folder_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Find the template: its own file, else tokenizer_config.json (a string, or a list of named ones)."""
    own = folder / "chat_template.jinja"
    if own.exists():
        return own.read_text("utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template
