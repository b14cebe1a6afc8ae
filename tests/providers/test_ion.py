"""Ion as a provider, over a tiny model with random weights: shapes, ends, isolation and refusals."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.providers.base import QueueTime
from ionrouter.providers.ion import IonProvider
from ionrouter.schema.request import Kind
from tests.support.ion_provider import ask, ion_request, local_endpoint, provider_of
from tests.support.tiny_model import POISON, write_tiny_model

GUARD_S = 60.0
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "the quick brown fox"}]}
SHOWN = {"type": "image_url", "image_url": {}}
NOW = {"type": "function", "function": {"name": "now"}}
GREEDY = HI | {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose answers can be longer than any test waits: they run until somebody ends them."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "endless.gguf", context_length=65_536)


async def blocks_are_free(provider: IonProvider, endpoint: Any) -> None:
    for _ in range(int(GUARD_S / 0.02)):
        load = provider.load_of(endpoint)
        if load.running == 0 and load.blocks_free == load.blocks_total:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"blocks are still in use: {load}")


async def is_running(provider: IonProvider, endpoint: Any) -> None:
    await _has(provider, endpoint, "running")


async def is_waiting(provider: IonProvider, endpoint: Any) -> None:
    await _has(provider, endpoint, "waiting")


async def _has(provider: IonProvider, endpoint: Any, what: str) -> None:
    for _ in range(int(GUARD_S / 0.01)):
        if getattr(provider.load_of(endpoint), what):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"nothing is {what}")


async def test_a_chat_answer_is_role_content_finish_usage(model: Path) -> None:
    endpoint = local_endpoint(model)
    async with provider_of(endpoint, cache=model.parent) as provider:
        reply = await ask(provider, ion_request(endpoint, GREEDY))
    assert reply.chunks[0].choices[0].delta == {"role": "assistant", "content": ""}
    assert not reply.chunks[0].commits
    assert reply.chunks[-2].choices[0].delta == {} and reply.choices[0].finishes == ["length"]
    assert reply.text and reply.choices[0].roles == ["assistant"]
    assert reply.usage is not None and reply.usage.completion_tokens == 12
    assert reply.usage.prompt_tokens > 4


async def test_a_count_is_what_an_answer_tells_as_its_prompt(model: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}]
    endpoint = local_endpoint(model)
    async with provider_of(endpoint, cache=model.parent) as provider:
        for body in (GREEDY, GREEDY | {"messages": [{"role": "system", "content": "short"}, *HI["messages"]]},
                     GREEDY | {"tools": tools}):  # fmt: skip
            request = ion_request(endpoint, body)
            reply = await ask(provider, request)
            assert reply.usage is not None
            assert await provider.count(request) == reply.usage.prompt_tokens
        too_long = {"messages": [{"role": "user", "content": "the quick brown fox " * 400}]}
        assert await provider.count(ion_request(endpoint, too_long)) > 512
        with pytest.raises(UpstreamError) as refused:
            await provider.count(ion_request(endpoint, {"messages": []}))
        assert refused.value.param == "messages"


async def test_who_comes_second_says_how_long_the_first_kept_it_in_the_queue(model: Path) -> None:
    endpoint = local_endpoint(model, max_running=1)
    body = GREEDY | {"max_tokens": 400}  # longer by far than the three come apart on a busy machine
    requests = [ion_request(endpoint, body) for _ in range(3)]
    async with provider_of(endpoint, cache=model.parent) as provider:
        await asyncio.gather(*(ask(provider, request) for request in requests))
    first, second, third = (request.queue.seconds for request in requests)
    assert first is not None and second is not None and third is not None
    assert 0 <= first < second < third


def test_of_several_choices_the_first_to_begin_ends_the_wait() -> None:
    queue = QueueTime()
    for seconds in (None, 0.3, 0.1, None, 0.2):
        queue.note(seconds)
    assert queue.seconds == 0.1


async def test_nothing_is_said_of_a_queue_that_was_left(endless: Path) -> None:
    endpoint = local_endpoint(endless, max_running=1)
    running, waiting = (ion_request(endpoint, GREEDY | {"max_tokens": 60_000}) for _ in range(2))
    async with provider_of(endpoint, cache=endless.parent) as provider:
        tasks = [asyncio.create_task(ask(provider, running))]
        await is_running(provider, endpoint)
        tasks.append(asyncio.create_task(ask(provider, waiting)))
        await is_waiting(provider, endpoint)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await blocks_are_free(provider, endpoint)
    assert running.queue.seconds is not None
    assert waiting.queue.seconds is None


async def test_the_same_seed_says_the_same_whoever_runs_beside(model: Path) -> None:
    endpoint = local_endpoint(model)
    body = GREEDY | {"temperature": 1.5, "seed": 42}
    async with provider_of(endpoint, cache=model.parent) as provider:
        alone = (await ask(provider, ion_request(endpoint, body))).text
        others = [GREEDY, GREEDY | {"temperature": 2, "repetition_penalty": 2}, body | {"seed": 43}]
        requests = [ion_request(endpoint, each) for each in [*others, body, *others]]
        replies = await asyncio.gather(*(ask(provider, request) for request in requests))
        assert replies[3].text == alone
        assert replies[2].text != alone
        free = [(await ask(provider, ion_request(endpoint, body | {"seed": None}))).text for _ in range(3)]
        assert len(set(free)) > 1, "without a seed every answer is its own"


async def test_every_way_to_turn_top_k_off_says_the_same(model: Path) -> None:
    endpoint = local_endpoint(model)
    body = GREEDY | {"temperature": 1.3, "seed": 9}
    async with provider_of(endpoint, cache=model.parent) as provider:
        off = (await ask(provider, ion_request(endpoint, body))).text
        for top_k in (0, -1, 100_000, 9_999_999):
            assert (await ask(provider, ion_request(endpoint, body | {"top_k": top_k}))).text == off
        greedy = (await ask(provider, ion_request(endpoint, GREEDY))).text
        assert (await ask(provider, ion_request(endpoint, body | {"top_k": 1}))).text == greedy


async def test_min_tokens_keeps_an_answer_going(model: Path) -> None:
    endpoint = local_endpoint(model)
    async with provider_of(endpoint, cache=model.parent) as provider:
        whole = await ask(provider, ion_request(endpoint, GREEDY | {"logprobs": True, "min_tokens": 12}))
        first = whole.choices[0].logprobs[0]["content"][0]["token"]
        stop = GREEDY | {"stop": [first]}
        assert (await ask(provider, ion_request(endpoint, stop))).text == ""
        late = await ask(provider, ion_request(endpoint, stop | {"min_tokens": 5}))
        assert late.usage is not None and late.usage.completion_tokens >= 5


async def test_choices_are_seeded_one_after_the_other(model: Path) -> None:
    endpoint = local_endpoint(model)
    body = GREEDY | {"temperature": 1.5, "max_tokens": 30}
    async with provider_of(endpoint, cache=model.parent) as provider:
        reply = await ask(provider, ion_request(endpoint, body | {"seed": 7, "n": 3}))
        for i in range(3):
            single = await ask(provider, ion_request(endpoint, body | {"seed": 7 + i}))
            assert reply.choices[i].text == single.text
    assert sorted(reply.choices) == [0, 1, 2]
    assert [choice.finishes for choice in reply.choices.values()] == [["length"]] * 3
    assert reply.usage is not None and reply.usage.completion_tokens == 90
    assert reply.usage.prompt_tokens < 60, "the prompt is counted once"


async def test_several_prompts_are_several_choices(model: Path) -> None:
    endpoint = local_endpoint(model)
    base = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
    async with provider_of(endpoint, cache=model.parent) as provider:

        async def complete(prompt: Any, **more: Any) -> Any:
            return await ask(provider, ion_request(endpoint, base | {"prompt": prompt} | more, "completions"))

        singles = [(await complete(prompt)).text for prompt in ("the quick", "def main")]
        both = await complete(["the quick", "def main"], n=2)
        assert [both.choices[i].text for i in range(4)] == [singles[0]] * 2 + [singles[1]] * 2
        ids = [30, 31, 32]
        assert (await complete([ids, ids])).choices[1].text == (await complete(ids)).text
        echoed = await complete("the quick", echo=True)
        assert echoed.text == "the quick" + singles[0]
        only = await complete("the quick", echo=True, max_tokens=0)
        assert (only.text, only.choices[0].finishes) == ("the quick", ["length"])
        assert only.usage is not None and only.usage.completion_tokens == 0


async def test_special_tokens_in_a_raw_prompt_are_the_tokens(model: Path) -> None:
    endpoint = local_endpoint(model)
    async with provider_of(endpoint, cache=model.parent) as provider:
        chat = await ask(provider, ion_request(endpoint, GREEDY))
        raw = "<|im_start|>user\nthe quick brown fox<|im_end|>\n<|im_start|>assistant\n"
        body = {"prompt": raw, "temperature": 0, "max_tokens": 12, "ignore_eos": True}
        completion = await ask(provider, ion_request(endpoint, body, "completions"))
    assert completion.text == chat.text
    assert completion.usage == chat.usage or completion.usage.prompt_tokens == chat.usage.prompt_tokens


async def test_a_second_request_reuses_the_first_ones_prefix_inside_a_tenant(model: Path) -> None:
    endpoint = local_endpoint(model)
    body = GREEDY | {"messages": [{"role": "user", "content": "the lazy dog " * 30}]}
    async with provider_of(endpoint, cache=model.parent) as provider:

        async def cached(tenant: str) -> int:
            reply = await ask(provider, ion_request(endpoint, body, tenant=tenant))
            assert reply.usage is not None
            return reply.usage.cached_tokens

        assert await cached("a") == 0
        assert await cached("a") >= 16
        assert await cached("b") == 0


@pytest.mark.parametrize("prefix_cache", ["isolate", "shared"])
async def test_a_cache_salt_keeps_prefixes_apart_within_a_key(model: Path, prefix_cache: str) -> None:
    endpoint = local_endpoint(model, prefix_cache=prefix_cache)
    body = GREEDY | {"messages": [{"role": "user", "content": "the lazy fox " * 30}]}
    async with provider_of(endpoint, cache=model.parent) as provider:

        async def cached(**salt: object) -> int:
            reply = await ask(provider, ion_request(endpoint, body | salt, tenant="a"))
            assert reply.usage is not None
            return reply.usage.cached_tokens

        assert await cached() == 0
        assert await cached(cache_salt="x") == 0
        assert await cached(cache_salt="x") >= 16
        assert await cached(cache_salt="y") == 0
        assert await cached(cache_salt=None) >= 16
        for odd in ("", 5):
            with pytest.raises(UpstreamError, match="cache_salt"):
                await cached(cache_salt=odd)


async def test_a_shared_prefix_cache_serves_every_tenant(model: Path) -> None:
    endpoint = local_endpoint(model, prefix_cache="shared")
    body = GREEDY | {"messages": [{"role": "user", "content": "the lazy cat " * 30}]}
    async with provider_of(endpoint, cache=model.parent) as provider:
        first = await ask(provider, ion_request(endpoint, body, tenant="a"))
        second = await ask(provider, ion_request(endpoint, body, tenant="b"))
    assert first.usage is not None and second.usage is not None
    assert (first.usage.cached_tokens, second.usage.cached_tokens >= 16) == (0, True)


async def test_chat_logprobs_have_openais_shape(model: Path) -> None:
    endpoint = local_endpoint(model)
    async with provider_of(endpoint, cache=model.parent) as provider:
        body = GREEDY | {"logprobs": True, "top_logprobs": 3}
        reply = await ask(provider, ion_request(endpoint, body))
    entries = [entry for part in reply.choices[0].logprobs for entry in part["content"]]
    assert len(entries) == 12
    for entry in entries:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 3
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"]
        best = entry["top_logprobs"][0]
        assert (best["token"], best["logprob"]) == (entry["token"], entry["logprob"]), "greedy takes the top"


async def test_completion_logprobs_point_into_the_text(model: Path) -> None:
    endpoint = local_endpoint(model)
    async with provider_of(endpoint, cache=model.parent) as provider:
        body = {"prompt": "naïve 汉字", "temperature": 1.8, "seed": 3, "max_tokens": 60, "logprobs": 2}
        reply = await ask(provider, ion_request(endpoint, body | {"ignore_eos": True}, "completions"))
    text, count = reply.text, 0
    for part in reply.choices[0].logprobs:
        lengths = {len(part[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
        assert len(lengths) == 1
        for token, value, top, offset in zip(*(part[k] for k in part), strict=True):
            count += 1
            assert text[offset : offset + len(token)] == token
            assert -9999.0 <= value <= 0 and value in top.values()
    assert count == 60


async def test_a_stop_string_is_never_sent(model: Path) -> None:
    endpoint = local_endpoint(model)
    async with provider_of(endpoint, cache=model.parent) as provider:
        whole = (await ask(provider, ion_request(endpoint, GREEDY | {"max_tokens": 40}))).text
        stop = whole[12:18]
        reply = await ask(provider, ion_request(endpoint, GREEDY | {"max_tokens": 40, "stop": ["\0", stop]}))
    assert reply.text == whole[: whole.index(stop)]
    assert reply.choices[0].finishes == ["stop"]
    assert all(piece for piece in reply.choices[0].pieces)


async def test_the_stop_string_that_ended_an_answer_is_named_and_no_other_end(model: Path) -> None:
    endpoint = local_endpoint(model)
    async with provider_of(endpoint, cache=model.parent) as provider:
        whole = (await ask(provider, ion_request(endpoint, GREEDY | {"max_tokens": 40}))).text
        late, first = whole[20:24], whole[12:15]
        stopped, cut = [
            await ask(provider, ion_request(endpoint, GREEDY | {"max_tokens": most, "stop": stops}))
            for most, stops in ((40, ["\0", late, first]), (3, ["\0"]))
        ]
    for reply, expected in (
        (stopped, ("stop", "stop_sequence", first)),
        (cut, ("length", "length", None)),
    ):
        (ending,) = [c for chunk in reply.chunks for c in chunk.choices if c.finish_reason]
        assert (ending.finish_reason, ending.native_finish_reason, ending.stop_sequence) == expected


async def test_a_dropped_client_gives_its_blocks_back(endless: Path) -> None:
    endpoint = local_endpoint(endless, kv_memory_bytes=128 << 20)
    async with provider_of(endpoint, cache=endless.parent) as provider:
        body = GREEDY | {"max_tokens": 65_000, "n": 4, "temperature": 1}
        async with aclosing(provider.stream(ion_request(endpoint, body))) as chunks:
            async for chunk in chunks:
                if any(choice.delta.get("content") for choice in chunk.choices):
                    break
            assert provider.load_of(endpoint).running > 0
        await blocks_are_free(provider, endpoint)
        task = asyncio.create_task(ask(provider, ion_request(endpoint, body)))
        await is_running(provider, endpoint)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await blocks_are_free(provider, endpoint)


async def refused(
    provider: IonProvider, endpoint: Any, body: dict[str, Any], kind: Kind = "chat"
) -> UpstreamError:
    with pytest.raises(UpstreamError) as raised:
        await ask(provider, ion_request(endpoint, body, kind))
    return raised.value


async def test_a_prompt_beyond_the_context_is_a_400_with_both_lengths(model: Path) -> None:
    endpoint = local_endpoint(model)
    shorter = local_endpoint(model, context_length=64)
    long = {"messages": [{"role": "user", "content": "z " * 2000}]}
    async with provider_of(endpoint, cache=model.parent) as provider:
        for each, length in ((endpoint, 512), (shorter, 64)):
            error = await refused(provider, each, long)
            assert (error.status, error.error_type) == (400, "context_length_exceeded")
            assert f"context length is {length}" in error.message and " tokens" in error.message
        fits = await ask(provider, ion_request(shorter, GREEDY | {"max_tokens": 1000}))
        assert fits.usage is not None and fits.usage.total_tokens == 64
        assert fits.choices[0].finishes == ["length"]


@pytest.mark.parametrize(
    ("kind", "body", "failure", "param"),
    [
        ("chat", {"messages": []}, FailureClass.REQUEST, "messages"),
        ("chat", {"messages": ["x"]}, FailureClass.REQUEST, "messages"),
        ("chat", {"messages": [{"role": "user", "content": "\ud800"}]}, FailureClass.REQUEST, "messages"),
        ("chat", HI | {"top_k": -2}, FailureClass.REQUEST, "top_k"),
        ("chat", HI | {"tools": [{}]}, FailureClass.ENDPOINT_REQUEST, "tools[0]"),
        ("chat", HI | {"tool_choice": "required"}, FailureClass.REQUEST, "tool_choice"),
        (
            "chat",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            FailureClass.ENDPOINT_REQUEST,
            "messages[0].content[0]",
        ),
        (  # with tools in words, a system message comes first, and a result becomes a text of the user's
            "chat",
            {"messages": [*HI["messages"], {"role": "tool", "content": [SHOWN]}], "tools": [NOW]},
            FailureClass.ENDPOINT_REQUEST,
            "messages[1].content[0]",
        ),
        ("completions", {"prompt": ""}, FailureClass.REQUEST, "prompt"),
        ("completions", {"prompt": []}, FailureClass.REQUEST, "prompt"),
        ("completions", {"prompt": [[]]}, FailureClass.REQUEST, "prompt"),
        ("completions", {"prompt": [""]}, FailureClass.REQUEST, "prompt"),
        ("completions", {"prompt": [10**6]}, FailureClass.REQUEST, "prompt"),
        ("completions", {"prompt": ["a"] * 129}, FailureClass.REQUEST, "prompt"),
        ("completions", {"prompt": ["a"] * 65, "n": 2}, FailureClass.REQUEST, "n"),
        ("completions", {"prompt": "\udc00"}, FailureClass.REQUEST, "prompt"),
        ("completions", {}, FailureClass.REQUEST, "prompt"),
        ("embeddings", {"input": "x"}, FailureClass.ENDPOINT_REQUEST, "model"),
    ],
)
async def test_a_bad_request_is_a_400_by_name_and_the_next_one_is_served(
    model: Path, kind: Kind, body: dict[str, Any], failure: FailureClass, param: str
) -> None:
    endpoint = local_endpoint(model)
    async with provider_of(endpoint, cache=model.parent) as provider:
        error = await refused(provider, endpoint, body, kind)
        assert (error.failure, error.status, error.param) == (failure, 400, param)
        assert (await ask(provider, ion_request(endpoint, GREEDY))).text


async def test_a_model_without_a_template_takes_completions_only(tmp_path: Path) -> None:
    endpoint = local_endpoint(write_tiny_model(tmp_path / "base.gguf", template=None))
    async with provider_of(endpoint, cache=tmp_path) as provider:
        error = await refused(provider, endpoint, HI)
        assert error.failure is FailureClass.ENDPOINT_REQUEST and "no chat template" in error.message
        body = {"prompt": "hi", "max_tokens": 3, "ignore_eos": True}
        assert (await ask(provider, ion_request(endpoint, body, "completions"))).usage is not None


async def test_a_templates_refusal_reaches_the_client_in_its_own_words(tmp_path: Path) -> None:
    source = "{{ raise_exception('Only odd conversations are allowed') }}"
    endpoint = local_endpoint(write_tiny_model(tmp_path / "strict.gguf", template=source))
    async with provider_of(endpoint, cache=tmp_path) as provider:
        error = await refused(provider, endpoint, HI)
    assert (error.failure, error.status) == (FailureClass.ENDPOINT_REQUEST, 400)
    assert "Only odd conversations are allowed" in error.message


# Case E20.
async def test_poisoned_logits_are_a_numerical_error(tmp_path: Path) -> None:
    endpoint = local_endpoint(write_tiny_model(tmp_path / "poisoned.gguf", poisoned=True))
    async with provider_of(endpoint, cache=tmp_path) as provider:
        error = await refused(provider, endpoint, {"prompt": [10, POISON, 12]}, "completions")
        assert (error.failure, error.status, error.code) == (FailureClass.TRANSIENT, 500, "numerical_error")
        body = {"prompt": [10, 11, 12], "max_tokens": 3, "ignore_eos": True}
        assert (await ask(provider, ion_request(endpoint, body, "completions"))).usage is not None


async def test_a_model_that_is_not_there_is_a_503_with_its_reason(model: Path, tmp_path: Path) -> None:
    missing = local_endpoint(tmp_path / "nope.gguf")
    unprepared = local_endpoint(model)
    provider = IonProvider(tmp_path)
    provider.prepare([missing])
    try:
        (reason,) = await asyncio.wait_for(provider.wait_ready(), GUARD_S)
        assert "nope.gguf" in reason and provider.load_of(missing).whole_reason == reason
        error = await refused(provider, missing, HI)
        assert (error.failure, error.status) == (FailureClass.TRANSIENT, 503)
        assert "nope.gguf" in error.message
        assert (await refused(provider, unprepared, HI)).message == "not loaded"
    finally:
        await provider.close()


async def test_a_request_during_loading_waits_for_the_model(model: Path) -> None:
    endpoint = local_endpoint(model)
    provider = IonProvider(model.parent)
    provider.prepare([endpoint])
    try:
        assert provider.load_of(endpoint).reason == "loading"
        assert (await ask(provider, ion_request(endpoint, GREEDY))).text
    finally:
        await provider.close()


async def test_equal_settings_share_one_engine(endless: Path) -> None:
    one, two = local_endpoint(endless), local_endpoint(endless, id="ion/other", model_id="other")
    async with provider_of(one, two, cache=endless.parent) as provider:
        task = asyncio.create_task(ask(provider, ion_request(one, GREEDY | {"max_tokens": 65_000})))
        await is_running(provider, two)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
