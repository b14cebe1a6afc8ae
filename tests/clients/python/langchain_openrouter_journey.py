"""The stock langchain-openrouter package, with only base_url changed."""

from __future__ import annotations

from typing import Any

from langchain_openrouter import ChatOpenRouter
from pydantic import BaseModel
from steps import BASE_URL, KEY, TIMEOUT_S, WEATHER, play, refusals


class Place(BaseModel):
    """A place and its temperature."""

    city: str
    degrees: int


def chat(model: str, *, key: str = KEY, provider: Any = None) -> ChatOpenRouter:
    made = ChatOpenRouter(
        model=model,
        api_key=key,
        base_url=BASE_URL,
        max_retries=0,
        timeout=int(TIMEOUT_S * 1000),
        openrouter_provider=provider,
    )
    # max_retries=0 leaves the SDK below its own default: trying again for up to an hour.
    made.client.sdk_configuration.retry_config = None
    return made


def whole() -> dict[str, Any]:
    answer = chat("acme/hello").invoke("hi")
    return {
        "text": answer.content,
        "finish": answer.response_metadata["finish_reason"],
        "model": answer.response_metadata["model_name"],
        "reasoning": answer.additional_kwargs["reasoning_content"],
        "tokens": answer.usage_metadata["total_tokens"],
        "cost": answer.response_metadata["cost"],
    }


def streamed() -> dict[str, Any]:
    chunks = list(chat("acme/hello").stream("hi"))
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    return {
        "text": joined.content,
        "finish": joined.response_metadata["finish_reason"],
        "reasoning": joined.additional_kwargs["reasoning_content"],
        "tokens": joined.usage_metadata["total_tokens"],
        "cost": joined.response_metadata["cost"],
    }


def called(message: Any) -> dict[str, Any]:
    (call,) = message.tool_calls
    return {"id": call["id"], "name": call["name"], "value": call["args"], "num_calls": 1}


def tool() -> dict[str, Any]:
    return called(chat("acme/tools").bind_tools([WEATHER]).invoke("hi"))


def tool_streamed() -> dict[str, Any]:
    chunks = list(chat("acme/tools").bind_tools([WEATHER]).stream("hi"))
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    return called(joined)


def structured() -> dict[str, Any]:
    place = chat("acme/json").with_structured_output(Place, method="json_schema", strict=True).invoke("hi")
    return {"value": place.model_dump()}


def breaks() -> dict[str, Any]:
    """This client drops the error of a broken stream; the finish reason is what tells its caller."""
    chunks = list(chat("acme/breaks").stream("hi"))
    return {
        "text": "".join(chunk.content for chunk in chunks),
        "finish": [f for chunk in chunks if (f := chunk.response_metadata.get("finish_reason"))],
    }


def ask(model: str, **more: Any) -> Any:
    return chat(model, **more).invoke("hi")


play(
    [
        *((f.__name__, f) for f in (whole, streamed, tool, tool_streamed, structured, breaks)),
        *refusals(ask),
    ]
)
