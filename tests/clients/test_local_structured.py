"""Structured outputs of the engine inside, through the stock client: whatever ends by itself is valid."""

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
