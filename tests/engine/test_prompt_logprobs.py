"""Log-probabilities of prompt tokens through the whole engine, as transformers has them, however it computes.

Alone and in company, in chunks, with the prefix cache cold and warm, after preemption: the same bits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ionrouter.engine import _ion
from tests.engine.test_numerics import logits_of, prompt_of
from tests.support import tiny_transformers
from tests.support.ion_engine import Answer, collect, generate, make_engine

VOCAB = 211
LENGTHS = (1, 2, 16, 17, 300)
TOP = 3
TOLERANCE = 1e-3  # of a log-probability; the logits themselves agree to 1e-4 of the largest
SCORED: dict[str, Any] = {"max_tokens": 0, "prompt_logprobs": TOP}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, _ion.Model]:
    """Return a random model of transformers and ours, over the same weights."""
    torch.manual_seed(8)
    theirs = tiny_transformers.made("Llama")
    paths, text = tiny_transformers.saved(theirs, tmp_path_factory.mktemp("scores"))
    return theirs, _ion.Model.load_safetensors(paths, text, "exact")


@pytest.fixture(scope="module")
def alone(models: tuple[Any, _ion.Model]) -> dict[int, Answer]:
    """Each prompt by itself in one piece."""
    engine = make_engine(models[1], num_blocks=100, prefix_cache=False)
    answers = {n: generate(engine, [prompt_of(n, VOCAB)], **SCORED)[0] for n in LENGTHS}
    engine.close()
    return answers


@pytest.fixture
def engine(models: tuple[Any, _ion.Model], request: pytest.FixtureRequest) -> Iterator[_ion.Engine]:
    engine = make_engine(models[1], **{"num_blocks": 200, "max_running": 8} | getattr(request, "param", {}))
    yield engine
    engine.close()


def log_softmax(logits: Any) -> Any:
    wide = np.asarray(logits, dtype=np.float64)
    wide = wide - wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("length", LENGTHS)
def test_they_are_those_of_transformers(
    models: tuple[Any, _ion.Model], alone: dict[int, Answer], length: int
) -> None:
    prompt = prompt_of(length, VOCAB)
    with torch.inference_mode():
        wanted = log_softmax(models[0](torch.tensor([prompt])).logits[0].numpy())
    answer = alone[length]
    assert (answer.finish, answer.num_billed, answer.text) == (2, 0, b"")
    assert [token for token, *_ in answer.prompt_logprobs] == prompt[1:]
    for position, (token, logprob, rank, top) in enumerate(answer.prompt_logprobs):
        row = wanted[position]
        assert abs(logprob - row[token]) < TOLERANCE
        assert (row > row[token] + TOLERANCE).sum() < rank <= (row > row[token] - TOLERANCE).sum()
        assert len(top) == TOP
        assert [value for _, value in top] == sorted((value for _, value in top), reverse=True)
        assert np.allclose([value for _, value in top], np.sort(row)[::-1][:TOP], atol=TOLERANCE)
        assert all(abs(value - row[other]) < TOLERANCE for other, value in top)
        assert (token, logprob) == top[rank - 1] if rank <= TOP else token not in dict(top)


@pytest.mark.parametrize("length", [17, 300])
def test_their_sum_is_that_of_teacher_forcing(
    models: tuple[Any, _ion.Model], alone: dict[int, Answer], length: int
) -> None:
    prompt = prompt_of(length, VOCAB)
    forced = log_softmax(logits_of(models[1], prompt))
    wanted = sum(forced[position, token] for position, token in enumerate(prompt[1:]))
    assert sum(logprob for _, logprob, *_ in alone[length].prompt_logprobs) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    "engine",
    [
        {"token_budget": 7, "pipeline_depth": 0},
        {"token_budget": 7, "pipeline_depth": 1},
        {"token_budget": 64, "max_running": 3},
        {"token_budget": 512},
    ],
    indirect=True,
    ids=str,
)
def test_chunks_company_and_the_cache_change_no_bit(engine: _ion.Engine, alone: dict[int, Answer]) -> None:
    prompts = {n: prompt_of(n, VOCAB) for n in LENGTHS}
    for _ in range(2):  # the second finds a warm cache
        others = [engine.submit([*prompts[300][:200], i], max_tokens=30, seed=i) for i in range(3)]
        scored = {n: engine.submit(prompt, **SCORED) for n, prompt in prompts.items()}
        all_of_them = collect(engine, [*scored.values(), *others])
        answers = dict(zip(scored, all_of_them, strict=False))
        assert answers == alone
        assert all(answer.num_cached == 0 for answer in answers.values())


def test_a_scored_prompt_goes_on_and_ends_as_one_that_is_not(
    engine: _ion.Engine, alone: dict[int, Answer]
) -> None:
    prompt = prompt_of(300, VOCAB)
    plain = generate(engine, [prompt], max_tokens=12)[0]
    scored = generate(engine, [prompt], max_tokens=12, prompt_logprobs=TOP)[0]
    assert scored.prompt_logprobs == alone[300].prompt_logprobs
    assert (scored.tokens, scored.text, scored.num_billed) == (plain.tokens, plain.text, 12)
    assert (plain.prompt_logprobs, scored.num_cached) == ([], 0)
    assert generate(engine, [prompt], max_tokens=1)[0].num_cached >= 288, "what was scored serves others"


def test_nothing_is_lost_or_told_twice_by_preemption(
    models: tuple[Any, _ion.Model], alone: dict[int, Answer]
) -> None:
    """A pool that holds hardly more than one of them, pieces of a few tokens, with and without a cache."""
    for options in ({"prefix_cache": True}, {"prefix_cache": False}):
        engine = make_engine(models[1], num_blocks=28, max_running=8, token_budget=8, **options)
        rng = random.Random(1)
        for _ in range(100):
            writers = [
                engine.submit([rng.randrange(VOCAB) for _ in range(20)], max_tokens=120, priority=1)
                for _ in range(3)
            ]
            scored = engine.submit(prompt_of(300, VOCAB), **SCORED)
            assert collect(engine, [scored, *writers])[0] == alone[300]
            if engine.stats()["preemptions"] >= 3:  # how many a round brings depends on the arrivals
                break
        stats = engine.stats()
        engine.close()
        assert stats["preemptions"] >= 3, stats
        assert stats["blocks_free"] + stats["blocks_cached"] == stats["blocks_total"]


@pytest.mark.parametrize("count", [-2, VOCAB + 1])
def test_more_than_the_vocabulary_is_refused_by_name(engine: _ion.Engine, count: int) -> None:
    with pytest.raises(ValueError, match=f"prompt_logprobs: {count}"):
        engine.submit([1, 2], max_tokens=1, prompt_logprobs=count)
    everything = generate(engine, [[1, 2]], max_tokens=0, prompt_logprobs=VOCAB)[0]
    assert len(everything.prompt_logprobs[0][3]) == VOCAB


def test_no_new_tokens_want_something_to_score(engine: _ion.Engine) -> None:
    with pytest.raises(ValueError, match="max_tokens: 0"):
        engine.submit([1, 2], max_tokens=0)
