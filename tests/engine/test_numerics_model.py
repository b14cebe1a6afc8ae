"""The default model against the float32 reference, with the tolerances that docs/engine.md states.

Errors are defined in test_numerics.py and tests/support/logit_quality.py, which has the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from ionrouter.engine import _ion, tokenizer
from ionrouter.engine.reference import Reference
from tests.engine.test_numerics import (
    EXACT_TOLERANCE,
    FAST_TOLERANCE,
    assert_greedy_equals,
    relative_error,
)
from tests.support.default_model import default_model_path
from tests.support.ion_engine import generate, make_engine
from tests.support.logit_quality import PASSAGES, euclidean_error, flip_gaps, perplexity

pytestmark = pytest.mark.model

FLIP_GAP = 0.5  # an argmax may differ where the reference's two best are nearer than this
PERPLEXITY_TOLERANCE = 0.01
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "<|im_start|>user\nName three colours of the rainbow.<|im_end|>\n<|im_start|>assistant\n",
    "In the year 1969 the first people",
    "1, 2, 4, 8, 16,",
)


@dataclass(frozen=True, slots=True)
class Given:
    """The text's ids and the reference's logits for them, [len(tokens), vocab_size]."""

    path: Path
    reference: Reference
    tokens: list[int]
    logits: torch.Tensor

    def encode(self, text: str) -> list[int]:
        return tokenizer.from_gguf(_ion.gguf_metadata(str(self.path))).encode_template(text)


@pytest.fixture(scope="module")
def given() -> Given:
    path = default_model_path()
    reference = Reference.from_gguf(path)
    tokens = tokenizer.from_gguf(_ion.gguf_metadata(str(path))).encode(PASSAGES.read_text())
    assert len(tokens) >= 2000
    return Given(path, reference, tokens, reference.logits(tokens))


def test_exact_logits_equal_the_reference(given: Given) -> None:
    ours = np.asarray(_ion.Model.load_gguf(str(given.path), "exact").logits(given.tokens))
    assert relative_error(ours, given.logits) < EXACT_TOLERANCE


def test_exact_greedy_equals_the_reference_over_64_tokens(given: Given) -> None:
    engine = make_engine(_ion.Model.load_gguf(str(given.path), "exact"), num_blocks=64)
    prompts = [given.encode(text) for text in PROMPTS]
    for prompt, answer in zip(prompts, generate(engine, prompts, max_tokens=64), strict=True):
        assert len(answer.ids) == 64
        assert_greedy_equals(given.reference, prompt, answer.ids)
    engine.close()


def test_fast_stays_within_its_tolerances(given: Given) -> None:
    ours = torch.tensor(np.asarray(_ion.Model.load_gguf(str(given.path), "fast").logits(given.tokens)))
    assert euclidean_error(ours.numpy(), given.logits) < FAST_TOLERANCE
    gaps = flip_gaps(ours, given.logits)
    assert gaps.numel() == 0 or float(gaps.max()) < FLIP_GAP
    ratio = perplexity(ours, given.tokens) / perplexity(given.logits, given.tokens)
    assert abs(ratio - 1) < PERPLEXITY_TOLERANCE
