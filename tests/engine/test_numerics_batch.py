"""Bit-identity: what a sequence gets never depends on neighbours, chunking, threads or cache state."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as TensorType

from ionrouter.engine import _ion
from tests.support.ion_engine import Answer, collect, generate, make_engine
from tests.support.tiny_llama import TinyLlama, write_gguf

SHAPE = TinyLlama(num_heads=6, num_kv_heads=2, head_dim=32, hidden_size=128, ffn_size=256, vocab_size=1003)
CHUNKS = (1, 7, 16, 64, 512)
SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "seed": 42, "logprobs": 3}
WIDE = replace(SHAPE, num_heads=8, hidden_size=256)  # rows of 256 values, as a K type wants them
KINDS = [
    ("fast", TensorType.Q4_1),
    ("fast", TensorType.F16),
    ("fast", TensorType.Q5_0),
    ("fast", TensorType.Q5_1),
    ("fast", TensorType.Q5_K),
    ("deterministic", TensorType.Q4_1),
    ("exact", TensorType.Q8_0),
    ("exact", TensorType.Q4_K),
]


def make_prompts() -> list[list[int]]:
    """17 prompts of mixed lengths around block and tile borders; two are equal, two share a prefix."""
    rng = random.Random(3)
    lengths = (1, 2, 5, 15, 16, 17, 31, 32, 33, 60, 100, 127, 128, 129, 200)
    prompts = [[rng.randrange(SHAPE.vocab_size) for _ in range(length)] for length in lengths]
    return [*prompts, list(prompts[9]), [*prompts[14][:150], 1, 2, 3]]


PROMPTS = make_prompts()


@pytest.fixture(scope="module", params=KINDS, ids=lambda k: f"{k[0]}-{k[1].name}")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    numerics, tensor_type = request.param
    path = tmp_path_factory.mktemp("batch") / "x.gguf"
    shape = WIDE if tensor_type.name.endswith("_K") else SHAPE
    write_gguf(path, shape, shape.weights(11), tensor_type)
    return str(path), numerics


@pytest.fixture(scope="module")
def alone(case: tuple[str, str]) -> Iterator[list[Answer]]:
    """Each prompt by itself, one thread, whole prefill, no cache: what every other way must equal."""
    path, numerics = case
    model = _ion.Model.load_gguf(path, numerics, threads=1)
    engine = make_engine(model, num_blocks=64, prefix_cache=False)
    yield [generate(engine, [prompt], **SAMPLED)[0] for prompt in PROMPTS]
    engine.close()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_logits_are_the_same_bits_for_any_chunk_and_thread_count(case: tuple[str, str], threads: int) -> None:
    path, numerics = case
    tokens = [i * 37 % SHAPE.vocab_size for i in range(300)]
    whole = _ion.Model.load_gguf(path, numerics, threads=1).logits(tokens).tobytes()
    model = _ion.Model.load_gguf(path, numerics, threads=threads)
    for chunk in CHUNKS:
        assert model.logits(tokens, chunk).tobytes() == whole, f"chunk {chunk}"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("budget", CHUNKS)
def test_a_batch_of_17_gives_each_prompt_what_it_gets_alone(
    case: tuple[str, str], alone: list[Answer], threads: int, budget: int
) -> None:
    path, numerics = case
    model = _ion.Model.load_gguf(path, numerics, threads=threads)
    engine = make_engine(model, num_blocks=256, token_budget=budget, max_running=17)
    assert generate(engine, PROMPTS, **SAMPLED) == alone
    assert engine.stats()["blocks_free"] + engine.stats()["blocks_cached"] == 256
    engine.close()


def test_preemption_and_a_warm_cache_change_nothing(case: tuple[str, str], alone: list[Answer]) -> None:
    path, numerics = case
    model = _ion.Model.load_gguf(path, numerics, threads=2)
    engine = make_engine(model, num_blocks=20, token_budget=64, max_running=8)
    assert generate(engine, PROMPTS, **SAMPLED) == alone
    assert engine.stats()["preemptions"] > 0
    assert generate(engine, list(reversed(PROMPTS)), **SAMPLED) == list(reversed(alone))
    assert engine.stats()["prefix_hit_tokens"] > 0
    engine.close()


def test_a_neighbours_parameters_leave_a_sequence_alone(case: tuple[str, str], alone: list[Answer]) -> None:
    path, numerics = case
    engine = make_engine(_ion.Model.load_gguf(path, numerics, threads=2), num_blocks=256)
    rng = random.Random(5)
    mine: list[int] = []
    for prompt in PROMPTS:
        mine.append(engine.submit(prompt, max_tokens=16, **SAMPLED))
        noise = [rng.randrange(SHAPE.vocab_size) for _ in range(rng.randrange(1, 50))]
        aborted = engine.submit(noise, max_tokens=40, temperature=1.5, repetition_penalty=2.0, seed=9)
        engine.submit(noise, max_tokens=7, temperature=0.0, frequency_penalty=1.5, presence_penalty=1.0)
        engine.abort(aborted)
    assert collect(engine, mine) == alone
    engine.close()


def test_one_poisoned_row_ends_alone(tmp_path: Path) -> None:
    """An embedding row of NaN: the sequence that reads it ends with an error, its neighbours go on."""
    weights = SHAPE.weights(11)
    weights["token_embd.weight"][77] = np.nan
    write_gguf(tmp_path / "x.gguf", SHAPE, weights, TensorType.F32)
    model = _ion.Model.load_gguf(str(tmp_path / "x.gguf"), "exact")
    prompts = [[p % 70 for p in prompt] for prompt in PROMPTS]
    engine = make_engine(model, num_blocks=256)
    healthy = generate(engine, prompts[:5], max_tokens=8)
    sequences = [
        engine.submit(p, max_tokens=8, temperature=0.0, logprobs=0) for p in [*prompts[:5], [3, 77, 5]]
    ]
    answers = collect(engine, sequences)
    assert answers[:5] == healthy
    assert (answers[5].finish, answers[5].tokens) == (4, [])
    assert "finite" in answers[5].error or "NaN" in answers[5].error
    assert engine.stats()["non_finite_rows"] == 1
    engine.close()
