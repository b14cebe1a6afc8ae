"""Byte-level BPE: the pre-tokenizers by name, and the two ways to build one.

Ids come from the `tokenizers` library; this file only gives it the model's own data. Knows no special
tokens beyond keeping their text out of reach, no templates, no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from ionrouter.engine.byte_alphabet import byte_alphabet
from ionrouter.errors import ConfigError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_then_gpt2() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _by_pattern(digits: str) -> Any:
    """Split as Llama 3 and Qwen 2 do; they differ only in how many digits stay together."""
    return _by_regex("|".join((_CONTRACTIONS, _WORDS, digits, _TAIL)))


def _by_regex(*patterns: str) -> Any:
    """Cut by each pattern in turn; what none of them matches stays whole."""
    cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _llama3() -> Any:
    return _by_pattern(r"\p{N}{1,3}")


def _qwen2() -> Any:
    return _by_pattern(r"\p{N}")


def _by_case(digits: str, behind: str = "") -> Any:
    """Split so that words end where lower case is followed by upper case."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{upper}*{lower}+{behind}|{before}{upper}+{lower}*{behind}"
    tail = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    return _by_regex("|".join((words, digits, tail)))


def _tekken() -> Any:
    return _by_case(r"\p{N}")


def _gpt4o() -> Any:
    """Split as o200k does: a contraction belongs to its word."""
    return _by_case(r"\p{N}{1,3}", f"{_CONTRACTIONS}?")


def _qwen35() -> Any:
    """Split as Qwen 2 does, but that marks are letters."""
    words, tail = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", _TAIL.replace(r"\p{L}", r"\p{L}\p{M}")
    return _by_regex("|".join((_CONTRACTIONS, words, r"\p{N}", tail)))


def _default() -> Any:
    """Split as llama.cpp does for files that name no pre-tokenizer."""
    words = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
    return _by_regex(r"[\p{P}\$\+<=>\^~\|]+", words, r"\p{N}+", r"[0-9][0-9][0-9]")


# Han and Hangul, and on the way the scripts between: DeepSeek's first tokenizers name the ranges so.
_EAST = r"[\u0800-\u9FA5\uAC00-\uD7FF]+"
# Letters with case as DeepSeek LLM lists them: without Armenian's small ones, Georgian's but for two blocks,
# later Latin and Cyrillic, the mathematical alphabets, and what Unicode added since.
_CASED = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\u0560-\u0588\u10C7-\u10FF\u1C80-\u1C8F\u2D00-\u2D2D\uA790-\uA7FF\uAB30-\uAB6F"
    r"\x{10570}-\x{105BF}\x{10D50}-\x{10D8F}\x{16E40}-\x{16EFF}\x{1D400}-\x{1DFFF}]]"
)


def _deepseek_llm() -> Any:
    """Split as DeepSeek LLM does: numbers into digits, as its report says."""
    signs = r"\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+"
    return _by_regex(r"[\r\n]", rf"\s?{_CASED}+", signs, r"\s+$", _EAST, r"\p{N}")


def _deepseek_coder() -> Any:
    return _by_regex(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST, r"\p{N}")


def _deepseek_v3() -> Any:
    ascii_signs = r"[!-/:-@\[-`{-~]"
    words = rf"{ascii_signs}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    tail = r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    return _by_regex(r"\p{N}{1,3}", r"[\u4E00-\u9FA5\u3040-\u30FF]+", f"{words}|{tail}")


def _seed_coder() -> Any:
    """Split as Qwen 2 does, but that line breaks never belong to the signs before them."""
    tail = r" ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
    return _by_regex("|".join((_CONTRACTIONS, _WORDS, r"\p{N}", tail)))


def _viking() -> Any:
    """Split as BLOOM does, and digits on their own."""
    return _by_regex(r" ?[^(\s|.,!?\u2026\u3002\uFF0C\u3001\u0964\u06D4\u060C)]+", r"\p{N}")


# `tokenizer.ggml.pre` -> how text is cut before merging. Names as llama.cpp writes them; each group shares
# the pattern of the original tokenizer.
_PRE_TOKENIZERS: Mapping[str, Callable[[], Any]] = {
    "default": _default,
    "gpt-2": _gpt2,
    "smollm": _digits_then_gpt2,
    "starcoder": _digits_then_gpt2,
    "refact": _digits_then_gpt2,
    "codeshell": _digits_then_gpt2,
    "minerva-7b": _digits_then_gpt2,
    "a.x-4.0": _gpt2,
    "mellum": _gpt2,
    "trillion": _gpt2,
    "llama3": _llama3,
    "llama-v3": _llama3,
    "llama-bpe": _llama3,
    "falcon3": _llama3,
    "midm-2.0": _llama3,
    "dbrx": _llama3,
    "smaug-bpe": _llama3,
    "qwen2": _qwen2,
    "deepseek-r1-qwen": _qwen2,
    "megrez": _qwen2,
    "kormo": _qwen2,
    "deepseek-llm": _deepseek_llm,
    "deepseek-coder": _deepseek_coder,
    "deepseek-v3": _deepseek_v3,
    "seed-coder": _seed_coder,
    "viking": _viking,
    "tekken": _tekken,
    "gpt-4o": _gpt4o,
    "qwen35": _qwen35,
}
# Whole pre-tokens that are tokens are taken as they are, without merging (tiktoken's rule).
_IGNORE_MERGES = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "midm-2.0", "tekken"})
# Plain prompts begin with BOS even where the file does not say `add_bos_token`.
BEGIN_WITH_BOS = _IGNORE_MERGES
# The original tokenizer normalises to NFC; GGUF does not say so.
_NFC = frozenset({"qwen2", "qwen35"})


# For str.translate: characters of the alphabet to their bytes as Latin-1, others of Latin-1 to what is none.
_BYTE_OF = {byte: 0x100 for byte in range(0x100)} | {
    ord(char): byte for byte, char in byte_alphabet().items()
}


def bytes_of(token: str) -> bytes:
    """Turn a vocabulary entry into the bytes it stands for; a raw (user-defined) one is its own UTF-8."""
    try:
        return token.translate(_BYTE_OF).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode("utf-8", "surrogateescape")


def build(
    pre: str, vocabulary: Mapping[str, int], merges: Sequence[str], user_defined: Sequence[str]
) -> Tokenizer:
    """Build a tokenizer from GGUF data; raises ConfigError for a pre-tokenizer nobody told us about."""
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        raise ConfigError(f"tokenizer.ggml.pre: unknown pre-tokenizer {pre!r}; known: {known}")
    pairs = [_pair(merge) for merge in merges]
    bpe = models.BPE(vocab=dict(vocabulary), merges=pairs, ignore_merges=pre in _IGNORE_MERGES)
    tokenizer = Tokenizer(bpe)
    if pre in _NFC:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in user_defined])
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    # A half may itself begin with a space in no byte-level vocabulary: space is written as another character.
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise ConfigError(f"tokenizer.ggml.merges: {merge!r} is not two tokens with a space between")
    return left, right
