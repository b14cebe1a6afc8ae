"""A small byte-level BPE vocabulary in GGUF's form, trained by the test run itself."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.support.reference_bpe import LLAMA3, NORMALISED, PATTERNS, QWEN2, TEKKEN, WHOLE_WORDS

CORPUS = [
    "the quick brown fox jumps over the lazy dog and then the dog jumps over the fox again",
    "We'll say it's what they've said: don't I'd you're we're THEY'LL SAY",
    "def main():\n    return [i for i in range(1000) if i % 15 == 0]\n\n\nclass A:\n\tpass\r\n",
    "1234567890 2024 1999 123,456.78 3.14159 x2 y3",
    "naïve café Ωμέγα Привет мир 汉字 かな 한국어 🙂🙂 ½²",
] * 20
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_end|>x")
USER_DEFINED = ("<tool_call>", "    ")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@cache
def _trained() -> tuple[dict[str, int], list[str]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(tokenizer.to_str())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return model["vocab"], merges


def vocabulary_and_merges() -> tuple[dict[str, int], list[str]]:
    """Return what the reference needs: ids as in `metadata`, and the merges in order of rank."""
    vocabulary, merges = _trained()
    return {text: i + len(CONTROLS) for text, i in vocabulary.items()}, merges


def metadata(pre: str | None = "smollm", **changes: Any) -> dict[str, Any]:
    """Return GGUF metadata: control tokens first, then the trained ones, then user-defined ones."""
    vocabulary, merges = vocabulary_and_merges()
    ordinary = sorted(vocabulary, key=lambda text: vocabulary[text])
    tokens = [*CONTROLS, *ordinary, *USER_DEFINED]
    types = [3] * len(CONTROLS) + [1] * len(ordinary) + [4] * len(USER_DEFINED)
    base = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }
    if pre is not None:
        base["tokenizer.ggml.pre"] = pre
    return base | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def _split(*patterns: str) -> list[dict[str, Any]]:
    """Return pre-tokenizers in the form of tokenizer.json: cut by each pattern, then spell bytes."""
    cuts = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    return [*cuts, _level(use_regex=False)]


def _level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


# As the tokenizer.json files of the models that each kind is named after.
PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [_level(use_regex=True)],
    "smollm": [{"type": "Digits", "individual_digits": True}, _level(use_regex=True)],
    "llama-bpe": _split(LLAMA3),
    "qwen2": _split(QWEN2),
    "tekken": _split(TEKKEN),
    **{
        pre: _split(*PATTERNS[pre])
        for pre in PATTERNS
        if pre not in ("gpt-2", "smollm", "llama-bpe", "qwen2", "tekken")
    },
}


def tokenizer_json(pre: str = "qwen2") -> dict[str, Any]:
    """Return a tokenizer.json of the same ids."""
    trained, merges = vocabulary_and_merges()
    vocabulary = {text: i for i, text in enumerate(CONTROLS)} | trained
    first = len(vocabulary)
    ids = [*((text, i, True) for i, text in enumerate(CONTROLS))]
    ids += [(text, first + i, False) for i, text in enumerate(USER_DEFINED)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": text, "special": special, **flags} for text, i, special in ids],
        "normalizer": {"type": "NFC"} if pre in NORMALISED else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre]},
        "post_processor": None,
        "decoder": _level(use_regex=True),
        "model": {
            "type": "BPE",
            "ignore_merges": pre in WHOLE_WORDS,
            "vocab": vocabulary,
            "merges": [merge.split(" ") for merge in merges],
        },
    }
