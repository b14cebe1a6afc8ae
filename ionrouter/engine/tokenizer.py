"""Text to ids and back for one model, from its GGUF metadata or its Hugging Face folder.

Special tokens come only from where the caller says they may (the template, never the user): what a user
types stays text. Knows no templates, requests or engines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from ionrouter.engine import byte_bpe, named_tokens, sentencepiece, tokenizer_json
from ionrouter.engine.model_folder import read_file, typed
from ionrouter.engine.named_tokens import NamedToken
from ionrouter.engine.special_tokens import SpecialNames, SpecialToken
from ionrouter.engine.tool_format import READABLE_TOKENS
from ionrouter.errors import ConfigError

# tokenizer.ggml.token_type, as llama.cpp numbers them
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5  # 6: the piece of one byte

_CONFIG = "tokenizer_config.json"

# Control tokens that end an answer whatever they are declared as: many GGUF files name only one of them.
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>")


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
    named_bos: NamedToken
    named_ends: tuple[NamedToken, ...]  # not those known by their names alone; see `usable`
    _fast: FastTokenizer = field(repr=False)  # knows no special tokens
    _texts: tuple[str, ...] = field(repr=False)  # vocabulary text of each id, "" for holes
    _raw_ids: frozenset[int] = field(repr=False)  # ids whose text is what it says, spelled in no alphabet
    _spelled: Callable[[str], bytes] = field(repr=False, default=byte_bpe.bytes_of)
    # Never adds a space at the start, as `_fast` may; None where that adds none either.
    _bare: FastTokenizer | None = field(repr=False, default=None)
    _prefixes_start_only: bool = False  # text behind a special token gets no space of its own
    drops_space: bool = False  # one space at the start of a decoded text is not part of it

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        """Turn a prompt without a template into ids; special tokens' names stay text."""
        return self._with_bos(self._plain(text), add_bos)

    def encode_continuation(self, text: str) -> list[int]:
        """Turn text that follows other text into ids: no space is put before it."""
        return self._plain(text, follows=True)

    def encode_template(self, text: str, mark: str = "", *, add_bos: bool = False) -> list[int]:
        """Turn a rendered template into ids: special tokens' names become them, unless `mark` cuts them.

        The mark itself is dropped. BOS is never doubled.
        """
        ids: list[int] = []
        at = 0
        for start, end, special in self._names.find(text):
            ids += self._stretch(text, at, start, mark)
            ids.append(special.id)
            at = end
        return self._with_bos(ids + self._stretch(text, at, len(text), mark), add_bos)

    def _stretch(self, text: str, start: int, end: int, mark: str) -> list[int]:
        """Ids of what lies between two special tokens."""
        plain = text[start:end].replace(mark, "") if mark else text[start:end]
        return self._plain(plain, follows=self._prefixes_start_only and start > 0)

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

    def text_of(self, ids: Iterable[int]) -> str:
        """Decode a whole text, special tokens by their names."""
        raw = b"".join(map(self.bytes_of, ids))
        return (raw[1:] if self.drops_space and raw[:1] == b" " else raw).decode("utf-8", "replace")

    def text_of_special(self, token_id: int | None) -> str:
        """Name of BOS or EOS as templates write it; empty without one."""
        if token_id is None or not 0 <= token_id < self.num_tokens:
            return ""
        return self._texts[token_id]

    def added_texts(self, first_id: int) -> set[str]:
        """Texts of the tokens from this id on that are cut out of any text before it is merged."""
        added = self._fast.get_added_tokens_decoder()
        return {token.content for i, token in added.items() if i >= first_id}

    @property
    def added_ids(self) -> frozenset[int]:
        """Ids of the tokens that are cut out of any text before it is merged."""
        return frozenset(self._fast.get_added_tokens_decoder())

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

    def _plain(self, text: str, *, follows: bool = False) -> list[int]:
        if not text:
            return []
        encoder = self._bare if follows and self._bare is not None else self._fast
        ids: list[int] = encoder.encode(text, add_special_tokens=False).ids
        return ids

    @cached_property
    def _names(self) -> SpecialNames:
        return SpecialNames(self.specials)

    def _bytes(self, token_id: int) -> bytes:
        text = self._texts[token_id]
        return text.encode("utf-8", "surrogateescape") if token_id in self._raw_ids else self._spelled(text)


def from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build from a GGUF file's own metadata; raises ConfigError naming the key that is missing or unknown."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise ConfigError(
            f"tokenizer.ggml.model: only byte-level BPE ('gpt2') and SentencePiece ('llama'), not {kind!r}"
        )
    texts = _required(metadata, "tokenizer.ggml.tokens")
    types = _per_token(metadata, "tokenizer.ggml.token_type", texts, (int,)) or [_NORMAL] * len(texts)
    # Control tokens stay out of the vocabulary that text is merged into: no text can produce them.
    hidden = {i for i, kind in enumerate(types) if kind in (_CONTROL, _UNKNOWN, _UNUSED)}
    raw = {i for i, kind in enumerate(types) if kind == _USER_DEFINED}
    read = _gguf_pieces if kind == "llama" else _gguf_byte_level
    # Converters fill up to the model's vocabulary with unused tokens: holes, whose names mean nothing.
    unused = {i for i in hidden if types[i] == _UNUSED}
    specials = tuple(SpecialToken(i, texts[i]) for i in sorted(hidden - unused) if texts[i])
    bos, *ends = [_gguf_id(metadata, kind, name) for name in ("bos", "eos", "eot", "eom")]
    known = [special.id for special in specials if special.text in _ENDS]
    return Tokenizer(
        num_tokens=len(texts),
        specials=specials,
        bos_id=bos.id,
        eos_id=ends[0].id,
        adds_bos=_gguf_adds_bos(metadata),
        stop_ids=_ids([*(end.id for end in ends), *known]),
        chat_template=typed(metadata, "tokenizer.chat_template", str, "text"),
        named_bos=bos,
        named_ends=tuple(ends),
        _texts=tuple("" if i in unused else text for i, text in enumerate(texts)),
        _raw_ids=frozenset(raw | hidden),
        **read(metadata, texts, types, hidden),
    )


def _gguf_id(metadata: Mapping[str, Any], kind: str, name: str) -> NamedToken:
    key = f"tokenizer.ggml.{name}_token_id"
    found = named_tokens.by_id(metadata.get(key), key)
    if found.id is None and kind == "llama":  # what its files mean by leaving them out
        return NamedToken(key, {"bos": 1, "eos": 2}.get(name))
    return found


def _gguf_byte_level(
    metadata: Mapping[str, Any], texts: Sequence[str], types: Sequence[int], hidden: set[int]
) -> dict[str, Any]:
    fast = byte_bpe.build(
        str(metadata.get("tokenizer.ggml.pre") or "default"),
        {text: i for i, text in enumerate(texts) if i not in hidden},
        _required(metadata, "tokenizer.ggml.merges"),
        [text for text, kind in zip(texts, types, strict=True) if kind == _USER_DEFINED],
    )
    return {"_fast": fast}


def _gguf_pieces(
    metadata: Mapping[str, Any], texts: Sequence[str], types: Sequence[int], hidden: set[int]
) -> dict[str, Any]:
    scores = _per_token(metadata, "tokenizer.ggml.scores", texts, (int, float))
    if scores is None:
        raise ConfigError("tokenizer.ggml.scores: missing from the file")
    declared = typed(metadata, "tokenizer.ggml.add_space_prefix", bool, "true or false")
    adds_space = True if declared is None else bool(declared)
    encoders = sentencepiece.build(
        {text: i for i, text in enumerate(texts) if i not in hidden},
        {text: score for text, kind, score in zip(texts, types, scores, strict=True) if kind == _NORMAL},
        [text for text, kind in zip(texts, types, strict=True) if kind == _USER_DEFINED],
        adds_space=adds_space,
    )
    return {
        "_fast": encoders.prefixed,
        "_bare": encoders.bare,
        "_spelled": sentencepiece.bytes_of,
        "drops_space": adds_space,
    }


def _gguf_adds_bos(metadata: Mapping[str, Any]) -> bool:
    declared = typed(metadata, "tokenizer.ggml.add_bos_token", bool, "true or false")
    if declared is not None:
        return bool(declared)
    # Files that do not say so leave it to the kind: SentencePiece, Llama 3 and Mistral's begin with one.
    pre = metadata.get("tokenizer.ggml.pre")
    return metadata.get("tokenizer.ggml.model") == "llama" or pre in byte_bpe.BEGIN_WITH_BOS


def from_folder(folder: Path) -> Tokenizer:
    """Build from a Hugging Face folder: tokenizer.json and the small files beside it."""
    config = named_tokens.read_config(folder)
    data = named_tokens.with_added(read_file(folder / "tokenizer.json", required=True), config, folder)
    added = {int(token["id"]): token for token in data.get("added_tokens", ())}
    read = tokenizer_json.read(data, "tokenizer.json")
    specials = tuple(
        SpecialToken(i, token["content"], bool(token.get("lstrip")), bool(token.get("rstrip")))
        for i, token in sorted(added.items())
        if token.get("special")
    )
    bos = named_tokens.by_text("bos_token", config, read.texts)
    eos = named_tokens.by_text("eos_token", config, read.texts)
    ends = (eos, *named_tokens.generation_ends(folder))
    return Tokenizer(
        num_tokens=len(read.texts),
        specials=specials,
        bos_id=bos.id,
        eos_id=eos.id,
        adds_bos=_adds_bos(data, config, bos, read.texts),
        stop_ids=_ids(end.id for end in ends),
        chat_template=tokenizer_json.chat_template(folder, config),
        named_bos=bos,
        named_ends=ends,
        _fast=read.encoders.prefixed,
        _texts=read.texts,
        _raw_ids=frozenset(added),
        _spelled=read.bytes_of,
        _bare=read.encoders.bare,
        _prefixes_start_only=read.prefixes_start_only,
        drops_space=read.drops_space,
    )


def _required(metadata: Mapping[str, Any], key: str) -> Sequence[str]:
    value = metadata.get(key)
    if not value:
        raise ConfigError(f"{key}: missing from the file")
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ConfigError(f"{key}: not a list of texts")
    return list(value)


def _per_token(
    metadata: Mapping[str, Any], key: str, texts: Sequence[str], kinds: tuple[type, ...]
) -> Sequence[Any] | None:
    values = metadata.get(key)
    if values is not None and not (isinstance(values, list) and all(isinstance(v, kinds) for v in values)):
        raise ConfigError(f"{key}: not a list of numbers")
    if values and len(values) != len(texts):
        raise ConfigError(f"{key}: {len(values)} entries for {len(texts)} tokens")
    return list(values) if values else None


def _ids(values: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(value for value in values if value is not None))


def usable(tokenizer: Tokenizer, vocab_size: int) -> tuple[Tokenizer, list[str]]:
    """Leave out tokens that the files name and the vocabulary does not have; return what and why, too.

    Raises ConfigError where nothing else ends answers, prompts should begin with such a token, or ordinary
    text may hold one.
    """
    bos = tokenizer.named_bos.within(vocab_size)
    ends = [end.within(vocab_size) for end in tokenizer.named_ends]
    stop_ids = tuple(stop for stop in tokenizer.stop_ids if stop < vocab_size)
    lost = [f"{token.key}: {token.fault}" for token in (bos, *ends) if token.fault]
    if bos.fault and tokenizer.adds_bos:
        raise ConfigError(f"{lost[0]}, and prompts are to begin with it")
    if not stop_ids and any(end.fault for end in ends):
        raise ConfigError(f"{lost[-1]}, and nothing else ends answers")
    _require_rows(tokenizer, vocab_size)
    tokenizer, absent = _without_absent(tokenizer, vocab_size)
    if absent:
        lost.append(f"tokens {', '.join(map(repr, absent))}: outside the vocabulary of {vocab_size}")
    if not lost:
        return tokenizer, []
    return replace(tokenizer, bos_id=bos.id, eos_id=ends[0].id, stop_ids=stop_ids), lost


def _require_rows(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Refuse a vocabulary whose text the model cannot read: prompts would fail by what they say."""
    named = tokenizer.special_ids | tokenizer.added_ids
    beyond = range(vocab_size, tokenizer.num_tokens)
    if lost := [i for i in beyond if tokenizer._texts[i] and i not in named]:
        first = f"the first is {lost[0]}, {tokenizer._texts[lost[0]]!r}"
        raise ConfigError(
            f"the tokenizer has {len(lost)} tokens beyond the model's vocabulary of {vocab_size}; {first}"
        )


def _without_absent(tokenizer: Tokenizer, vocab_size: int) -> tuple[Tokenizer, list[str]]:
    """Let names of added tokens that the vocabulary does not have (a pad token, mostly) be text.

    Not those that the chat template writes: a prompt without them would not be what the model knows.
    """
    template = tokenizer.chat_template or ""
    absent = {token.text for token in tokenizer.specials if token.id >= vocab_size}
    added = tokenizer.added_texts(vocab_size)
    names = sorted(name for name in absent | added if name not in template)
    if not names:
        return tokenizer, []
    fast = _without(tokenizer._fast, names)
    bare = _without(tokenizer._bare, names) if tokenizer._bare is not None else None
    specials = tuple(token for token in tokenizer.specials if token.text not in names)
    return replace(tokenizer, specials=specials, _fast=fast, _bare=bare), names


def _without(encoder: FastTokenizer, names: Sequence[str]) -> FastTokenizer:
    data = json.loads(encoder.to_str())
    kept = [token for token in data["added_tokens"] if token["content"] not in names]
    return FastTokenizer.from_str(json.dumps(data | {"added_tokens": kept}))


def _adds_bos(
    data: Mapping[str, Any], config: Mapping[str, Any], bos: NamedToken, texts: Sequence[str]
) -> bool:
    """Say whether plain prompts get BOS: by the config, else by what the post-processor would add."""
    declared = typed(config, "add_bos_token", bool, "true or false", _CONFIG)
    if bos.id is None:
        return bool(declared and bos.fault)
    if declared is not None:
        return bool(declared)
    return texts[bos.id] in json.dumps(data.get("post_processor"), ensure_ascii=False)
