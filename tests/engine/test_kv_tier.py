"""Conversations whose prefixes exceed the first KV tier come back from the second, on the real CPU runner."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as TensorType

from ionrouter.engine import _ion
from tests.support.ion_engine import Answer, generate, make_engine
from tests.support.tiny_llama import TinyLlama, write_gguf

SHAPE = TinyLlama(vocab_size=331)
TURNS, TALKS, NUM_BLOCKS = 4, 5, 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> _ion.Model:
    path = tmp_path_factory.mktemp("tier") / "x.gguf"
    write_gguf(path, SHAPE, SHAPE.weights(5), TensorType.Q8_0)
    return _ion.Model.load_gguf(str(path))


def converse(engine: _ion.Engine) -> list[Answer]:
    """Five conversations take turns; a turn's prompt is all that was said and 20 tokens more."""
    rng = random.Random(4)
    talks = [[rng.randrange(SHAPE.vocab_size) for _ in range(80)] for _ in range(TALKS)]
    answers = []
    for _ in range(TURNS):
        for talk in talks:
            answers += generate(engine, [talk], temperature=0.8, seed=3, max_tokens=24)
            talk += answers[-1].ids + [rng.randrange(SHAPE.vocab_size) for _ in range(20)]
    return answers


@pytest.mark.parametrize("is_file", [False, True], ids=["memory", "file"])
def test_long_conversations_come_back_with_the_same_output_and_less_prefill(
    model: _ion.Model, tmp_path: Path, is_file: bool
) -> None:
    plain = make_engine(model, num_blocks=NUM_BLOCKS)
    tiered = make_engine(
        model,
        num_blocks=NUM_BLOCKS,
        tier_bytes=200 * model.config["kv_block_bytes"],
        tier_folder=str(tmp_path) if is_file else "",
    )
    assert converse(tiered) == converse(plain)
    before, after = plain.stats(), tiered.stats()
    plain.close()
    tiered.close()
    assert after["tokens_prefilled"] < before["tokens_prefilled"] / 2
    assert after["tier_hit_tokens"] > 1000
    assert after["tokens_prefilled"] + after["tier_hit_tokens"] <= before["tokens_prefilled"]
    assert (after["tier_copies_out"], after["tier_copies_failed"]) == (after["tier_blocks_cached"], 0)


def test_a_tier_smaller_than_one_block_is_refused(model: _ion.Model) -> None:
    with pytest.raises(ValueError, match="kv_tier: 5 bytes"):
        make_engine(model, num_blocks=NUM_BLOCKS, tier_bytes=5)


def test_a_folder_that_does_not_exist_is_named(model: _ion.Model, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"kv_tier: .*absent"):
        make_engine(model, num_blocks=NUM_BLOCKS, tier_bytes=1 << 20, tier_folder=str(tmp_path / "absent"))
