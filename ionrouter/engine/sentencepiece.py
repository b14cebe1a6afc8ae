"""SentencePiece vocabularies of GGUF files: pieces with scores, bytes for what none spells, `▁` for space.

Merging is BPE whose order the scores give (Kudo and Richardson 2018, arXiv:1808.06226); ids come from the
`tokenizers` library. Knows no special tokens beyond keeping their text out of reach.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, models, normalizers

from ionrouter.errors import ConfigError

SPACE = "▁"  # U+2581, not an underscore
BYTE_PIECES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True, slots=True)
class Encoders:
    """The same vocabulary twice: `prefixed` begins a text with a space that nobody wrote, `bare` does not."""

    prefixed: Tokenizer
    bare: Tokenizer


def bytes_of(piece: str) -> bytes:
    """Turn a piece into the bytes it stands for."""
    match = _BYTE_PIECE.fullmatch(piece)
    return (
        bytes([int(match[1], 16)]) if match else piece.replace(SPACE, " ").encode("utf-8", "surrogateescape")
    )


def require_bytes(pieces: Collection[str], where: str) -> None:
    """Raise ConfigError unless every byte has a piece: without, some text could not be written."""
    missing = [piece for piece in BYTE_PIECES if piece not in pieces]
    if missing:
        raise ConfigError(
            f"{where}: has no {missing[0]}; a vocabulary without a piece for every byte loses text"
        )


def build(
    vocabulary: Mapping[str, int],
    scores: Mapping[str, float],
    user_defined: Sequence[str],
    *,
    adds_space: bool,
) -> Encoders:
    """Build from GGUF data: ids of all pieces, scores of those that merging makes.

    Raises ConfigError if a byte has no piece.
    """
    require_bytes(vocabulary, "tokenizer.ggml.tokens")
    model = models.BPE(vocab=dict(vocabulary), merges=merges_of(scores, vocabulary), byte_fallback=True)
    escape = normalizers.Replace(" ", SPACE)
    prefix = normalizers.Sequence([normalizers.Prepend(SPACE), escape])
    return Encoders(
        _tokenizer(model, prefix if adds_space else escape, user_defined),
        _tokenizer(model, escape, user_defined),
    )


def _tokenizer(
    model: models.Model, normalizer: normalizers.Normalizer, user_defined: Sequence[str]
) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizer
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in user_defined])
    return tokenizer


def merges_of(scores: Mapping[str, float], vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """List the pairs that join to a piece, best first: by the piece's score, its id, then the halves' ids.

    Equal scores are not rare: Mistral gives all runs of spaces one, and some converters all pieces.
    """
    found: list[tuple[float, int, int, int, str, str]] = []
    for piece, score in scores.items():
        for cut in range(1, len(piece)):
            left = piece[:cut]
            if left in scores and (right := piece[cut:]) in scores:
                found.append((-score, vocabulary[piece], vocabulary[left], vocabulary[right], left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]
