"""Providers that are closed at the end of a test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from ionrouter.providers.litellm import LiteLLMProvider
from ionrouter.providers.litellm_carrier import Carrier
from ionrouter.providers.openai_http import OpenAIProvider
from tests.support.hosted import KEY


@pytest.fixture
async def provider() -> AsyncIterator[OpenAIProvider]:
    client = OpenAIProvider({"UP_KEY": "UP-KEY-12345"})
    yield client
    await client.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def litellm() -> AsyncIterator[LiteLLMProvider]:
    """One worker for the session: importing litellm takes 7 to 16 s."""
    client = LiteLLMProvider({**os.environ, "UP_KEY": KEY})
    await client.start()
    await client.wait_ready(120)
    yield client
    await client.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def carrying(litellm: LiteLLMProvider) -> AsyncIterator[LiteLLMProvider]:
    """A second front on the same worker, which carries."""
    env = {**os.environ, "UP_KEY": KEY}
    relay = OpenAIProvider(env)
    client = LiteLLMProvider(env, relay=relay)
    client.worker = litellm.worker
    client.carrier = Carrier(litellm.worker, None)
    yield client
    await client.carrier.close()
    await relay.close()
