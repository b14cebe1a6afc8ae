"""The scripted provider."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.providers.base import UpstreamRequest
from ionrouter.providers.fake import FakeClient, Script, script_of
from ionrouter.routing.spec_options import FakeOptions, ScriptOptions
from ionrouter.routing.table import Provider
from ionrouter.schema.events import Chunk, Complete, ProviderEvent
from tests.support.routes import endpoint


def asked(stream: bool = True, **script: Any) -> UpstreamRequest:
    return UpstreamRequest("gen-1", "chat", endpoint("a", script=script), {}, stream)


async def play(client: FakeClient, request: UpstreamRequest) -> list[ProviderEvent]:
    return [event async for event in client.stream(request)]


async def test_it_streams_its_text_word_by_word_with_usage_last() -> None:
    events = await play(FakeClient(), asked(text="one two"))
    assert all(isinstance(e, Chunk) for e in events)
    text = "".join(c.delta.get("content") or "" for e in events for c in e.choices)
    assert text == "one two" and events[-1].usage is not None
    assert events[-1].usage.completion_tokens == 2


async def test_it_answers_whole_when_not_asked_to_stream() -> None:
    (event,) = await play(FakeClient(), asked(stream=False, text="one two"))
    assert isinstance(event, Complete)
    assert event.choices[0].message == {"role": "assistant", "content": "one two"}


async def test_it_makes_a_vector_for_each_input_of_the_size_that_is_asked_for() -> None:
    body = {"input": ["a", "b"], "dimensions": 3}
    (event,) = await play(FakeClient(), UpstreamRequest("gen-1", "embeddings", endpoint("a"), body, False))
    assert isinstance(event, Complete)
    assert [row["embedding"] for row in event.data] == [[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]


async def test_endpoint_options_go_over_the_providers_and_the_callers_over_both() -> None:
    provider = Provider(slug="a", name="A", type="fake", options={"text": "provider", "tokens": 9})
    base = endpoint("a", script={"text": "endpoint"}, provider=provider)
    request = UpstreamRequest("gen-1", "chat", base, {}, False)
    (event,) = await play(FakeClient(), request)
    assert isinstance(event, Complete) and event.choices[0].message["content"] == "endpoint"


async def test_scripts_play_one_per_call_and_the_last_for_ever() -> None:
    client, request = FakeClient(), asked(False, scripts=[{"text": "a"}, {"text": "b"}])
    said = [(await play(client, request))[0] for _ in range(3)]
    assert [e.choices[0].message["content"] for e in said if isinstance(e, Complete)] == ["a", "b", "b"]
    assert client.num_calls("a") == 3


@pytest.mark.parametrize(
    ("script", "failure"),
    [
        ({"status": 500}, FailureClass.TRANSIENT),
        ({"status": 401}, FailureClass.DOMAIN),
        ({"status": 429}, FailureClass.CAPACITY),
        ({"status": 400}, FailureClass.REQUEST),
        ({"status": 400, "failure": "content"}, FailureClass.CONTENT),
        ({"cut_after": 1}, FailureClass.TRANSIENT),
    ],
)
async def test_a_status_means_its_failure_class(script: dict[str, Any], failure: FailureClass) -> None:
    client = FakeClient()
    with pytest.raises(UpstreamError) as caught:
        await play(client, asked(**script))
    assert caught.value.failure is failure and client.num_open == 0


def test_an_unknown_key_in_a_script_is_named() -> None:
    with pytest.raises(ValueError, match="'txet'"):
        script_of({"txet": "x"})


def test_the_check_of_the_file_knows_every_field_of_a_script() -> None:
    defaults = {field.name: field.default for field in fields(Script)}
    assert set(ScriptOptions.model_fields) == set(defaults)
    FakeOptions.model_validate({name: value for name, value in defaults.items() if name != "tool_calls"})


@pytest.mark.parametrize(
    ("given", "where"),
    [({"txet": "x"}, "txet"), ({"tokens": "x"}, "tokens"), ({"scripts": [{"a": 1}]}, "scripts.0.a")],
)
async def test_a_caller_who_writes_no_script_is_told_so(given: dict[str, Any], where: str) -> None:
    request = UpstreamRequest("gen-1", "chat", endpoint("a"), {}, True, options=given)
    with pytest.raises(UpstreamError) as refused:
        await play(FakeClient(), request)
    assert (refused.value.failure, refused.value.status) == (FailureClass.ENDPOINT_REQUEST, 400)
    assert refused.value.param == f"provider.options.{request.endpoint.provider.slug}.{where}"
