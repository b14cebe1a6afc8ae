"""The stock pydantic-ai package with its OpenRouter model, over an openai client with base_url changed."""

from __future__ import annotations

import asyncio
from typing import Any

from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import ModelRequest, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openrouter import OpenRouterModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openrouter import OpenRouterProvider
from pydantic_ai.tools import ToolDefinition
from steps import BASE_URL, KEY, TIMEOUT_S, WEATHER, play, refusals

ASKED = [ModelRequest.user_text_prompt("hi")]
FUNCTION = WEATHER["function"]
TOOLS = ModelRequestParameters(
    function_tools=[
        ToolDefinition(
            name=FUNCTION["name"],
            description=FUNCTION["description"],
            parameters_json_schema=FUNCTION["parameters"],
        )
    ]
)


class Place(BaseModel):
    """A place and its temperature."""

    city: str
    degrees: int


def model(name: str, key: str = KEY) -> OpenRouterModel:
    client = AsyncOpenAI(base_url=BASE_URL, api_key=key, max_retries=0, timeout=TIMEOUT_S)
    profile = OpenAIModelProfile(supports_json_schema_output=True)
    return OpenRouterModel(name, provider=OpenRouterProvider(openai_client=client), profile=profile)


async def answer(name: str, key: str = KEY, tools: Any = None, provider: Any = None) -> Any:
    settings: Any = {"openrouter_provider": provider} if provider else None
    async with model(name, key) as chosen:
        return await model_request(chosen, ASKED, model_settings=settings, model_request_parameters=tools)


async def stream(name: str, tools: Any = None) -> tuple[Any, int]:
    """The whole answer joined from its events, and how many came."""
    async with (
        model(name) as chosen,
        model_request_stream(chosen, ASKED, model_request_parameters=tools) as events,
    ):
        num = len([event async for event in events])
        return events.get(), num


def told(response: Any) -> dict[str, Any]:
    return {
        "text": "".join(part.content for part in response.parts if isinstance(part, TextPart)),
        "reasoning": "".join(part.content for part in response.parts if isinstance(part, ThinkingPart)),
        "finish": response.finish_reason,
        "model": response.model_name,
        "provider": response.provider_details["downstream_provider"],
        "tokens": response.usage.input_tokens + response.usage.output_tokens,
        "cost": response.provider_details.get("cost"),
    }


def called(response: Any) -> dict[str, Any]:
    (call,) = [part for part in response.parts if isinstance(part, ToolCallPart)]
    return {
        "id": call.tool_call_id,
        "name": call.tool_name,
        "arguments": call.args_as_json_str(),
        "num_calls": 1,
    }


def whole() -> dict[str, Any]:
    return told(asyncio.run(answer("acme/hello")))


def streamed() -> dict[str, Any]:
    response, num_events = asyncio.run(stream("acme/hello"))
    return {**told(response), "events": num_events}


def tool() -> dict[str, Any]:
    return called(asyncio.run(answer("acme/tools", tools=TOOLS)))


def tool_streamed() -> dict[str, Any]:
    return called(asyncio.run(stream("acme/tools", TOOLS))[0])


def structured() -> dict[str, Any]:
    agent = Agent(model("acme/json"), output_type=NativeOutput(Place, strict=True))
    return {"value": agent.run_sync("hi").output.model_dump()}


def breaks() -> dict[str, Any]:
    asyncio.run(stream("acme/breaks"))
    return {}


def ask(name: str, **more: Any) -> Any:
    return asyncio.run(answer(name, **more))


play(
    [
        *((f.__name__, f) for f in (whole, streamed, tool, tool_streamed, structured, breaks)),
        *refusals(ask),
    ]
)
