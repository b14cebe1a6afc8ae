"""The stock openrouter package for Python, with only server_url changed."""

from __future__ import annotations

import json
from typing import Any

from openrouter import OpenRouter
from steps import (
    BASE_URL,
    HI,
    KEY,
    PLACE_FORMAT,
    TIMEOUT_S,
    WEATHER,
    joined_calls,
    play,
    refusals,
    whole_call,
)


def client(key: str = KEY) -> OpenRouter:
    """Make a client that does not try again: its own retries last for up to an hour."""
    return OpenRouter(api_key=key, server_url=BASE_URL, retry_config=None, timeout_ms=int(TIMEOUT_S * 1000))


stock = client()


def ask(model: str, *, key: str = KEY, **more: Any) -> Any:
    return client(key).chat.send(model=model, messages=HI, **more)


def stream(model: str, **more: Any) -> list[Any]:
    with ask(model, stream=True, **more) as events:
        return list(events)


def whole() -> dict[str, Any]:
    answer = ask("acme/hello")
    choice = answer.choices[0]
    return {
        "text": choice.message.content,
        "finish": choice.finish_reason,
        "model": answer.model,
        "reasoning": choice.message.reasoning,
        "tokens": answer.usage.total_tokens,
        "cost": answer.usage.cost,
        "prompt_cost": answer.usage.cost_details.upstream_inference_prompt_cost,
    }


def streamed() -> dict[str, Any]:
    chunks = stream("acme/hello")
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return {
        "text": "".join(choice.delta.content or "" for choice in choices),
        "finish": next(choice.finish_reason for choice in choices if choice.finish_reason),
        "reasoning": "".join(choice.delta.reasoning or "" for choice in choices),
        "tokens": chunks[-1].usage.total_tokens,
        "cost": chunks[-1].usage.cost,
    }


def tool() -> dict[str, Any]:
    answer = ask("acme/tools", tools=[WEATHER], tool_choice="auto")
    return {**whole_call(answer.choices[0].message.tool_calls), "finish": answer.choices[0].finish_reason}


def tool_streamed() -> dict[str, Any]:
    chunks = stream("acme/tools", tools=[WEATHER])
    parts = [call for c in chunks for ch in c.choices for call in ch.delta.tool_calls or ()]
    return joined_calls(parts)


def structured() -> dict[str, Any]:
    answer = ask("acme/json", response_format=PLACE_FORMAT)
    return {"value": json.loads(answer.choices[0].message.content)}


def breaks() -> dict[str, Any]:
    """This client hands the error chunk to its caller."""
    chunks = stream("acme/breaks")
    return {
        "text": "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices),
        "error": chunks[-1].error.message,
        "finish": chunks[-1].choices[0].finish_reason,
    }


def models() -> dict[str, Any]:
    page = stock.models.list()
    return {"ids": [model.id for model in page.result.data], "total": page.result.total_count}


def model() -> dict[str, Any]:
    found = stock.models.get(author="acme", slug="hello").data
    return {"id": found.id, "name": found.name}


def endpoints() -> dict[str, Any]:
    data = stock.endpoints.list(author="acme", slug="hello").data
    return {
        "id": data.id,
        "provider": data.endpoints[0].provider_name,
        "price": data.endpoints[0].pricing.prompt,
    }


def providers() -> dict[str, Any]:
    return {"names": [row.name for row in stock.providers.list().data]}


def key() -> dict[str, Any]:
    data = stock.api_keys.get_current_key_metadata().data
    return {"label": data.label, "usage": data.usage, "management": data.is_management_key}


def embeddings() -> dict[str, Any]:
    floats = stock.embeddings.generate(model="acme/embed", input=["a", "b"], encoding_format="float")
    coded = stock.embeddings.generate(model="acme/embed", input="a", encoding_format="base64")
    return {"rows": [row.embedding for row in floats.data], "coded": coded.data[0].embedding}


def rerank() -> dict[str, Any]:
    answer = stock.rerank.rerank(model="acme/rank", query="q", documents=["a", {"text": "b"}, "c"], top_n=2)
    return {
        "rows": [[row.index, row.relevance_score, row.document.text] for row in answer.results],
        "model": answer.model,
        "provider": answer.provider,
        "units": answer.usage.search_units,
    }


def zdr() -> dict[str, Any]:
    return {"models": [row.model_id for row in stock.endpoints.list_zdr_endpoints().data]}


def own_models() -> dict[str, Any]:
    page = stock.models.list_for_user(security={"bearer": KEY})
    return {"ids": [model.id for model in page.result.data]}


def generation() -> dict[str, Any]:
    answer = ask("acme/hello")
    data = stock.generations.get_generation(id=answer.id).data
    return {
        "asked": [answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.cost],
        "kept": [data.tokens_prompt, data.tokens_completion, data.total_cost],
        "attempts": [row.provider_name for row in data.provider_responses],
        "finish": data.finish_reason,
    }


def responses() -> dict[str, Any]:
    answer = stock.responses.send(model="acme/hello", input="hi")
    return {"texts": texts(answer.output), "status": answer.status, "tokens": answer.usage.total_tokens}


def responses_streamed() -> dict[str, Any]:
    with stock.responses.send(model="acme/hello", input="hi", stream=True) as events:
        seen = list(events)
    return {
        "text": "".join(event.delta for event in seen if event.type == "response.output_text.delta"),
        "last": seen[-1].type,
        "texts": texts(seen[-1].response.output),
    }


def responses_tool() -> dict[str, Any]:
    tools: Any = [{"type": "function", **WEATHER["function"]}]
    answer = stock.responses.send(model="acme/tools", input="hi", tools=tools)
    (call,) = [item for item in answer.output if item.type == "function_call"]
    return {"id": call.call_id, "name": call.name, "arguments": call.arguments, "num_calls": 1}


def texts(output: Any) -> list[str]:
    return [part.text for item in output if item.type == "message" for part in item.content]


play(
    [
        *((f.__name__, f) for f in (whole, streamed, tool, tool_streamed, structured, breaks)),
        *refusals(ask),
        *((f.__name__, f) for f in (models, model, endpoints, providers, key, embeddings, generation)),
        *((f.__name__, f) for f in (rerank, zdr, own_models)),
        *((f.__name__, f) for f in (responses, responses_streamed, responses_tool)),
    ]
)
