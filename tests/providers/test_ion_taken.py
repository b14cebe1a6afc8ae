"""Ion's events, given to whoever is served where they are said: the same answer as the way that waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from ionrouter.providers.ion import IonProvider
from ionrouter.routing.table import Endpoint
from ionrouter.schema.events import Chunk, Lane, ProviderBatch, ProviderEvent, TextRun
from ionrouter.schema.request import Kind
from ionrouter.schema.usage import Usage
from tests.support.ion_provider import ion_request, local_endpoint, provider_of
from tests.support.tiny_model import write_tiny_model

HI: dict[str, Any] = {"messages": [{"role": "user", "content": "the quick brown fox"}]}
LONG = {"temperature": 0, "max_tokens": 60, "ignore_eos": True}
BODIES: dict[str, tuple[Kind, dict[str, Any]]] = {
    "chat": ("chat", HI | LONG),
    "scores": ("chat", HI | LONG | {"logprobs": True, "top_logprobs": 2}),
    "two choices": ("chat", HI | LONG | {"n": 2, "seed": 3}),
    "completions": ("completions", {"prompt": "the quick", "echo": True} | LONG),
    "stopped": ("chat", HI | LONG | {"stop": [" "], "ignore_eos": False}),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


class Client:
    """Hears batches in the order in which they came, by either way; `takes` says which it takes."""

    def __init__(self, takes: Callable[[int], bool], *, has_lane: bool) -> None:
        self.heard: list[ProviderEvent | TextRun] = []
        self.num_taken = self.num_asked = 0
        self._takes, self._has_lane = takes, has_lane

    def _is_ready(self) -> bool:
        self.num_asked += 1
        is_ready = bool(self.heard) and self._takes(self.num_asked)
        self.num_taken += is_ready
        return is_ready

    def take(self, batch: ProviderBatch) -> bool:
        if is_ready := self._is_ready():
            self.heard += batch
        return is_ready

    def lane(self, pattern: Chunk) -> Lane | None:
        def write(text: str, literal: bytes) -> bool:
            if is_ready := self._is_ready():
                key = next(iter(pattern.choices[0].delta))
                self.heard.append(TextRun(pattern, key, (text,), (literal,)))
            return is_ready

        return write if self._has_lane else None


async def _answered(
    provider: IonProvider, endpoint: Endpoint, kind: Kind, body: dict[str, Any], client: Client | None
) -> Sequence[ProviderEvent | TextRun]:
    heard = [] if client is None else client.heard
    async with aclosing(provider.batches(ion_request(endpoint, body, kind, taker=client))) as batches:
        async for batch in batches:
            heard += batch
    return heard


def _said(heard: Sequence[ProviderEvent | TextRun]) -> dict[int, dict[str, Any]]:
    """What each choice says in all; where the pieces were cut is chance."""
    said: dict[int, dict[str, Any]] = {}
    for event in heard:
        for chunk in event.chunks() if isinstance(event, TextRun) else (event,):
            assert isinstance(chunk, Chunk)
            for choice in chunk.choices:
                of = said.setdefault(choice.index, {"ends": [], "scores": []})
                for key, value in choice.delta.items():
                    of[key] = of.get(key, "") + value
                of["ends"] += [choice.finish_reason] if choice.finish_reason else []
                of["scores"] += (choice.logprobs or {}).get("content", [])
    return said


def _usage(heard: Sequence[ProviderEvent | TextRun]) -> Usage:
    (usage,) = [event.usage for event in heard if isinstance(event, Chunk) and event.usage is not None]
    return usage


@pytest.mark.parametrize("has_lane", [True, False])
@pytest.mark.parametrize("name", BODIES)
async def test_an_answer_is_the_same_whoever_takes_it(model: Path, name: str, has_lane: bool) -> None:
    endpoint, (kind, body) = local_endpoint(model), BODIES[name]
    patterns: list[Callable[[int], bool]] = [lambda _: True, lambda _: False, lambda k: k % 3 != 0]
    async with provider_of(endpoint, cache=model.parent) as provider:
        alone = await _answered(provider, endpoint, kind, body, None)
        for takes in patterns:
            may_be_taken = name in ("chat", "completions") and takes(1)
            for _ in range(30):  # an engine this fast may have said all of it before anybody waits
                client = Client(takes, has_lane=has_lane)
                heard = await _answered(provider, endpoint, kind, body, client)
                assert _said(heard) == _said(alone)
                assert _usage(heard).completion_tokens == _usage(alone).completion_tokens
                if client.num_taken > 0 or not may_be_taken:
                    break
            assert (client.num_taken > 0) == may_be_taken


@pytest.mark.parametrize("has_lane", [True, False])
async def test_what_was_said_before_a_client_left_is_counted(model: Path, has_lane: bool) -> None:
    endpoint, (kind, body) = local_endpoint(model), BODIES["chat"]
    async with provider_of(endpoint, cache=model.parent) as provider:
        whole = _usage(await _answered(provider, endpoint, kind, body, None))
        client = Client(lambda _: client.num_asked < 9, has_lane=has_lane)
        request = ion_request(endpoint, body, kind, taker=client)
        async with aclosing(provider.batches(request)) as batches:
            for _ in range(3):
                client.heard += await anext(batches)
    assert request.told.usage is not None
    assert request.told.usage.prompt_tokens == whole.prompt_tokens
    assert 0 < request.told.usage.completion_tokens <= whole.completion_tokens
