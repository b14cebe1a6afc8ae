"""A prompt's own log-probabilities from the local engine: OpenAI's echo and vLLM's prompt_logprobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ionrouter.engine.mailbox import PromptToken, TokenEvent
from ionrouter.engine.tokenizer import Tokenizer
from ionrouter.providers.ion import IonProvider
from ionrouter.providers.ion_scores import Shared, echoed, name_of, pieces_of, reported, top_of
from ionrouter.schema.assemble import Assembly
from ionrouter.schema.events import Complete
from ionrouter.schema.request import Kind
from tests.support import tiny_sentencepiece
from tests.support.ion_provider import Choice, Reply, ask, ion_request, local_endpoint, provider_of
from tests.support.tiny_model import write_tiny_model

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
SCORE: dict[str, Any] = {"echo": True, "max_tokens": 0, "logprobs": 2}
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
PROMPTS = (
    "the",
    "the quick brown fox jumps over the lazy dog",
    "naïve 汉字 🙂 half",
    "<|im_start|>user\nthe fox<|im_end|>\n",
    "  spaces,\n\n\tlines  ",
    "the lazy dog and " * 80,
)


class Asked:
    """A provider and its one endpoint."""

    def __init__(self, provider: IonProvider, endpoint: Any) -> None:
        self.provider, self.endpoint = provider, endpoint

    async def complete(self, prompt: Any, **body: Any) -> Reply:
        return await ask(self.provider, ion_request(self.endpoint, {"prompt": prompt} | body, "completions"))

    async def whole(self, kind: Kind, **body: Any) -> Complete:
        """The answer as a client gets it that does not stream."""
        assembly = Assembly()
        for chunk in (await ask(self.provider, ion_request(self.endpoint, body, kind))).chunks:
            assembly.add(chunk)
        return assembly.complete()


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncIterator[Asked]:
    endpoint = local_endpoint(write_tiny_model(tmp_path / "x.gguf"))
    async with provider_of(endpoint, cache=tmp_path) as provider:
        yield Asked(provider, endpoint)


def lists_of(choice: Choice) -> dict[str, list[Any]]:
    """Join the chunks' lists and check what always holds of them."""
    lists = {name: [value for part in choice.logprobs for value in part[name]] for name in LISTS}
    assert len({len(values) for values in lists.values()}) == 1
    for i, (token, value, top, offset) in enumerate(zip(*lists.values(), strict=True)):
        assert choice.text[offset : offset + len(token)] == token
        if i == 0:
            assert (value, top, offset) == (None, None, 0)
        else:
            assert -9999.0 <= value <= 0 and value in top.values()
    assert "".join(lists["tokens"]) == choice.text
    return lists


@pytest.mark.parametrize("prompt", PROMPTS)
async def test_an_echo_with_logprobs_scores_the_prompt(asked: Asked, prompt: str) -> None:
    reply = await asked.complete(prompt, **SCORE)
    (choice,) = reply.choices.values()
    assert (choice.text, choice.finishes) == (prompt, ["length"])
    lists = lists_of(choice)
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(lists["tokens"]), 0)
    again = await asked.complete(prompt, **SCORE)
    assert lists_of(again.choices[0]) == lists
    assert again.usage is not None and again.usage.cached_tokens == 0


@pytest.mark.parametrize("prompt", PROMPTS)
async def test_the_answer_goes_on_behind_its_prompt(asked: Asked, prompt: str) -> None:
    plain = await asked.complete(prompt, **GREEDY, logprobs=2)
    reply = await asked.complete(prompt, **GREEDY, logprobs=2, echo=True)
    lists = lists_of(reply.choices[0])
    assert reply.text == prompt + plain.text
    parts = plain.choices[0].logprobs
    assert lists["token_logprobs"][-8:] == [value for part in parts for value in part["token_logprobs"]]
    first = next(chunk.choices[0] for chunk in reply.chunks)
    assert first.delta == {"text": prompt} and first.logprobs is not None, "the echo comes first"
    assert len(first.logprobs["tokens"]) == len(lists["tokens"]) - 8


async def test_a_prompt_of_ids_may_end_within_a_character(asked: Asked) -> None:
    ids = [*range(40, 60), 250, 251]
    reply = await asked.complete(ids, **(SCORE | {"max_tokens": 4, "ignore_eos": True}))
    lists = lists_of(reply.choices[0])
    assert len(lists["tokens"]) == len(ids) + 4


async def test_zero_logprobs_give_the_tokens_own(asked: Asked) -> None:
    reply = await asked.complete("the quick", **(SCORE | {"logprobs": 0}))
    lists = lists_of(reply.choices[0])
    assert [len(top) for top in lists["top_logprobs"][1:]] == [1] * (len(lists["tokens"]) - 1)
    without = await asked.complete("the quick", echo=True, max_tokens=0)
    assert (without.text, without.choices[0].logprobs) == ("the quick", [])


async def test_a_stop_string_in_the_prompt_stops_nothing_and_one_in_the_answer_does(asked: Asked) -> None:
    plain = await asked.complete("the quick", **GREEDY)
    stop = plain.text[3:6]
    body = GREEDY | {"stop": ["quick", stop], "echo": True, "logprobs": 1}
    reply = await asked.complete("the quick", **body)
    assert reply.text == "the quick" + plain.text[: plain.text.index(stop)]
    assert reply.choices[0].finishes == ["stop"]
    lists_of(reply.choices[0])


@pytest.mark.parametrize("max_tokens", [0, 6])
async def test_every_choice_has_its_prompts_scores_which_are_computed_once(
    asked: Asked, max_tokens: int
) -> None:
    prompts = ["the quick brown", "def main"]
    body = SCORE | {"max_tokens": max_tokens, "temperature": 1.5, "seed": 3, "ignore_eos": True, "n": 3}
    reply = await asked.complete(prompts, **body)
    singles = [await asked.complete(prompt, **SCORE) for prompt in prompts]
    texts = set()
    for i in range(6):
        alone = lists_of(singles[i // 3].choices[0])
        count = len(alone["tokens"])
        lists = lists_of(reply.choices[i])
        assert {name: values[:count] for name, values in lists.items()} == alone
        assert len(lists["tokens"]) == count + max_tokens
        assert reply.choices[i].pieces[0] == prompts[i // 3]
        texts.add(reply.choices[i].text)
    assert len(texts) == (2 if max_tokens == 0 else 6)
    assert reply.usage is not None and reply.usage.completion_tokens == 6 * max_tokens
    stats = asked.provider.load_of(asked.endpoint).stats
    num_sequences = 2 + 2 if max_tokens == 0 else 6 + 2
    assert stats["finished"] == num_sequences


async def test_prompt_logprobs_have_vllms_shape_in_both_kinds(asked: Asked) -> None:
    body = {"prompt": "the quick brown", "prompt_logprobs": 2, "max_tokens": 1}
    (completion,) = (await asked.whole("completions", **body)).choices
    echo = lists_of((await asked.complete("the quick brown", **SCORE)).choices[0])
    scores = completion.prompt_logprobs
    assert scores is not None and scores[0] is None and len(scores) == len(echo["tokens"])
    assert "the quick brown" not in completion.message["text"]
    for told, token, value in zip(scores[1:], echo["tokens"][1:], echo["token_logprobs"][1:], strict=True):
        own, *_ = told.values()
        assert (own["decoded_token"], own["logprob"]) == (token, value)
        assert own["rank"] >= 1 and len(told) in (2, 3)
        assert all(set(entry) == {"logprob", "rank", "decoded_token"} for entry in told.values())
        ranks = {entry["rank"]: entry["logprob"] for entry in told.values()}
        assert {1, 2} <= set(ranks) and ranks[1] >= ranks[2]
    messages = [{"role": "user", "content": "the fox"}]
    (chat,) = (await asked.whole("chat", messages=messages, prompt_logprobs=0, max_tokens=2)).choices
    assert chat.prompt_logprobs is not None
    rendered = "".join(entry["decoded_token"] for told in chat.prompt_logprobs[1:] for entry in told.values())
    assert rendered == "user\nthe fox<|im_end|>\n<|im_start|>assistant\n", (
        "one entry of each, the token itself"
    )


async def test_echo_and_prompt_logprobs_keep_their_own_numbers(asked: Asked) -> None:
    body = SCORE | {"prompt": "the quick", "logprobs": 1, "prompt_logprobs": 4}
    (choice,) = (await asked.whole("completions", **body)).choices
    assert choice.logprobs is not None and choice.prompt_logprobs is not None
    assert all(len(top) <= 2 for top in choice.logprobs["top_logprobs"][1:])
    assert all(len(told) >= 4 for told in choice.prompt_logprobs[1:])


@pytest.mark.parametrize(
    "prompt", ["Once upon a time", "Once  upon", "naïve Привет", "<s>the", "the </s> it"]
)
async def test_a_sentencepiece_prompt_is_echoed_as_it_is_read(tmp_path: Path, prompt: str) -> None:
    endpoint = local_endpoint(tiny_sentencepiece.write_model(tmp_path / "x.gguf"))
    async with provider_of(endpoint, cache=tmp_path) as provider:
        asked = Asked(provider, endpoint)
        (choice,) = (
            await asked.complete(prompt, **(SCORE | {"max_tokens": 3, "ignore_eos": True}))
        ).choices.values()
    lists = lists_of(choice)
    assert lists["tokens"][0] in ("", "<s>"), "the BOS, named where the caller wrote it"
    if "s>" not in prompt:
        assert choice.text.startswith(prompt)
    else:  # its encoding puts spaces behind special tokens, and says so
        assert choice.text.replace(" ", "").startswith(prompt.replace(" ", ""))


class Letters:
    """As much of a tokenizer as pieces need: id i is one byte."""

    bos_id = None
    drops_space = False

    def bytes_of(self, token: int) -> bytes:
        return bytes([token])


def test_pieces_are_whole_characters_and_nothing_is_lost() -> None:
    letters: Tokenizer = Letters()  # type: ignore[assignment]
    raw = "aé🙂".encode()
    assert pieces_of(letters, list(raw), "aé🙂") == ["a", "", "é", "", "", "", "🙂"]
    assert pieces_of(letters, list(raw[:-1]), "aé\ufffd") == ["a", "", "é", "", "", "\ufffd"]


def test_tokens_of_one_text_and_parts_of_characters_keep_their_own_values() -> None:
    # Of SentencePiece the letter and the piece of its byte; names of bytes that are no text.
    names = {i: name_of(raw) for i, raw in {7: b"A", 8: b"A", 9: b"\xe2", 10: b"\xf0\x9f", 11: b""}.items()}
    top = [(8, -0.5), (9, -1.0), (10, -2.0), (11, -2.5)]
    rest = {r"bytes:\xe2": -1.0, r"bytes:\xf0\x9f": -2.0, "": -2.5}
    assert top_of(names, (7, -3.0), top) == {"A": -0.5, **rest, "token_id:7": -3.0}
    assert top_of(names, (8, -0.5), top) == {"A": -0.5, **rest}, "one of them is the chosen one"


def test_impossible_tokens_are_finite_numbers() -> None:
    letters: Tokenizer = Letters()  # type: ignore[assignment]
    tokens = [PromptToken(98, float("-inf"), 7, ((99, -0.5), (100, float("nan"))))]
    told = echoed(letters, ["a", "b"], tokens, 2)
    assert told["token_logprobs"] == [None, -9999.0]
    assert told["top_logprobs"] == [None, {"c": -0.5, "d": -9999.0, "b": -9999.0}]
    assert reported(letters, tokens, 1) == [
        None,
        {
            "98": {"logprob": -9999.0, "rank": 7, "decoded_token": "b"},
            "99": {"logprob": -0.5, "rank": 1, "decoded_token": "c"},
        },
    ]


def test_other_choices_wait_for_their_own_prompts_scores() -> None:
    shared = Shared(2, is_scored_only=False)
    scores = (PromptToken(5, -1.0, 1),)
    early, first, late = TokenEvent("x", 1), TokenEvent("y", 1, prompt_logprobs=scores), TokenEvent("z", 1)
    assert list(shared.release(1, early)) == []
    assert list(shared.release(2, late)) == [(2, late), (3, TokenEvent())]
    assert list(shared.release(0, first)) == [(0, first), (1, TokenEvent(prompt_logprobs=scores)), (1, early)]
    assert list(shared.release(1, late)) == [(1, late)]
