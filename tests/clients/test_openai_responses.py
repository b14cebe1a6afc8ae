"""The stock openai package's Responses client, with only base_url changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.support.server import Server

TOOL: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="unused", max_retries=0, timeout=60) as stock:
        yield stock


def final(client: OpenAI, **body: Any) -> Any:
    with client.responses.stream(**body) as stream:
        for _ in stream:
            pass
        return stream.get_final_response()


def plain(response: Any) -> list[Any]:
    """The output without its ids, which are each answer's own, and without what the helper adds."""
    items = [item.model_dump(exclude_none=True, exclude={"id"}) for item in response.output]
    for item in items:
        item.pop("parsed_arguments", None)
        for part in item.get("content", ()):
            part.pop("parsed", None)
    return items


def test_a_whole_response_and_its_stream_say_the_same(client: OpenAI) -> None:
    whole = client.responses.create(model="acme/hello", input="hi", store=False)
    stream = final(client, model="acme/hello", input="hi")
    assert whole.output_text == stream.output_text == "Hello from the router"
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    assert (whole.status, whole.model) == ("completed", "acme/hello")
    assert whole.provider == "Fake"  # type: ignore[attr-defined]
    assert plain(stream) == plain(whole)
    assert stream.usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.cost > 0  # type: ignore[attr-defined]


def test_tool_calls_in_both_modes(client: OpenAI) -> None:
    body: Any = {"model": "acme/tools", "input": "hi", "tools": [TOOL]}
    whole, stream = client.responses.create(**body), final(client, **body)
    (call,) = whole.output
    assert (call.type, call.call_id, call.name) == ("function_call", "call_1", "weather")
    assert call.arguments == '{"city":"Oslo"}'
    assert plain(stream) == plain(whole)


def test_a_conversation_is_sent_whole(client: OpenAI) -> None:
    first = client.responses.create(model="acme/tools", input="hi", tools=[TOOL])
    history: Any = [{"role": "user", "content": "hi"}, *[item.model_dump() for item in first.output]]
    history.append({"type": "function_call_output", "call_id": "call_1", "output": "4 degrees"})
    second = client.responses.create(model="acme/hello", input=history)
    assert second.output_text == "Hello from the router"


def test_errors_have_their_types(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="store") as stored:
        client.responses.create(model="acme/hello", input="hi", store=True)
    assert stored.value.param == "store"
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(model="acme/hello", input="hi", previous_response_id="resp_1")
    with pytest.raises(openai.BadRequestError, match="acme/nowhere is not a valid model ID"):
        client.responses.create(model="acme/nowhere", input="hi")
    with pytest.raises(openai.RateLimitError, match=r"slow down|rate-limited upstream"):
        client.responses.create(model="acme/limited", input="hi", stream=True)
    with pytest.raises(openai.InternalServerError, match="all busy") as down:
        client.responses.create(model="acme/down", input="hi")
    assert down.value.status_code == 503


def test_a_stream_that_breaks_ends_with_a_failed_response(client: OpenAI) -> None:
    events = list(client.responses.create(model="acme/breaks", input="hi", stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == "word0 word1"
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert "wire cut" in last.response.error.message
