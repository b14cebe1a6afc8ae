"""Providers that are closed at the end of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ionrouter.providers.openai_http import OpenAIProvider


@pytest.fixture
async def provider() -> AsyncIterator[OpenAIProvider]:
    client = OpenAIProvider({"UP_KEY": "UP-KEY-12345"})
    yield client
    await client.close()
