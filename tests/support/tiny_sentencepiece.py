"""A small SentencePiece vocabulary, trained by the test run on this repository's text, in both file forms.

BPE with a piece for every byte, as Llama 2's and Mistral's: ids 0 to 2 are `<unk>`, `<s>`, `</s>`, then the
256 bytes, then the pieces. Llama writes a space before every stretch of text, Mistral's third version only at
the very start.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import gguf
from tokenizers import Tokenizer, models, normalizers, trainers

from tests.support.tiny_llama import TinyLlama, write_gguf

SPACE = "▁"
CONTROLS = ("<unk>", "<s>", "</s>")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
USER_DEFINED = "<tool>"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'] + eos_token }}{% else %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% endif %}{% endfor %}"
)
_ROOT = Path(__file__).parents[2]


@cache
def pieces() -> tuple[str, ...]:
    """Return the trained pieces, characters first, then in the order in which they were merged."""
    lines = [
        line for path in ("README.md", "docs/engine.md") for line in (_ROOT / path).read_text().splitlines()
    ]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    # Words only, so that no piece holds a space but at its start, as SentencePiece splits them.
    words = [word for line in [*lines, "naïve café Ωμέγα Привет"] for word in line.split()]
    tokenizer.train_from_iterator(words, trainers.BpeTrainer(vocab_size=1200, show_progress=False))
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    return tuple(sorted(vocabulary, key=lambda piece: vocabulary[piece]))


def vocabulary() -> dict[str, int]:
    return {text: i for i, text in enumerate((*CONTROLS, *BYTES, *pieces(), USER_DEFINED))}


def merges() -> list[list[str]]:
    """List every pair that joins to a piece, pieces in the order of their making, as converters do."""
    ids, found = vocabulary(), []
    for piece in pieces():
        cuts = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        known = [pair for pair in cuts if pair[0] in ids and pair[1] in ids]
        found += [list(pair) for pair in sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]]))]
    return found


def tokenizer_json(form: str = "legacy") -> dict[str, Any]:
    """Return a tokenizer.json: `legacy` (a space before every stretch), `first` (at the start), `never`."""
    ids = vocabulary()
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": ids[text], "content": text, "special": True, **flags} for text in CONTROLS]
    added += [{"id": ids[USER_DEFINED], "content": USER_DEFINED, "special": False, **flags}]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = {"type": "Prepend", "prepend": SPACE}
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if form != "never" else []
    space = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
    normal: dict[str, dict[str, Any] | None] = {
        "legacy": {"type": "Sequence", "normalizers": [prepend, replace]},
        "first": None,
        "never": replace,
    }
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": normal[form],
        "pre_tokenizer": space if form == "first" else None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": ids,
            "merges": merges(),
        },
    }


def unigram_json() -> dict[str, Any]:
    """Return a tokenizer.json that picks the likeliest split of the same pieces."""
    data = tokenizer_json("first")
    order = sorted(vocabulary(), key=lambda text: vocabulary()[text])
    scores = [[text, 0.0 if i < 259 else -float(i) / 100 - 2 / len(text)] for i, text in enumerate(order)]
    return data | {"model": {"type": "Unigram", "unk_id": 0, "byte_fallback": True, "vocab": scores}}


def metadata(**changes: Any) -> dict[str, Any]:
    """Return GGUF metadata of the same vocabulary; `changes` by short key, None leaves one out."""
    tokens = sorted(vocabulary(), key=lambda text: vocabulary()[text])
    made = len(pieces())
    base = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * 259 + [-float(i) for i in range(made)] + [0.0],
        "token_type": [2, 3, 3] + [6] * 256 + [1] * made + [4],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": True,
        "add_space_prefix": True,
    } | changes
    out = {f"tokenizer.ggml.{key}": value for key, value in base.items() if value is not None}
    return out | {"tokenizer.chat_template": TEMPLATE}


def add_to(writer: gguf.GGUFWriter) -> None:
    """Write the same metadata with the `gguf` package."""
    data = metadata()
    writer.add_tokenizer_model("llama")
    writer.add_token_list(data["tokenizer.ggml.tokens"])
    writer.add_token_scores(data["tokenizer.ggml.scores"])
    writer.add_token_types(data["tokenizer.ggml.token_type"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)
    writer.add_chat_template(TEMPLATE)


def write_model(path: Path, *, seed: int = 1, **changes: Any) -> Path:
    """Write a whole tiny model with this vocabulary and random weights; `changes` as in `metadata`."""
    shape = TinyLlama(vocab_size=len(vocabulary()))
    weights = shape.weights(seed)
    weights["output.weight"][: len(CONTROLS)] = 0  # weak control tokens: answers go on until their limit
    write_gguf(path, shape, weights, gguf.GGMLQuantizationType.F32, **metadata(**changes))
    return path
