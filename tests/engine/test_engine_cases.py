"""Known faults of other engines, held against the real core: each test names the case it covers.

What a client sees of them is in test_engine_cases_http.py, and of an engine that hangs in
test_hanging_engine.py.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as TensorType

from ionrouter.engine import _ion
from ionrouter.errors import UpstreamError
from tests.support.ion_engine import collect, generate, make_engine
from tests.support.ion_provider import Reply, ask, ion_request, local_endpoint, provider_of
from tests.support.tiny_llama import TinyLlama, write_gguf
from tests.support.tiny_model import write_tiny_model

SHAPE = TinyLlama(vocab_size=331)
VOCAB = SHAPE.vocab_size
PROMPT = [7, 19, 200, 45, 3, 3, 91, 12]
END = 2  # the end-of-sequence id of these engines
TESTS = Path(__file__).parents[1]
CASES = {f"E{n:02}" for n in (1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23, 25, 26, 28, 29)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> _ion.Model:
    path = tmp_path_factory.mktemp("cases") / "x.gguf"
    write_gguf(path, SHAPE, SHAPE.weights(5), TensorType.Q8_0)
    return _ion.Model.load_gguf(str(path), threads=2)


@pytest.fixture
def engine(model: _ion.Model) -> Iterator[_ion.Engine]:
    engine = make_engine(model, stop_ids=[END], num_blocks=400, max_running=80)
    yield engine
    engine.close()


def test_e05_an_abort_gives_the_blocks_back_and_leaves_others_alone(engine: _ion.Engine) -> None:
    quiet = generate(engine, [PROMPT], max_tokens=40, ignore_eos=True)
    endless = engine.submit([5] * 40, max_tokens=400, ignore_eos=True)
    neighbour = engine.submit(PROMPT, max_tokens=40, ignore_eos=True, temperature=0.0, logprobs=0)
    engine.abort(endless)
    gone, answer = collect(engine, [endless, neighbour])
    assert (gone.finish, [answer]) == (3, quiet)
    stats = engine.stats()
    assert stats["blocks_free"] + stats["blocks_cached"] == stats["blocks_total"]


def test_e07_an_empty_prompt_is_refused_and_the_next_one_served(engine: _ion.Engine) -> None:
    with pytest.raises(ValueError, match="prompt: has no tokens"):
        engine.submit([], max_tokens=4)
    assert generate(engine, [PROMPT], max_tokens=4, ignore_eos=True)[0].num_billed == 4


def test_e10_top_k_of_the_vocabulary_or_more_is_off(engine: _ion.Engine) -> None:
    params: dict[str, Any] = {"temperature": 1.0, "seed": 11, "ignore_eos": True}
    off, *others = (
        generate(engine, [PROMPT], top_k=k, **params)[0] for k in (0, -1, VOCAB, VOCAB + 1, 9_999_999)
    )
    assert all(other == off for other in others)
    assert generate(engine, [PROMPT], top_k=1, **params)[0] != off
    with pytest.raises(ValueError, match="top_k: -2"):
        engine.submit(PROMPT, max_tokens=4, top_k=-2)


@pytest.mark.parametrize("count", [-2, VOCAB + 1])
def test_e11_log_probabilities_beyond_the_vocabulary_are_refused(engine: _ion.Engine, count: int) -> None:
    with pytest.raises(ValueError, match=f"logprobs: {count}"):
        engine.submit(PROMPT, max_tokens=4, logprobs=count)
    assert len(generate(engine, [PROMPT], max_tokens=1, logprobs=VOCAB)[0].top[0]) == VOCAB


@pytest.fixture
async def completions(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Reply]]]:
    """The provider in front of the engine, asked for completions; a tiny model with a tokenizer."""
    endpoint = local_endpoint(write_tiny_model(tmp_path / "x.gguf"))
    async with provider_of(endpoint, cache=tmp_path) as provider:
        yield lambda **body: ask(provider, ion_request(endpoint, body, "completions"))


async def test_e08_a_prompt_is_scored_without_a_new_token(
    completions: Callable[..., Awaitable[Reply]],
) -> None:
    france: dict[str, Any] = {"prompt": "The capital of France is", "echo": True, "logprobs": 1}
    reply = await completions(**france, max_tokens=0)
    (choice,), usage = reply.choices.values(), reply.usage
    (told,) = choice.logprobs
    assert (choice.text, choice.finishes) == (france["prompt"], ["length"])
    assert usage is not None and usage.completion_tokens == 0
    assert told["token_logprobs"][0] is None
    assert len(told["token_logprobs"]) == usage.prompt_tokens
    assert all(value < 0 for value in told["token_logprobs"][1:])
    for count in (0, -1):
        with pytest.raises(UpstreamError, match="max_tokens") as refused:
            await completions(prompt=france["prompt"], max_tokens=count)
        assert refused.value.status == 400
    one = await completions(**france, max_tokens=1)
    assert one.usage is not None and one.usage.completion_tokens == 1
    assert one.choices[0].logprobs[0] == told


async def test_e19_offsets_of_a_streamed_echo_point_into_the_whole_text(
    completions: Callable[..., Awaitable[Reply]],
) -> None:
    prompt = "the quick brown fox "
    assert len(prompt) == 20
    reply = await completions(prompt=prompt, echo=True, logprobs=1, max_tokens=8, ignore_eos=True, seed=1)
    (choice,) = reply.choices.values()
    assert choice.pieces[0] == prompt
    told = [entry for part in choice.logprobs for entry in zip(*part.values(), strict=True)]
    assert reply.usage is not None and len(told) == reply.usage.prompt_tokens + 8
    for i, (token, value, top, offset) in enumerate(told):
        assert choice.text[offset : offset + len(token)] == token
        assert (value, top) == (None, None) if i == 0 else -9999 <= value <= 0 and value in top.values()
    assert "".join(token for token, *_ in told) == choice.text


@pytest.mark.parametrize("copies", [1, 2, 8, 17, 64])
def test_e13_a_greedy_prompt_many_times_at_once_gives_one_answer(engine: _ion.Engine, copies: int) -> None:
    alone = generate(engine, [PROMPT], logprobs=5)[0]
    others = [[i % VOCAB] * (1 + i) for i in range(copies)]
    mixed = [prompt for other in others for prompt in (PROMPT, other)]
    assert generate(engine, mixed, logprobs=5)[::2] == [alone] * copies


def test_e14_a_seed_holds_beside_a_request_with_another(engine: _ion.Engine) -> None:
    seeded: dict[str, Any] = {"max_tokens": 16, "temperature": 0.8, "seed": 42, "logprobs": 0}
    alone = collect(engine, [engine.submit(PROMPT, **seeded)])[0]
    for seed in range(4):
        pair = [engine.submit(PROMPT, **seeded), engine.submit(PROMPT, **(seeded | {"seed": seed}))]
        first, second = collect(engine, pair)
        assert first == alone
        assert second != alone


def test_e16_a_penalty_is_the_same_whoever_is_first(engine: _ion.Engine) -> None:
    penalised: dict[str, Any] = {
        "max_tokens": 5, "temperature": 0.0, "repetition_penalty": 2.0, "logprobs": 0
    }  # fmt: skip
    other: dict[str, Any] = {"max_tokens": 4, "seed": 99, "top_k": 1, "logprobs": 0}
    alone = collect(engine, [engine.submit(PROMPT, **penalised)])[0]
    before = collect(engine, [engine.submit(PROMPT, **penalised), engine.submit([9] * 3, **other)])[0]
    after = collect(engine, [engine.submit([9] * 3, **other), engine.submit(PROMPT, **penalised)])[1]
    assert alone == before == after


def test_e17_a_neighbours_penalty_changes_no_request_without_one(engine: _ion.Engine) -> None:
    plain: dict[str, Any] = {"max_tokens": 24, "temperature": 0.0, "logprobs": 5, "ignore_eos": True}
    alone = collect(engine, [engine.submit(PROMPT, **plain)])[0]
    long = engine.submit([4, 8] * 60, **(plain | {"frequency_penalty": 1.05}))
    assert collect(engine, [engine.submit(PROMPT, **plain), long])[0] == alone


def test_e22_tenants_share_no_prefix(engine: _ion.Engine) -> None:
    prompt = list(range(100, 164))

    def num_cached(salt: str) -> int:
        return collect(engine, [engine.submit(prompt, max_tokens=1, cache_salt=salt)])[0].num_cached

    assert [num_cached(salt) for salt in ("", "a", "b")] == [0, 0, 0]
    assert all(num_cached(salt) >= 48 for salt in ("", "a", "b"))


@pytest.mark.parametrize("prompt", [PROMPT[:1], PROMPT * 3])
def test_e28_min_tokens_counts_new_tokens_only_and_bars_the_end(
    engine: _ion.Engine, prompt: list[int]
) -> None:
    params: dict[str, Any] = {"max_tokens": 32, "min_tokens": 4, "logit_bias": {END: 100.0}}
    answer = generate(engine, [prompt], **params)[0]
    assert (answer.finish, len([token for token in answer.ids if token != END])) == (1, 4)
    assert END not in answer.ids[:4]
    unbarred = generate(engine, [prompt], **params, ignore_eos=True)[0]
    assert (unbarred.finish, unbarred.num_billed) == (2, 32)


def test_every_case_has_a_test() -> None:
    files = [
        path
        for folder in ("engine", "engine_ext", "providers")
        for path in (TESTS / folder).rglob("*.*")
        if path.suffix in (".py", ".cpp")
    ]
    marks = re.compile(r"(?:# Case |// Case |def test_)([Ee][0-9]{2})\b|def test_(e[0-9]{2})_")
    named = {
        (mark[1] or mark[2]).upper() for path in files for mark in marks.finditer(path.read_text("utf-8"))
    }
    assert named == CASES
