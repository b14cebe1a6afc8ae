"""A whole model whose answer is known beforehand: the next token depends on the last one alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType

from ionrouter.engine.byte_alphabet import byte_alphabet
from tests.support.tiny_llama import TinyLlama, write_gguf
from tests.support.tiny_tokenizer import metadata

START, END = 1, 2  # <|im_start|>, which the template ends with, and <|im_end|>
SURE = 4.0  # weight of the token that comes next: its logit is 32, all others are 0
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}<|im_start|>"


def write_scripted_model(
    path: Path, pieces: Sequence[str], *, thinks: bool = False, loops: bool = False
) -> Path:
    """Write a model that says `pieces`, a token each, and ends; or says the last one for ever (`loops`).

    The pieces differ from each other: a piece is what tells the model where it is.
    """
    assert len(set(pieces)) == len(pieces)
    alphabet = byte_alphabet()
    spelled = ["".join(alphabet[byte] for byte in piece.encode()) for piece in pieces]
    data = metadata()
    tokens, types = data["tokenizer.ggml.tokens"], data["tokenizer.ggml.token_type"]
    new = [text for text in spelled if text not in tokens]
    tokens = [*tokens, *new]
    states = [START, *map(tokens.index, spelled)]
    shape = TinyLlama(vocab_size=len(tokens))
    weights = {name: np.zeros_like(weight) for name, weight in shape.weights(1).items()}
    for name, weight in weights.items():
        if "norm" in name:
            weight[:] = 1
    for place, (state, after) in enumerate(
        zip(states, [*states[1:], states[-1] if loops else END], strict=True)
    ):
        weights["token_embd.weight"][state, place] = 1
        weights["output.weight"][after, place] = SURE
    given = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*types, *[1] * len(new)],
        "tokenizer.chat_template": TEMPLATE + ("{# <think> #}" if thinks else ""),
    }
    write_gguf(path, shape, weights, GGMLQuantizationType.F32, **(data | given))
    return path
