"""Structured outputs and tool calls of the engine inside, through the stock client: what ends is valid."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import jsonschema
import pytest
from openai import AsyncOpenAI, BadRequestError
from pydantic import BaseModel

from ionrouter.settings import shipped_routes
from tests.support.json_schemas import schemas
from tests.support.server import Server, running_server

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("local-model")]

MODEL = "huggingfacetb/smollm2-135m-instruct"


class Pet(BaseModel):
    name: str
    kind: Literal["cat", "dog", "bird"]
    age: int


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("structured"), shipped_routes()) as running:
        yield running


@pytest.fixture
async def client(local: Server) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=local.base_url, api_key="unused", max_retries=0, timeout=300) as stock:
        yield stock


def said(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


async def test_the_stock_clients_parse_gives_the_class_it_was_asked_for(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.parse(
        model=MODEL, messages=said("Invent a pet."), response_format=Pet, max_tokens=60, temperature=0
    )
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Pet)


async def test_random_schemas_at_once_are_each_followed(client: AsyncOpenAI) -> None:
    asked = schemas(seed=7, count=16)

    async def one(index: int, schema: dict[str, Any]) -> tuple[str | None, str]:
        answer = await client.chat.completions.create(
            model=MODEL,
            messages=said(f"An example of {json.dumps(schema)}"),
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
            temperature=1,
            seed=index,
            max_tokens=200,
        )
        return answer.choices[0].finish_reason, answer.choices[0].message.content or ""

    answers = await asyncio.gather(*(one(index, schema) for index, schema in enumerate(asked)))
    ended = [
        (text, schema) for (finish, text), schema in zip(answers, asked, strict=True) if finish == "stop"
    ]
    for text, schema in ended:
        jsonschema.validate(json.loads(text), schema)
        assert len(json.loads(text)) >= len(schema["required"])
    assert len(ended) >= 12


async def test_streamed_alone_and_in_company_the_same_text(client: AsyncOpenAI) -> None:
    async def streamed() -> str:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=said("Invent a pet."),
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "pet", "schema": Pet.model_json_schema(), "strict": True},
            },
            seed=3,
            max_tokens=60,
            stream=True,
        )
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

    alone = await streamed()
    free = client.chat.completions.create(model=MODEL, messages=said("Tell me a story."), max_tokens=60)
    *together, _ = await asyncio.gather(streamed(), streamed(), free)
    assert together == [alone, alone]
    Pet.model_validate_json(alone)


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"guided_choice": ["left", "right"]}, "left|right"),
        ({"guided_regex": "[0-9]{3}-[a-f]{2}"}, "[0-9]{3}-[a-f]{2}"),
        ({"guided_grammar": 'root ::= "<" [xyz]+ ">"'}, "<[xyz]+>"),
        ({"structured_outputs": {"choice": ["été", "hiver"]}}, "été|hiver"),
    ],
    ids=str,
)
async def test_other_forms_are_followed_to_their_end(
    client: AsyncOpenAI, form: dict[str, Any], pattern: str
) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=said("Which?"), max_tokens=40, seed=1, extra_body=form
    )
    text = answer.choices[0].message.content or ""
    ended = answer.choices[0].finish_reason == "stop"
    assert re.fullmatch(pattern, text) if ended else re.match(pattern.split("]")[0] + "]", text)


async def test_json_mode_is_an_object_and_its_choices_differ(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=said('Reply with {"color": "..."} and a color.'),
        response_format={"type": "json_object"},
        n=4,
        seed=5,
        max_tokens=120,
    )
    ended = [c.message.content or "" for c in answer.choices if c.finish_reason == "stop"]
    assert ended
    assert all(isinstance(json.loads(text), dict) for text in ended)
    assert len({c.message.content for c in answer.choices}) > 1


async def test_a_schema_that_cannot_be_followed_is_a_400_that_names_the_place(client: AsyncOpenAI) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(BadRequestError) as raised:
        await client.chat.completions.create(
            model=MODEL,
            messages=said("Hi"),
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        )
    assert "response_format.json_schema.schema.properties.x.uniqueItems" in str(raised.value)


async def test_a_biased_token_is_all_that_comes(client: AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model=MODEL, prompt="Hello", max_tokens=5, logit_bias={"33": 100}, temperature=0
    )
    assert answer.choices[0].text == "1" * 5


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
        },
    },
}
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}},
            "required": ["a"],
        },
    },
}


def arguments_are_valid(call: Any) -> bool:
    tool = {tool["function"]["name"]: tool for tool in (WEATHER, ADD)}[call.function.name]
    jsonschema.validate(json.loads(call.function.arguments), tool["function"]["parameters"])
    return True


async def test_a_required_call_is_made_with_valid_arguments(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=said("What is the weather in Paris?"),
        tools=[WEATHER, ADD],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=120,
        seed=1,
    )
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content or "") == ("tool_calls", "")
    (call,) = choice.message.tool_calls or ()
    assert call.id.startswith("call_")
    assert arguments_are_valid(call)


async def test_a_named_tool_is_the_one_that_is_called_streamed_in_pieces(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=said("What is the weather in Paris?"),
        tools=[WEATHER, ADD],
        tool_choice={"type": "function", "function": {"name": "add"}},
        max_tokens=120,
        seed=2,
        stream=True,
    )
    names, pieces, finishes = [], [], []
    async for chunk in stream:
        for choice in chunk.choices:
            finishes.append(choice.finish_reason)
            for call in choice.delta.tool_calls or ():
                assert call.index == 0
                names += [call.function.name] if call.function and call.function.name else []
                pieces.append(call.function.arguments or "" if call.function else "")
    assert names == ["add"]
    assert list(json.loads("".join(pieces))) == ["a"]
    assert [finish for finish in finishes if finish] == ["tool_calls"]


async def test_results_of_calls_go_back_and_are_answered(client: AsyncOpenAI) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=[
            *said("What is the weather in Paris?"),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 21 C"},
        ],
        tools=[WEATHER],
        tool_choice="none",
        max_tokens=40,
        temperature=0,
    )
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.choices[0].message.content
    assert not answer.choices[0].message.tool_calls


async def test_tools_and_a_schema_leave_a_call_or_an_answer_by_the_schema(client: AsyncOpenAI) -> None:
    schema = {"type": "object", "properties": {"sky": {"enum": ["blue", "grey"]}}, "required": ["sky"]}
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=said("Which color is the sky?"),
        tools=[ADD],
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        n=4,
        seed=3,
        max_tokens=100,
    )
    assert any(choice.finish_reason != "length" for choice in answer.choices)
    for choice in answer.choices:
        if choice.finish_reason == "tool_calls":
            assert all(arguments_are_valid(call) for call in choice.message.tool_calls or ())
        elif choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.message.content or ""), schema)


async def test_a_strict_tool_that_cannot_be_followed_is_a_400_that_names_the_place(
    client: AsyncOpenAI,
) -> None:
    function = {"name": "f", "strict": True, "parameters": {"type": "array", "uniqueItems": True}}
    with pytest.raises(BadRequestError) as raised:
        await client.chat.completions.create(
            model=MODEL, messages=said("Hi"), tools=[{"type": "function", "function": function}]
        )
    assert "tools[0].function.parameters.uniqueItems" in str(raised.value)
