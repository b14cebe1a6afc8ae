"""Together and Fireworks, spoken over real sockets, reached through the real litellm in its worker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ionrouter.errors import FailureClass
from ionrouter.providers.litellm import LiteLLMProvider
from ionrouter.schema.usage import Usage
from tests.support import wire
from tests.support.endpoints import HELLO, collect
from tests.support.hosted import KEY, PROVIDERS, SHAPES, hosted
from tests.support.upstream import (
    Upstream,
    chat_json,
    chat_stream,
    chunk,
    completion_json,
    completion_stream,
    embeddings_json,
    error,
    json_response,
    sse,
    usage,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")
HI, STOP = chunk({"content": "hi"}), chunk({}, "stop")
TOOLS = [{"type": "function", "function": {"name": n, "parameters": {"type": "object"}}} for n in "fg"]


@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_stream_arrives_with_native_reason_and_real_usage(
    litellm: LiteLLMProvider, name: str
) -> None:
    with Upstream(SHAPES[name][0](["A", "B"])) as up:
        answer = await collect(litellm, hosted(up, name))
        assert up.requests[0].json()["stream_options"] == {"include_usage": True}
        assert up.requests[0].json()["model"].endswith("up-model")
    native, cached = {"together_ai": ("eos", 0), "fireworks_ai": ("stop", 3)}[name]
    assert answer.text() == "AB"
    assert answer.finishes() == {0: ("stop", native)}
    assert answer.usages() == [Usage(5, 2, cached)]


@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_whole_answer_arrives(litellm: LiteLLMProvider, name: str) -> None:
    with Upstream(SHAPES[name][1]("hello", "length")) as up:
        answer = (await collect(litellm, hosted(up, name, stream=False))).complete
        assert not up.requests[0].json().get("stream")
    assert answer.choices[0].message == {"role": "assistant", "content": "hello"}
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 2)


async def test_a_whole_answer_keeps_its_native_reason(litellm: LiteLLMProvider) -> None:
    with Upstream(wire.together_json("hello", "eos")) as up:
        (choice,) = (await collect(litellm, hosted(up, "together_ai", stream=False))).complete.choices
    assert (choice.finish_reason, choice.native_finish_reason) == ("stop", "eos")


@pytest.mark.parametrize("name", PROVIDERS)
async def test_tool_calls_arrive_in_a_stream_and_whole(litellm: LiteLLMProvider, name: str) -> None:
    """G20 through litellm: calls without index stay two."""
    calls = [
        {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"id": "t2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    events = [chunk({"role": "assistant", "tool_calls": [call]}) for call in calls]
    body = {**HELLO, "tools": TOOLS, "tool_choice": "auto"}
    with Upstream() as up:
        up.enqueue(
            sse([*events, chunk({}, "tool_calls")]), SHAPES[name][1](None, "tool_calls", tool_calls=calls)
        )
        streamed = await collect(litellm, hosted(up, name, body))
        whole = (await collect(litellm, hosted(up, name, body, stream=False))).complete
        assert up.requests[0].json()["tools"] == TOOLS
    assert streamed.tool_calls() == [("t1", "f", '{"a":1}'), ("t2", "g", "{}")]
    assert streamed.finishes() == {0: ("tool_calls", "tool_calls")}
    assert whole.choices[0].message["tool_calls"] == calls


async def test_reasoning_arrives_under_our_name(litellm: LiteLLMProvider) -> None:
    with Upstream(sse([chunk({"reasoning_content": "hm"}), HI, STOP])) as up:
        answer = await collect(litellm, hosted(up, "together_ai"))
    assert (answer.text(key="reasoning"), answer.text()) == ("hm", "hi")


@pytest.mark.parametrize("name", [*PROVIDERS, "openai", "hosted_vllm", "deepseek"])
async def test_choices_keep_their_index(litellm: LiteLLMProvider, name: str) -> None:
    """G32, which litellm's own chunks get wrong."""
    events = [chunk({"content": "A"}), chunk({"content": "B"}, index=1), chunk({}, "stop", index=1),
              chunk({"content": "a"}), chunk({}, "length")]  # fmt: skip
    with Upstream(sse(events)) as up:
        answer = await collect(litellm, hosted(up, name, {**HELLO, "n": 2}))
    assert (answer.text(0), answer.text(1)) == ("Aa", "B")
    assert answer.finishes() == {0: ("length", "length"), 1: ("stop", "stop")}


async def test_usage_that_nobody_sent_is_not_made_up(litellm: LiteLLMProvider) -> None:
    with Upstream(sse([HI, STOP])) as up:
        for name in (*PROVIDERS, "openai"):
            answer = await collect(litellm, hosted(up, name))
            assert (answer.text(), answer.usages()) == ("hi", [])


async def test_usage_on_the_finish_chunk_and_again_counts_once(litellm: LiteLLMProvider) -> None:
    """G109."""
    with Upstream(sse([HI, {**STOP, "usage": usage(10, 3)}, chunk(usage=usage(10, 3))])) as up:
        assert (await collect(litellm, hosted(up, "together_ai"))).usages() == [Usage(10, 3)]


async def test_rerank_passes_in_the_providers_own_dialect(litellm: LiteLLMProvider) -> None:
    rows = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.2}]
    with Upstream() as up:
        up.enqueue(json_response({"id": "r", "results": rows, "usage": {"total_tokens": 7}}))
        body = {"query": "q", "documents": ["a", {"text": "b"}], "top_n": 2}
        ranked = await collect(litellm, hosted(up, "together_ai", body, kind="rerank", stream=False))
        (sent,) = up.requests
    assert sent.path.endswith("/rerank")
    assert {name: sent.json()[name] for name in ("query", "documents", "top_n")} == {
        "query": "q",
        "documents": ["a", "b"],
        "top_n": 2,
    }
    assert ranked.complete is not None
    assert [row["index"] for row in ranked.complete.data] == [1, 0]


async def test_reranks_carry_the_providers_headers_and_options(litellm: LiteLLMProvider) -> None:
    rows = [{"index": 0, "relevance_score": 0.9}]
    with Upstream(json_response({"id": "r", "results": rows})) as up:
        body = {"query": "q", "documents": [{"text": "a", "title": "t"}], "max_tokens_per_doc": 9}
        options = {"max_tokens_per_doc": 7}
        endpoint = {"headers": {"X-Mine": "b"}}
        asked = hosted(up, "cohere", body, kind="rerank", stream=False, options=options, endpoint=endpoint)
        await collect(litellm, asked)
        (sent,) = up.requests
    assert sent.headers["x-mine"] == "b"
    assert sent.json()["max_tokens_per_doc"] == 7
    assert sent.json()["documents"] == [{"text": "a", "title": "t"}]


async def test_completions_and_embeddings_pass(litellm: LiteLLMProvider) -> None:
    with Upstream() as up:
        up.enqueue(completion_stream(["A", "B"]), completion_json("t"), embeddings_json([[1.0, 2.0]]))
        prompt = {"prompt": "x", "max_tokens": 3}
        stream = await collect(litellm, hosted(up, "together_ai", prompt, kind="completions"))
        whole = await collect(litellm, hosted(up, "together_ai", prompt, kind="completions", stream=False))
        vectors = await collect(
            litellm, hosted(up, "together_ai", {"input": "x"}, kind="embeddings", stream=False)
        )
        assert [r.path for r in up.requests] == ["/v1/completions", "/v1/completions", "/v1/embeddings"]
    assert (stream.text(key="text"), stream.finishes()) == ("AB", {0: ("stop", "stop")})
    assert whole.complete.choices[0].message == {"text": "t"}
    assert vectors.complete.data[0]["embedding"] == [1.0, 2.0]


async def test_vectors_that_were_not_asked_for_are_a_failure(litellm: LiteLLMProvider) -> None:
    with Upstream(embeddings_json([[1.0, 2.0]])) as up:
        for body in ({"input": ["x", "y"]}, {"input": "x", "dimensions": 3}):
            asked = hosted(up, "together_ai", body, kind="embeddings", stream=False)
            error = (await collect(litellm, asked)).error
            assert error is not None
            assert (error.failure, error.code) == (FailureClass.TRANSIENT, "malformed")


async def test_many_streams_at_once_stay_apart(litellm: LiteLLMProvider) -> None:
    with Upstream(lambda r: chat_stream([r.json()["messages"][0]["content"]] * 3, pause_s=0.01)) as up:
        bodies = [{"messages": [{"role": "user", "content": str(i)}]} for i in range(20)]
        answers = await asyncio.gather(
            *(collect(litellm, hosted(up, "together_ai", body)) for body in bodies)
        )
    assert [a.text() for a in answers] == [str(i) * 3 for i in range(20)]


@pytest.mark.parametrize("name", PROVIDERS)
async def test_only_client_fields_and_our_headers_go_out(litellm: LiteLLMProvider, name: str) -> None:
    """G125, G140, G141, G127: an allow-list of fields, built headers, the big integer exact."""
    known = {"temperature": 0.5, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "stop": ["x"],
             "seed": 9007199254740993, "logit_bias": {"5": 1}, "max_tokens": 5}  # fmt: skip
    with Upstream() as evil, Upstream(chat_json("x")) as up:
        switches = {
            "api_base": evil.base_url, "base_url": evil.base_url, "api_key": "k",
            "custom_llm_provider": "openai", "model_list": [], "mock_response": "m",
            "fallbacks": [{"model": "openai/x", "api_base": evil.base_url}],
            "extra_headers": {"Authorization": "Bearer x"}, "extra_body": {"api_base": evil.base_url},
            "metadata": {"api_base": evil.base_url}, "litellm_params": {}, "num_retries": 3, "route_id": 1,
        }  # fmt: skip
        request = hosted(up, name, {**HELLO, **known, **switches}, stream=False, options=switches)
        answer = await collect(litellm, request)
        assert evil.requests == []
        (seen,) = up.requests
    assert answer.error is None
    sent = seen.json()
    assert {k: sent[k] for k in known} == known
    # The last two come from the caller's options for this provider, and only from there.
    assert set(sent) - set(known) <= {"model", "messages", "stream", "route_id", "metadata"}
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert seen.headers["user-agent"].startswith("ionrouter/")
    assert set(seen.headers) <= {"host", "accept", "accept-encoding", "connection", "user-agent",
                                 "authorization", "content-type", "content-length"}  # fmt: skip


async def test_a_switch_hidden_in_a_tool_or_a_message_switches_nothing(litellm: LiteLLMProvider) -> None:
    """G128."""
    with Upstream() as evil, Upstream(chat_json("x")) as up:
        hidden = {"api_base": evil.base_url, "base_url": evil.base_url, "api_key": "k"}
        body = {
            "messages": [{"role": "user", "content": "hi", **hidden}],
            "tools": [{**TOOLS[0], **hidden}],
            "tool_choice": {"type": "function", "function": {"name": "f"}, **hidden},
        }
        for name in (*PROVIDERS, "openai"):
            answer = await collect(litellm, hosted(up, name, body, stream=False))
            assert answer.error is None
        assert evil.requests == []
        assert [r.headers["authorization"] for r in up.requests] == [f"Bearer {KEY}"] * 3


async def test_a_null_content_reaches_the_upstream(litellm: LiteLLMProvider) -> None:
    """G133."""
    call = {"id": "k7", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "how warm?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "k7", "content": "21"},
    ]
    with Upstream(chat_json("x")) as up:
        for name in (*PROVIDERS, "openai"):
            await collect(litellm, hosted(up, name, {"messages": messages}, stream=False))
        assert all(r.json()["messages"] == messages for r in up.requests)


@pytest.mark.parametrize("name", [*PROVIDERS, "openai"])
async def test_a_lone_surrogate_in_the_prompt_is_replaced(litellm: LiteLLMProvider, name: str) -> None:
    """G143."""
    with Upstream(chat_json("x")) as up:
        body = {"messages": [{"role": "user", "content": "a\ud83d🌍"}]}
        assert (await collect(litellm, hosted(up, name, body, stream=False))).error is None
        assert up.requests[0].json()["messages"][0]["content"] == "a\ufffd🌍"


async def test_cookies_of_an_upstream_are_not_sent_back(litellm: LiteLLMProvider) -> None:
    with Upstream(error(500, headers={"Set-Cookie": "s=1"})) as up:
        for _ in range(2):
            await collect(litellm, hosted(up, "together_ai", stream=False))
        assert ["cookie" in r.headers for r in up.requests] == [False, False]


async def test_the_key_is_in_neither_arguments_nor_environment_of_the_worker(
    litellm: LiteLLMProvider,
) -> None:
    for name in ("cmdline", "environ"):
        assert KEY.encode() not in await asyncio.to_thread(
            Path(f"/proc/{litellm.worker.pid}/{name}").read_bytes
        )
    assert KEY not in litellm.worker.last_words()
