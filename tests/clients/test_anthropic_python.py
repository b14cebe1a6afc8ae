"""The stock anthropic package for Python, with only base_url changed, over chat upstreams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from tests.support.accounts import Bank
from tests.support.server import Server, running_server
from tests.support.upstream import DONE, Upstream, chunk, event, json_response, sse, usage
from tests.support.wire import Script

HI: Any = [{"role": "user", "content": "hi"}]
TOOLS: Any = [{"name": "weather", "description": "d", "input_schema": {"type": "object"}}]


@pytest.fixture
def client(server: Server) -> Iterator[Anthropic]:
    with Anthropic(base_url=f"{server.url}/api", api_key="unused", max_retries=0, timeout=60) as stock:
        yield stock


def ask(client: Anthropic, model: str, **more: Any) -> Any:
    return client.messages.create(**{"model": model, "max_tokens": 50, "messages": HI, **more})


def joined(client: Anthropic, model: str, **more: Any) -> Any:
    with client.messages.stream(**{"model": model, "max_tokens": 50, "messages": HI, **more}) as stream:
        return stream.get_final_message()


def content(message: Any) -> list[Any]:
    return [block.model_dump(exclude={"parsed_output"}) for block in message.content]


def test_a_whole_message_and_its_stream_say_the_same(client: Anthropic) -> None:
    whole, stream = ask(client, "acme/hello"), joined(client, "acme/hello")
    thinking, text = whole.content
    assert (thinking.type, thinking.thinking) == ("thinking", "thinking")
    assert (text.type, text.text) == ("text", "Hello from the router")
    assert (whole.stop_reason, whole.model, whole.provider) == ("end_turn", "acme/hello", "Fake")
    assert whole.usage.input_tokens > 0
    assert whole.usage.cost > 0
    assert content(stream) == content(whole)
    assert stream.stop_reason == whole.stop_reason
    for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
        assert getattr(stream.usage, name) == getattr(whole.usage, name)


@pytest.mark.parametrize("read", [ask, joined])
def test_tool_use(client: Anthropic, read: Any) -> None:
    message = read(client, "acme/tools", tools=TOOLS, tool_choice={"type": "any"})
    assert message.stop_reason == "tool_use"
    (call,) = message.content
    assert (call.type, call.id, call.name, call.input) == ("tool_use", "call_1", "weather", {"city": "Oslo"})


def test_errors_have_their_types(client: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="acme/nowhere is not a valid model ID"):
        ask(client, "acme/nowhere")
    with pytest.raises(anthropic.RateLimitError) as limited:
        ask(client, "acme/limited")
    assert 1 <= int(limited.value.response.headers["retry-after"]) <= 20
    assert limited.value.body["error"]["type"] == "rate_limit_error"  # type: ignore[index]
    with pytest.raises(anthropic.APIStatusError, match="all busy") as down:
        ask(client, "acme/down")
    assert down.value.status_code == 503
    with pytest.raises(anthropic.BadRequestError, match="acme/nowhere is not a valid model ID"):
        client.messages.count_tokens(model="acme/nowhere", messages=HI)


def test_tokens_of_a_prompt_without_an_answer(client: Anthropic) -> None:
    long: Any = [{"role": "user", "content": "word " * 8000}]  # more than the model takes
    for messages, tokens in ((HI, 1), (long, 10_000)):
        assert client.messages.count_tokens(model="acme/hello", messages=messages).input_tokens == tokens
    beta = client.beta.messages.count_tokens(model="acme/hello", messages=HI, system="s" * 40)
    assert beta.input_tokens == 11


def test_refusals_have_their_types(bank: Bank, poor_key: str) -> None:
    def refused(key: str, **more: Any) -> Any:
        with (
            Anthropic(base_url=f"{bank.server.url}/api", auth_token=key, max_retries=0, timeout=60) as stock,
            pytest.raises(anthropic.APIStatusError) as raised,
        ):
            ask(stock, "acme/hello", **more)
        return raised.value

    wrong = refused("sk-or-v1-" + "0" * 64)
    assert isinstance(wrong, anthropic.AuthenticationError)
    assert wrong.body["error"]["type"] == "authentication_error"  # type: ignore[index]
    unpaid = refused(poor_key)
    assert unpaid.status_code == 402
    assert unpaid.body["error"]["type"] == "billing_error"  # type: ignore[index]
    assert "this key's limit is" in str(unpaid)
    filtered = refused(bank.key, extra_body={"provider": {"only": ["nowhere"]}})
    assert isinstance(filtered, anthropic.NotFoundError)
    assert "not in provider.only" in str(filtered)


def test_models(client: Anthropic) -> None:
    assert "acme/hello" in [model.id for model in client.models.list()]


def test_a_stream_that_breaks_raises_after_what_it_said(client: Anthropic) -> None:
    seen = []
    with (
        pytest.raises(anthropic.APIStatusError, match="wire cut"),
        client.messages.stream(model="acme/breaks", max_tokens=50, messages=HI) as stream,
    ):
        for words in stream.text_stream:
            seen.append(words)
    assert "".join(seen) == "word0 word1"


CALLS = [
    {"index": 0, "id": "c0", "type": "function", "function": {"name": "weather", "arguments": ""}},
    {"index": 0, "function": {"arguments": '{"city": '}},
    {"index": 0, "function": {"arguments": '"Oslo"}'}},
    {"index": 1, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
]
COUNTED = usage(40, 7, prompt_tokens_details={"cached_tokens": 30})


def tool_stream() -> Script:
    chunks = [chunk({"role": "assistant", "content": ""}), chunk({"content": "Let me look."})]
    chunks += [chunk({"tool_calls": [call]}) for call in CALLS]
    return sse([*chunks, chunk({}, "tool_calls"), chunk(None, usage=COUNTED)])


def tool_json() -> Script:
    calls = [
        {"id": "c0", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
    ]
    message = {"role": "assistant", "content": "Let me look.", "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return json_response({"id": "x", "object": "chat.completion", "choices": [choice], "usage": COUNTED})


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Upstream, Server]]:
    """One chat server that answers as it is asked to: streaming or whole."""
    with Upstream(lambda request: tool_stream() if request.json().get("stream") else tool_json()) as up:
        routes = f"""
providers: {{ up: {{ type: openai, base_url: {up.base_url} }} }}
models: {{ acme/m: {{ input_modalities: [text, image], endpoints: [ {{ provider: up, model: u }} ] }} }}
"""
        folder: Path = tmp_path_factory.mktemp("anthropic")
        with running_server(folder, routes, heartbeat_interval_s=1) as server:
            yield up, server


def loop() -> list[Any]:
    """A tool loop as an agent sends it back."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    call = {"type": "tool_use", "id": "c9", "name": "weather", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "c9", "content": "4 degrees"}
    return [
        {"role": "user", "content": [{"type": "text", "text": "weather?"}, image]},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]


def test_a_tool_loop_over_a_chat_server(upstream: tuple[Upstream, Server]) -> None:
    up, server = upstream
    with Anthropic(base_url=f"{server.url}/api", auth_token="unused", max_retries=0) as client:
        more: Any = {"messages": loop(), "tools": TOOLS, "system": "rules"}
        whole, stream = ask(client, "acme/m", **more), joined(client, "acme/m", **more)
    assert [block.type for block in whole.content] == ["text", "tool_use", "tool_use"]
    assert [block.input for block in whole.content[1:]] == [{"city": "Oslo"}, {}]
    assert content(stream) == content(whole)
    assert stream.stop_reason == whole.stop_reason == "tool_use"
    for message in (whole, stream):
        assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (10, 30)
        assert message.usage.output_tokens == 7
    sent = up.requests[-1].json()
    assert [message["role"] for message in sent["messages"]] == ["system", "user", "assistant", "tool"]
    assert sent["messages"][1]["content"][1]["image_url"]["url"] == "data:image/png;base64,aGk="
    assert json.loads(sent["messages"][2]["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
    assert sent["tools"][0]["function"]["parameters"] == {"type": "object"}
    assert sent["model"] == "u"


def test_a_cut_upstream_is_an_error_after_the_text(upstream: tuple[Upstream, Server]) -> None:
    up, server = upstream
    up.enqueue(sse([chunk({"content": "half"}), event({"error": {"message": "lost", "code": 503}}), DONE]))
    seen = []
    with (
        Anthropic(base_url=f"{server.url}/api", api_key="unused", max_retries=0) as client,
        pytest.raises(anthropic.APIStatusError, match="lost"),
        client.messages.stream(model="acme/m", max_tokens=5, messages=HI) as stream,
    ):
        for words in stream.text_stream:
            seen.append(words)
    assert seen == ["half"]


def test_the_models_are_listed_page_by_page_as_anthropics_are(client: Anthropic, server: Server) -> None:
    everyone = [card["id"] for card in server.get("/v1/models")[1]["data"]]
    pages = client.models.list(limit=2)
    assert (len(pages.data), pages.has_more) == (2, True)
    told = list(pages)
    assert [model.id for model in told] == everyone and len(everyone) > 4
    assert {model.type for model in told} == {"model"}
    assert all(model.display_name and model.created_at is not None for model in told)
    assert [m.id for m in client.models.list(before_id=everyone[3], limit=2).data] == everyone[1:3]
    assert client.models.retrieve(everyone[0]).display_name == told[0].display_name
    with pytest.raises(anthropic.BadRequestError):
        client.models.list(after_id="nobody's")
