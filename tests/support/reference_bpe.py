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
# As tiktoken's o200k_base and the tokenizer.json of gpt-oss have it.
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEFAULT = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)
# Letters with case, as DeepSeek LLM's tokenizer.json lists them.
CASED = (
    "\u0041-\u005a\u0061-\u007a\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
    "\u0295-\u02af\u0370-\u0373\u0376-\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc"
    "\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183-\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2-\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
EAST = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{CASED}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    EAST,
    r"\p{N}",
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST, r"\p{N}")
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
SEED_CODER = QWEN2.replace(r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+")
VIKING = (" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+", r"\p{N}")
# pre -> the patterns that cut, one after the other; what no pattern matches stays whole.
PATTERNS: Mapping[str, Sequence[str]] = {
    "gpt-2": (GPT2,),
    "smollm": (r"\p{N}", GPT2),
    "llama-bpe": (LLAMA3,),
    "qwen2": (QWEN2,),
    "tekken": (TEKKEN,),
    "default": DEFAULT,
    "deepseek-llm": DEEPSEEK_LLM,
    "deepseek-coder": DEEPSEEK_CODER,
    "deepseek-v3": DEEPSEEK_V3,
    "seed-coder": (SEED_CODER,),
    "viking": VIKING,
    "gpt-4o": (O200K,),
    "qwen35": (QWEN35,),
}
NORMALISED = ("qwen2", "qwen35")  # to NFC
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
    if pre in NORMALISED:
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
