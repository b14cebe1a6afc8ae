"""Byte-level BPE written a second time, slowly and from its definition (GPT-2's encoder), to compare with.

Patterns are the ones published with the original tokenizers; merging is: join the pair of lowest rank, until
none is left. Shares nothing with ionrouter.engine.byte_bpe.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from itertools import pairwise

import regex

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEFAULT = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)
# pre -> the patterns that cut, one after the other; what no pattern matches stays whole.
PATTERNS: Mapping[str, Sequence[str]] = {
    "gpt-2": (GPT2,),
    "smollm": (r"\p{N}", GPT2),
    "llama-bpe": (LLAMA3,),
    "qwen2": (QWEN2,),
    "tekken": (TEKKEN,),
    "default": DEFAULT,
}
WHOLE_WORDS = ("llama-bpe", "tekken")  # a pre-token that is a token is taken without merging


def _letters() -> list[str]:
    printable = [b for b in range(256) if chr(b).isprintable() and b != 0x20 and b != 0xAD]
    out, spare = [], 256
    for byte in range(256):
        if byte in printable:
            out.append(chr(byte))
        else:
            out.append(chr(spare))
            spare += 1
    return out


LETTERS = _letters()


def encode(text: str, pre: str, vocabulary: Mapping[str, int], merges: Sequence[str]) -> list[int]:
    """Tokenize without special or added tokens."""
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    if pre == "qwen2":
        text = unicodedata.normalize("NFC", text)
    ids: list[int] = []
    for word in _cut(text, PATTERNS[pre]):
        letters = "".join(LETTERS[byte] for byte in word.encode("utf-8"))
        if pre in WHOLE_WORDS and letters in vocabulary:
            ids.append(vocabulary[letters])
        else:
            ids += [vocabulary[part] for part in _merge(list(letters), ranks)]
    return ids


def _cut(text: str, patterns: Sequence[str]) -> list[str]:
    words = [text] if text else []
    for pattern in patterns:
        words = [piece for word in words for piece in _isolate(word, pattern)]
    return words


def _isolate(text: str, pattern: str) -> list[str]:
    pieces, at = [], 0
    for match in regex.finditer(pattern, text):
        if match.start() > at:
            pieces.append(text[at : match.start()])
        if match.end() > match.start():
            pieces.append(match.group())
        at = match.end()
    return pieces + ([text[at:]] if at < len(text) else [])


def _merge(parts: list[str], ranks: Mapping[tuple[str, ...], int]) -> list[str]:
    while len(parts) > 1:
        pairs = [(ranks.get(pair, len(ranks)), i) for i, pair in enumerate(pairwise(parts))]
        rank, i = min(pairs)
        if rank == len(ranks):
            break
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts
