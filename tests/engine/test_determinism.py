"""The whole engine on the CPU: 200 random requests give the same bits alone and in any company.

Batches of 1 to 16 with random arrivals, small pools, cold and warm caches, each kind of second tier, both
depths of the pipeline; each run counts its preemptions, prefix hits and cut prompts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as TensorType

from ionrouter.engine import _ion
from tests.support.ion_engine import Answer, collect, make_engine
from tests.support.tiny_llama import TinyLlama, write_gguf

SHAPE = TinyLlama(vocab_size=331)
NUM_REQUESTS = 200
AT_LEAST = 50  # preemptions, prefix hits and cut prompts of each run
MOST_ROUNDS = 12  # how many preemptions a round brings depends on the arrivals
Request = dict[str, Any]  # arguments of Engine.submit


def make_requests(rng: random.Random) -> list[Request]:
    """Half greedy, half sampled with penalties; prompts share pieces of four trunks. All tell their ids."""
    trunks = [[rng.randrange(SHAPE.vocab_size) for _ in range(220)] for _ in range(4)]
    requests = []
    for i in range(NUM_REQUESTS):
        own = [rng.randrange(SHAPE.vocab_size) for _ in range(rng.randrange(1, 31))]
        request: Request = {
            "prompt": rng.choice(trunks)[: rng.choice((0, 16, 50, 100, 220))] + own,
            "max_tokens": rng.randrange(1, 140),
            "temperature": 0.0,
            "logprobs": 0,
        }
        if i % 2:
            request |= {
                "temperature": rng.uniform(0.3, 1.5),
                "top_p": rng.choice((1.0, 0.9)),
                "top_k": rng.choice((0, 40)),
                "seed": rng.getrandbits(64),
                "repetition_penalty": rng.choice((1.0, 1.3)),
                "presence_penalty": rng.uniform(-1.0, 1.0),
                "frequency_penalty": rng.uniform(-1.0, 1.0),
                "logprobs": 5,
                "priority": rng.randrange(-1, 2),
            }
        if i % 10 == 3:
            request["prompt_logprobs"] = 2  # takes no prefix hits
        requests.append(request)
    return requests


REQUESTS = make_requests(random.Random(20))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> _ion.Model:
    path = tmp_path_factory.mktemp("determinism") / "x.gguf"
    write_gguf(path, SHAPE, SHAPE.weights(5), TensorType.Q8_0)
    return _ion.Model.load_gguf(str(path), threads=2)


@pytest.fixture(scope="module")
def alone(model: _ion.Model) -> Iterator[list[Answer]]:
    """Each request by itself, whole prompts, no cache, nothing in flight beside it."""
    engine = make_engine(model, num_blocks=32, prefix_cache=False, pipeline_depth=0)
    yield [collect(engine, [engine.submit(**request)])[0] for request in REQUESTS]
    assert engine.stats()["preemptions"] == 0
    engine.close()


def packed(answers: list[Answer]) -> list[bytes]:
    """Ids and log-probabilities as bytes: equal floats are not enough, 0.0 and -0.0 differ."""
    return [answer.packed() for answer in answers]


def in_batches(engine: _ion.Engine, rng: random.Random) -> list[Answer]:
    """All requests in random order, 1 to 16 at once; answers in the order of REQUESTS."""
    order = rng.sample(range(NUM_REQUESTS), NUM_REQUESTS)
    answers: dict[int, Answer] = {}
    while order:
        batch = [order.pop() for _ in range(min(len(order), rng.randrange(1, 17)))]
        sequences = []
        for i in batch:
            sequences.append(engine.submit(**REQUESTS[i]))
            if rng.random() < 0.3:
                time.sleep(rng.uniform(0.0, 0.003))  # arrivals between steps
        answers |= zip(batch, collect(engine, sequences), strict=True)
    return [answers[i] for i in range(NUM_REQUESTS)]


@pytest.mark.parametrize("tier", ["none", "memory", "file"])
@pytest.mark.parametrize("depth", [0, 1])
def test_company_preemption_cuts_and_caches_change_no_bit(
    model: _ion.Model, alone: list[Answer], tmp_path: Path, tier: str, depth: int
) -> None:
    tier_bytes = 0 if tier == "none" else 400 * model.config["kv_block_bytes"]
    options = {"tier_bytes": tier_bytes, "tier_folder": str(tmp_path) if tier == "file" else ""}
    engine = make_engine(
        model, num_blocks=26, max_running=16, token_budget=40, pipeline_depth=depth, **options
    )
    rng = random.Random(f"{tier} {depth}")
    num_hits = num_rounds = least = 0
    while num_rounds < 2 or (least < AT_LEAST and num_rounds < MOST_ROUNDS):  # the first finds the cache cold
        answers = in_batches(engine, rng)
        assert packed(answers) == packed(alone), f"round {num_rounds}"
        num_rounds += 1
        num_hits += sum(answer.num_cached > 0 for answer in answers)
        least = min(engine.stats()["preemptions"], num_hits, engine.stats()["prefill_splits"])
    stats = engine.stats()
    engine.close()
    assert stats["blocks_free"] + stats["blocks_cached"] == stats["blocks_total"]
    assert stats["tier_blocks_free"] + stats["tier_blocks_cached"] == stats["tier_blocks_total"]
    assert (stats["tier_hit_tokens"] > 0) == (tier != "none")
    assert stats["tier_copies_failed"] == 0
    assert least >= AT_LEAST, stats


def test_two_models_that_share_the_threads_change_no_bit_of_each_other(
    model: _ion.Model, alone: list[Answer], tmp_path: Path
) -> None:
    write_gguf(tmp_path / "other.gguf", SHAPE, SHAPE.weights(6), TensorType.Q8_0)
    other = _ion.Model.load_gguf(str(tmp_path / "other.gguf"), threads=2)
    engines = [make_engine(each, num_blocks=200, max_running=8) for each in (model, other)]
    with ThreadPoolExecutor() as threads:
        first, second = threads.map(lambda engine: in_batches(engine, random.Random(9)), engines)
    for engine in engines:
        engine.close()
    assert packed(first) == packed(alone)
    assert packed(second) != packed(alone)
    quiet = make_engine(other, num_blocks=200, max_running=8)
    assert packed(in_batches(quiet, random.Random(10))) == packed(second)
    quiet.close()


def test_requests_are_as_random_as_they_claim(alone: list[Answer]) -> None:
    assert len(alone) == NUM_REQUESTS
    assert len({tuple(answer.ids) for answer in alone}) > NUM_REQUESTS * 0.9
    assert sum(request["temperature"] > 0 for request in REQUESTS) == NUM_REQUESTS // 2
    assert all(answer.finish == 2 for answer in alone)
