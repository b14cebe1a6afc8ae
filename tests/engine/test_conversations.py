"""Conversations over a first KV tier of a quarter of their KV, through the whole engine on the CPU.

The scenario of tests/bench/conversations.py, small, with its counts asserted.
"""

from __future__ import annotations

import pytest
from gguf import GGMLQuantizationType as TensorType

from ionrouter.engine import _ion
from tests.bench.conversations import Outcome, Traffic, converse
from tests.bench.engine_runs import BLOCK
from tests.support.tiny_llama import TinyLlama, write_gguf

SHAPE = TinyLlama(vocab_size=331)
TRAFFIC = Traffic(conversations=32, turns=4, prompt=50, answer=22, running=8, think_s=0.02)
# Answers grow far beyond the blocks that admission leaves spare.
CROWD = Traffic(conversations=32, turns=3, prompt=20, answer=60, running=8, think_s=0.0)
NEW_TOKENS = TRAFFIC.conversations * TRAFFIC.turns * TRAFFIC.prompt


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> _ion.Model:
    path = tmp_path_factory.mktemp("conversations") / "x.gguf"
    write_gguf(path, SHAPE, SHAPE.weights(5), TensorType.Q8_0)
    return _ion.Model.load_gguf(str(path))


@pytest.fixture(scope="module")
def uncapped(model: _ion.Model) -> Outcome:
    return converse(model, "uncapped", TRAFFIC, check_integrity=True)


def test_the_second_tier_serves_what_the_first_has_forgotten(model: _ion.Model, uncapped: Outcome) -> None:
    tiered = converse(model, "tiered", TRAFFIC, check_integrity=True)
    assert tiered.answers == uncapped.answers
    found = tiered.summary(TRAFFIC.running)
    assert found["cached_share"] > 0.9
    assert found["tier_share_of_lost"] > 0.9
    assert found["from_tier"] > 0.75 * found["returning"]  # most prefixes had left the first tier
    # What was not whole blocks is computed again, and nothing else.
    assert found["prefilled"] < NEW_TOKENS * 1.25
    # Each block is copied out once, when it is sealed; eviction copies nothing.
    sealed = TRAFFIC.conversations * ((TRAFFIC.turns * (TRAFFIC.prompt + TRAFFIC.answer) - 1) // BLOCK)
    assert 0.9 * sealed < found["copies_out"] <= sealed
    assert tiered.stats["tier_copies_failed"] == 0


def test_without_the_second_tier_most_of_a_prefix_is_computed_again(
    model: _ion.Model, uncapped: Outcome
) -> None:
    control = converse(model, "control", TRAFFIC, check_integrity=True)
    assert control.answers == uncapped.answers
    found, whole = control.summary(TRAFFIC.running), uncapped.summary(TRAFFIC.running)
    assert whole["cached_share"] > 0.9
    assert found["cached_share"] < 0.5
    assert found["prefilled"] > 1.5 * whole["prefilled"]


@pytest.mark.parametrize("depth", [0, 1])
def test_four_times_as_many_as_fit_answer_the_same_and_nobody_waits_for_ever(
    model: _ion.Model, depth: int
) -> None:
    whole = converse(model, "uncapped", CROWD)
    crowded = converse(model, "oversubscribed", CROWD, check_integrity=True, pipeline_depth=depth)
    assert crowded.answers == whole.answers
    assert crowded.stats["preemptions"] > 2
    assert crowded.from_tier > 0
