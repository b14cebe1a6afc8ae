"""A tokenizer's GGUF metadata as llama.cpp's converter writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
from gguf import TokenType

from tests.support.tiny_llama import add_value


def of_tokenizer_json(text: str, pre: str, *, size: int = 0, adds_bos: bool = False) -> dict[str, Any]:
    """Return byte-level BPE (`gpt2`) of a tokenizer.json; holes, and ids up to `size`, are unused."""
    data = json.loads(text)
    added = {token["id"]: token for token in data["added_tokens"]}
    texts = {i: text for text, i in data["model"]["vocab"].items()}
    texts |= {i: token["content"] for i, token in added.items()}
    ids = range(max(size, max(texts) + 1))
    return _metadata(
        model="gpt2",
        pre=pre,
        tokens=[texts.get(i, f"[PAD{i}]") for i in ids],
        token_type=[int(_type_of(i, texts, added)) for i in ids],
        merges=[merge if isinstance(merge, str) else " ".join(merge) for merge in data["model"]["merges"]],
        add_bos_token=adds_bos,
    )


def _type_of(i: int, texts: Mapping[int, str], added: Mapping[int, Mapping[str, Any]]) -> TokenType:
    if i not in texts:
        return TokenType.UNUSED
    if i not in added:
        return TokenType.NORMAL
    looks_special = texts[i].startswith("<|") and texts[i].endswith("|>")  # whatever its own file says
    return TokenType.CONTROL if added[i]["special"] or looks_special else TokenType.USER_DEFINED


def of_pieces(pieces: list[str], scores: list[float], types: list[int]) -> dict[str, Any]:
    """Return a SentencePiece vocabulary (`llama`); its types are numbered as in the SentencePiece model."""
    return _metadata(
        model="llama",
        pre="default",
        tokens=pieces,
        scores=scores,
        token_type=types,
        bos_token_id=1,
        eos_token_id=2,
        add_bos_token=True,
    )


def _metadata(**values: Any) -> dict[str, Any]:
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def write(path: Path, metadata: Mapping[str, Any]) -> Path:
    """Write a GGUF file that holds this metadata and no tensor."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        add_value(writer, key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
