"""The stock openai package for Python, with only base_url changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.support.accounts import Bank
from tests.support.server import Server

HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="unused", max_retries=0, timeout=60) as stock:
        yield stock


def test_a_whole_answer(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="acme/hello", messages=HI)  # type: ignore[arg-type]
    assert answer.choices[0].message.content == "Hello from the router"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "acme/hello"
    assert answer.provider == "Fake"  # type: ignore[attr-defined]
    assert answer.choices[0].message.reasoning == "thinking"  # type: ignore[attr-defined]
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.cost > 0  # type: ignore[attr-defined]


def test_a_stream(client: OpenAI) -> None:
    stream = client.chat.completions.create(model="acme/hello", messages=HI, stream=True)  # type: ignore[call-overload]
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello from the router"
    assert chunks[-1].usage.completion_tokens > 0
    assert {c.id for c in chunks} == {chunks[0].id}


def test_the_streaming_helper_accumulates(client: OpenAI) -> None:
    with client.chat.completions.stream(model="acme/hello", messages=HI) as stream:  # type: ignore[arg-type]
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Hello from the router"


@pytest.mark.parametrize("stream", [True, False])
def test_tool_calls(client: OpenAI, stream: bool) -> None:
    answer = client.chat.completions.create(  # type: ignore[call-overload]
        model="acme/tools", messages=HI, tools=TOOLS, stream=stream
    )
    if stream:
        calls = [call for c in answer for ch in c.choices for call in ch.delta.tool_calls or ()]
        arguments = "".join(call.function.arguments or "" for call in calls)
    else:
        calls = answer.choices[0].message.tool_calls
        arguments = calls[0].function.arguments
        assert answer.choices[0].finish_reason == "tool_calls"
    assert calls[0].id == "call_1"
    assert calls[0].function.name == "weather"
    assert arguments == '{"city":"Oslo"}'


def test_legacy_completions(client: OpenAI) -> None:
    answer = client.completions.create(model="acme/hello", prompt="Say")
    assert answer.choices[0].text == "Hello from the router"
    pieces = client.completions.create(model="acme/hello", prompt="Say", stream=True)
    assert "".join(c.choices[0].text for c in pieces if c.choices) == "Hello from the router"


def test_embeddings(client: OpenAI) -> None:
    """The client asks for base64 unless told otherwise, and decodes it."""
    answer = client.embeddings.create(model="acme/embed", input=["a", "b"])
    assert [row.embedding for row in answer.data] == [[0.0, 1.0], [1.0, 1.0]]
    plain = client.embeddings.create(model="acme/embed", input="a", encoding_format="float")
    assert plain.data[0].embedding == [0.0, 1.0]
    assert answer.usage.prompt_tokens == 10
    with pytest.raises(openai.BadRequestError, match="does not make embeddings"):
        client.embeddings.create(model="acme/hello", input="a")


def test_models(client: OpenAI) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert "acme/hello" in listed
    assert listed["acme/hello"].owned_by == "acme"
    assert listed["acme/hello"].created == 1733443200
    assert client.models.retrieve("acme/hello").id == "acme/hello"


@pytest.mark.parametrize("stream", [True, False])
def test_errors_have_their_types(client: OpenAI, stream: bool) -> None:
    def ask(model: str, **more: object) -> object:
        return client.chat.completions.create(model=model, messages=HI, stream=stream, **more)  # type: ignore[call-overload]

    with pytest.raises(openai.BadRequestError, match="acme/nowhere is not a valid model ID"):
        ask("acme/nowhere")
    with pytest.raises(openai.BadRequestError, match="temperature") as bad:
        ask("acme/hello", temperature=7)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.RateLimitError, match=r"slow down|rate-limited upstream") as limited:
        ask("acme/limited")
    assert 1 <= int(limited.value.response.headers["retry-after"]) <= 20
    with pytest.raises(openai.InternalServerError, match="all busy") as down:
        ask("acme/down")
    assert down.value.status_code == 503


@pytest.mark.parametrize("stream", [True, False])
def test_refusals_have_their_types(bank: Bank, poor_key: str, stream: bool) -> None:
    def ask(key: str, **more: object) -> object:
        with OpenAI(base_url=bank.server.base_url, api_key=key, max_retries=0, timeout=60) as stock:
            return stock.chat.completions.create(model="acme/hello", messages=HI, stream=stream, **more)  # type: ignore[call-overload]

    with pytest.raises(openai.AuthenticationError, match="this API key is not valid"):
        ask("sk-or-v1-" + "0" * 64)
    with pytest.raises(openai.APIStatusError, match="this key's limit is") as unpaid:
        ask(poor_key)
    assert unpaid.value.status_code == 402
    with pytest.raises(openai.NotFoundError, match=r"not in provider.only"):
        ask(bank.key, extra_body={"provider": {"only": ["nowhere"]}})


class Place(BaseModel):
    city: str
    degrees: int


def test_structured_output(client: OpenAI) -> None:
    answer = client.chat.completions.parse(model="acme/json", messages=HI, response_format=Place)  # type: ignore[arg-type]
    assert answer.choices[0].message.parsed == Place(city="Oslo", degrees=4)
    with client.chat.completions.stream(model="acme/json", messages=HI, response_format=Place) as stream:  # type: ignore[arg-type]
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == Place(city="Oslo", degrees=4)


def test_a_stream_that_breaks_raises(client: OpenAI) -> None:
    seen = []
    with pytest.raises(openai.APIError, match="wire cut"):
        for chunk in client.chat.completions.create(model="acme/breaks", messages=HI, stream=True):  # type: ignore[call-overload]
            seen.append(chunk.choices[0].delta.content or "")
    assert "".join(seen) == "word0 word1"


def test_headers_name_the_route_and_the_generation(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="acme/hello", messages=HI)  # type: ignore[arg-type]
    assert raw.headers["x-generation-id"] == raw.parse().id
    assert raw.headers["x-ionrouter-route"].startswith("fake/acme/hello; ")


def test_both_prefixes_serve(server: Server) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as stock:
        assert stock.chat.completions.create(model="acme/hello", messages=HI).choices  # type: ignore[arg-type]


async def test_many_streams_at_once(server: Server) -> None:
    async with AsyncOpenAI(base_url=server.base_url, api_key="unused", max_retries=0, timeout=120) as stock:

        async def one() -> str:
            stream = await stock.chat.completions.create(model="acme/slow", messages=HI, stream=True)  # type: ignore[call-overload]
            return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

        answers = await asyncio.gather(*(one() for _ in range(32)))
    assert set(answers) == {" ".join(f"word{i}" for i in range(40))}


async def test_leaving_a_stream_ends_it_on_the_server(server: Server) -> None:
    async with AsyncOpenAI(base_url=server.base_url, api_key="unused", max_retries=0) as stock:
        stream = await stock.chat.completions.create(model="acme/slow", messages=HI, stream=True)  # type: ignore[call-overload]
        await anext(stream)
        generation = stream.response.headers["x-generation-id"]
        await stream.close()
    records = await asyncio.to_thread(server.wait_for_event, "request_finished", generation)
    (record,) = [r for r in records if r["request"] == generation]
    assert record["status"] == 499
