"""A Hugging Face folder: tokenizer.json as an encoder without special tokens, and how its pieces spell bytes.

Byte-level BPE (GPT-2 and after), and SentencePiece's BPE and Unigram where every byte has a piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from ionrouter.engine import byte_bpe, sentencepiece
from ionrouter.engine.named_tokens import MAX_IDS
from ionrouter.engine.regular_file import read_text
from ionrouter.errors import ConfigError
from ionrouter.schema import json


@dataclass(frozen=True, slots=True)
class JsonTokenizer:
    """What a tokenizer.json says. `encoders`: see sentencepiece.Encoders; alike where no space is added."""

    encoders: sentencepiece.Encoders
    texts: tuple[str, ...]  # vocabulary text of each id, "" for holes
    bytes_of: Callable[[str], bytes]
    prefixes_start_only: bool  # text behind a special token gets no space of its own
    drops_space: bool  # decoding drops one space at the start


def read(data: Mapping[str, Any], name: str) -> JsonTokenizer:
    """Read the parsed file; raises ConfigError with the file's name and what is not supported."""
    is_byte_level = _is_byte_level(data, name)
    added = {int(token["id"]): token for token in data.get("added_tokens", ())}
    pieces = _pieces(data["model"]) | {i: token["content"] for i, token in added.items()}
    for token in (min(pieces), max(pieces)):
        if not 0 <= token < MAX_IDS:
            raise ConfigError(f"{name}: the id of {pieces[token]!r} is {token}, outside [0, {MAX_IDS})")
    if not is_byte_level:
        sentencepiece.require_bytes(set(pieces.values()), f"{name}: model.vocab")
    fast = _without_specials(data)
    spaces = [part for part in _parts(data.get("pre_tokenizer")) if part.get("type") == "Metaspace"]
    strips = [part for part in _parts(data.get("decoder")) if _strips_space(part)]
    return JsonTokenizer(
        encoders=sentencepiece.Encoders(fast, fast if is_byte_level else _bare(data, fast)),
        texts=tuple(pieces.get(i, "") for i in range(max(pieces) + 1)),
        bytes_of=byte_bpe.bytes_of if is_byte_level else sentencepiece.bytes_of,
        prefixes_start_only=any(part.get("prepend_scheme") == "first" for part in spaces),
        drops_space=not is_byte_level and bool(strips),
    )


def _is_byte_level(data: Mapping[str, Any], name: str) -> bool:
    model = data.get("model") or {}
    kind = model.get("type")
    if kind in ("BPE", None) and any(p.get("type") == "ByteLevel" for p in _parts(data.get("pre_tokenizer"))):
        return True
    if kind in ("BPE", "Unigram") and model.get("byte_fallback"):
        return False
    raise ConfigError(
        f"{name}: only byte-level BPE, and BPE or Unigram with byte_fallback, are supported, not {kind}"
    )


def _parts(value: Any) -> Iterator[Mapping[str, Any]]:
    """Walk a normalizer, pre-tokenizer or decoder and, if it is a sequence, what it is made of."""
    if isinstance(value, Mapping):
        yield value
        for key in ("normalizers", "pretokenizers", "decoders"):
            for part in value.get(key) or ():
                yield from _parts(part)


def _strips_space(part: Mapping[str, Any]) -> bool:
    if part.get("type") == "Metaspace":
        return _adds_space(part)
    return part.get("type") == "Strip" and part.get("content") == " " and bool(part.get("start"))


def _adds_space(metaspace: Mapping[str, Any]) -> bool:
    scheme = metaspace.get("prepend_scheme") or (
        "always" if metaspace.get("add_prefix_space", True) else "never"
    )
    return bool(scheme != "never")


def _pieces(model: Mapping[str, Any]) -> dict[int, str]:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, Mapping):
        return {i: text for text, i in vocabulary.items()}
    return {i: text for i, (text, _) in enumerate(vocabulary)}


def _without_specials(data: Mapping[str, Any]) -> FastTokenizer:
    """Load the tokenizer as it is, except that special tokens are unknown to it and nothing is added."""
    ordinary = _ordinary(data)
    special = {token["content"] for token in data.get("added_tokens", ()) if token.get("special")}
    hide = _hide_unigram if data["model"].get("type") == "Unigram" else _hide_bpe
    plain = {**data, "model": hide(data["model"], ordinary, special), "added_tokens": ordinary}
    return _load(plain)


def _ordinary(data: Mapping[str, Any]) -> list[Any]:
    """Added tokens that text may hold."""
    return [token for token in data.get("added_tokens", ()) if not token.get("special")]


def _load(data: Mapping[str, Any]) -> FastTokenizer:
    plain = {**data, "post_processor": None, "truncation": None, "padding": None, "decoder": None}
    try:
        return FastTokenizer.from_buffer(json.dumps(plain))
    except Exception as error:  # the library raises no narrower class
        raise ConfigError(f"tokenizer.json: {error}") from error


def _hide_bpe(model: Mapping[str, Any], ordinary: list[Any], special: set[str]) -> dict[str, Any]:
    vocabulary, merges = dict(model["vocab"]), model["merges"]
    hidden = special & vocabulary.keys()
    for text in hidden:
        del vocabulary[text]
    if hidden:  # merges are of what the vocabulary has: most files keep special tokens out of it
        pairs = [tuple(merge.split(" ", 1)) if isinstance(merge, str) else merge for merge in merges]
        merges = [list(pair) for pair in pairs if hidden.isdisjoint((*pair, "".join(pair)))]
    # The library numbers added tokens after the vocabulary unless it finds them there.
    vocabulary |= {token["content"]: int(token["id"]) for token in ordinary}
    unknown = model.get("unk_token")
    return {
        **model,
        "vocab": vocabulary,
        "merges": merges,
        "unk_token": unknown if unknown in vocabulary else None,
    }


def _hide_unigram(model: Mapping[str, Any], ordinary: list[Any], special: set[str]) -> dict[str, Any]:
    """Ids are places in the list: a special token's place stays, with a text that no input holds."""
    pieces = [["" if text in special else text, score] for text, score in model["vocab"]]
    for token in ordinary:
        pieces += [["", 0.0] for _ in range(int(token["id"]) + 1 - len(pieces))]
        pieces[int(token["id"])][0] = token["content"]
    return {**model, "vocab": pieces}


def _bare(data: Mapping[str, Any], fast: FastTokenizer) -> FastTokenizer:
    """Share the vocabulary of `fast`, and add no space at the start."""
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    plain = {**data, "model": empty, "added_tokens": [], "normalizer": _unprefixed(data.get("normalizer"))}
    bare = _load(plain | {"pre_tokenizer": _unprefixed(data.get("pre_tokenizer"))})
    bare.model = fast.model
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    bare.add_tokens(
        [
            AddedToken(token["content"], **{k: token[k] for k in flags if k in token})
            for token in _ordinary(data)
        ]
    )
    return bare


def _unprefixed(value: Any) -> Any:
    if not isinstance(value, Mapping) or value.get("type") == "Prepend":
        return None
    if value.get("type") == "Metaspace":
        return {**value, "prepend_scheme": "never", "add_prefix_space": False}
    out = dict(value)
    for key in ("normalizers", "pretokenizers"):
        if key in value:
            out[key] = [part for part in map(_unprefixed, value[key]) if part is not None]
    return out


def chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Find the template: its own file, else tokenizer_config.json (a string, or a list of named ones)."""
    try:
        return read_text(folder / "chat_template.jinja")
    except FileNotFoundError:
        pass
    template = config.get("chat_template")
    if isinstance(template, list):
        template = _named(template).get("default")
    if template is None or isinstance(template, str):
        return template
    raise ConfigError("tokenizer_config.json: chat_template: neither text nor a list of named ones")


def _named(templates: list[Any]) -> dict[str, Any]:
    for entry in templates:
        if not isinstance(entry, Mapping) or not all(
            isinstance(entry.get(k), str) for k in ("name", "template")
        ):
            raise ConfigError("tokenizer_config.json: chat_template: an entry without `name` and `template`")
    return {entry["name"]: entry["template"] for entry in templates}
