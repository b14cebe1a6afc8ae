"""The stock instructor package in its OpenRouter mode, with only base_url changed."""

from __future__ import annotations

from typing import Any

import instructor
from openai import OpenAI
from pydantic import BaseModel
from steps import BASE_URL, HI, KEY, TIMEOUT_S, play, refusals


class Place(BaseModel):
    """A place and its temperature."""

    city: str
    degrees: int


class weather(BaseModel):
    """The weather of a city."""

    city: str


def client(mode: instructor.Mode, model: str, key: str = KEY) -> Any:
    stock = OpenAI(base_url=BASE_URL, api_key=key, max_retries=0, timeout=TIMEOUT_S)
    return instructor.from_openrouter(stock, model=model, mode=mode)


def structured() -> dict[str, Any]:
    """The schema goes as response_format, and the answer comes back as the class."""
    place, raw = client(instructor.Mode.OPENROUTER_STRUCTURED_OUTPUTS, "acme/json").create_with_completion(
        messages=HI, response_model=Place, max_retries=0
    )
    return {
        "value": place.model_dump(),
        "tokens": raw.usage.total_tokens,
        "finish": raw.choices[0].finish_reason,
    }


def structured_streamed() -> dict[str, Any]:
    parts = list(
        client(instructor.Mode.OPENROUTER_STRUCTURED_OUTPUTS, "acme/json").create_partial(
            messages=HI, response_model=Place, max_retries=0
        )
    )
    return {"value": parts[-1].model_dump()}


def tool() -> dict[str, Any]:
    found = client(instructor.Mode.TOOLS, "acme/tools").create(
        messages=HI, response_model=weather, max_retries=0
    )
    return {"value": found.model_dump()}


def tool_streamed() -> dict[str, Any]:
    parts = list(
        client(instructor.Mode.TOOLS, "acme/tools").create_partial(
            messages=HI, response_model=weather, max_retries=0
        )
    )
    return {"value": parts[-1].model_dump()}


def whole() -> dict[str, Any]:
    """Without a class it is the openai client under it that answers."""
    answer = client(instructor.Mode.TOOLS, "acme/hello").create(messages=HI, response_model=None)
    return {"text": answer.choices[0].message.content, "tokens": answer.usage.total_tokens}


def streamed() -> dict[str, Any]:
    chunks = list(
        client(instructor.Mode.TOOLS, "acme/hello").create(messages=HI, response_model=None, stream=True)
    )
    return {"text": "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)}


def breaks() -> dict[str, Any]:
    ask = client(instructor.Mode.TOOLS, "acme/breaks").create
    return {"answered": len(list(ask(messages=HI, response_model=None, stream=True)))}


def ask(model: str, *, key: str = KEY, provider: Any = None) -> Any:
    more = {"extra_body": {"provider": provider}} if provider else {}
    chosen = client(instructor.Mode.OPENROUTER_STRUCTURED_OUTPUTS, model, key)
    return chosen.create(messages=HI, response_model=Place, max_retries=0, **more)


play(
    [
        *((f.__name__, f) for f in (whole, streamed, tool, tool_streamed, structured, structured_streamed)),
        ("breaks", breaks),
        *refusals(ask),
    ]
)
