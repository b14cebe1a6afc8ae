"""Ten thousand strings to tokenize, the same in every run: words, digits, white space, scripts, markup."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

COUNT = 10_000
SPACES = (
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    " \n ",
    "\u00a0",
    "\u2003",
    "\u200b",
    "\u3000",
    "\u2028",
)
WORDS = (
    "the", "Quick", "BROWN", "fox's", "they've", "I'LL", "naïve", "cafe\u0301", "don't", "x_y",
    "camelCaseWord", "HTTPServer", "µm", "ﬁne", "İstanbul", "straße", "ǅ", "Привет", "Ωμέγα",
    "汉字", "かな", "カナ", "한국어",
    "नमस्ते", "สวัสดี", "שלום", "مرحبا", "🙂", "👩‍🚀", "🏳️‍🌈", "🫠", "龜", "e\u0301\u0323", "\u1e9b\u0323",
)  # fmt: skip
SIGNS = tuple("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~€£«»…—“”‚•∑√≠½²Ⅷ٣१２")
SPECIALS = (
    "<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|begin_of_text|>",
    "[INST]", "[/INST]", "<0x0A>", "<0xE2>", "▁", "▁▁", "<tool_call>", "</think>", "<|im_", "Ġ", "Ċ",
)  # fmt: skip
RANGES = ((0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x600, 0x700), (0x900, 0xE00),
          (0x2000, 0x2C00), (0x3040, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A0), (0x1F300, 0x1FB00),
          (0x1, 0x20), (0x7F, 0xA0), (0xE000, 0xE100), (0x10000, 0x10400), (0x1D400, 0x1D800))  # fmt: skip


def _word(rng: random.Random) -> str:
    return rng.choice(WORDS)


def _digits(rng: random.Random) -> str:
    return "".join(rng.choice("0123456789") for _ in range(rng.randrange(1, 12)))


def _letters(rng: random.Random) -> str:
    return "".join(rng.choice("etaoinshrdluABCDE") for _ in range(rng.randrange(1, 14)))


def _characters(rng: random.Random) -> str:
    first, last = rng.choice(RANGES)
    return "".join(chr(rng.randrange(first, last)) for _ in range(rng.randrange(1, 6)))


_PARTS: tuple[Callable[[random.Random], str], ...] = (
    _word,
    _digits,
    _letters,
    _characters,
    lambda rng: rng.choice(SPACES),
    lambda rng: " " * rng.randrange(1, 9),
    lambda rng: rng.choice(SIGNS) * rng.randrange(1, 4),
    lambda rng: rng.choice(SPECIALS),
)


@cache
def strings() -> tuple[str, ...]:
    """Return them all; the first are the empty string and single spaces."""
    rng = random.Random(41)
    made = ["", *SPACES, *SPECIALS]
    while len(made) < COUNT:
        parts = [rng.choice(_PARTS)(rng) for _ in range(rng.randrange(1, 9))]
        made.append(rng.choice(("", " ")).join(parts))
    return tuple(made)
