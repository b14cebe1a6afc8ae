"""Forms of answers that cost much or cannot be kept to: what they do to others, and how they are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.providers.ion import IonProvider
from ionrouter.routing.table import Endpoint
from tests.support.ion_provider import ask, ion_request, local_endpoint, provider_of
from tests.support.tiny_model import write_tiny_model

HI: dict[str, Any] = {"messages": [{"role": "user", "content": "the quick brown fox"}], "max_tokens": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


async def refused(provider: IonProvider, endpoint: Endpoint, body: dict[str, Any]) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await ask(provider, ion_request(endpoint, body))
    return caught.value


async def test_others_go_on_while_a_long_schema_is_compiled(model: Path, tmp_path: Path) -> None:
    """Four thousand properties and a fault among them: a second of compiling, of which the loop has none."""
    properties: dict[str, Any] = {f"p{i}": {"type": "string", "maxLength": 50} for i in range(4_000)}
    body = HI | {"guided_json": {"type": "object", "properties": properties | {"z": {"not": {}}}}}
    endpoint = local_endpoint(model)
    async with provider_of(endpoint, cache=tmp_path) as provider:
        await refused(provider, endpoint, HI | {"guided_json": {"not": {}}})  # llguidance is imported now
        num_turns, asking = 0, asyncio.create_task(refused(provider, endpoint, body))
        while not asking.done():
            num_turns += 1
            await asyncio.sleep(0.005)
        error = await asking
    assert error.param == "guided_json.properties.z.not"
    assert error.failure is FailureClass.ENDPOINT_REQUEST
    assert num_turns > 10
