"""Reads an upstream's GET /models for discovery (ionrouter/routing/discovery.py); outgoing rules apply."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ionrouter.errors import ConfigError
from ionrouter.providers.outgoing import Outgoing, build_headers, connect_timeout
from ionrouter.redact import Redactor
from ionrouter.routing.table import Provider
from ionrouter.schema import json

TIMEOUT_S = 15.0
MAX_BYTES = 32 * 1024 * 1024  # OpenRouter's list of hundreds of models has 1 to 2 MB


class ModelLists:
    """Fetches model lists with the first key that is set."""

    def __init__(self, env: Mapping[str, str], redact: Redactor) -> None:
        self._env = env
        self._redact = redact
        self._outgoing = Outgoing()

    async def fetch(self, provider: Provider) -> Any:
        """Return the parsed answer; raises ConfigError, aiohttp's errors, TimeoutError or ValueError."""
        if provider.base_url is None:
            raise ConfigError(f"provider {provider.slug} has no base_url to ask for models")
        url = provider.base_url.rstrip("/") + "/models"
        session = self._outgoing.session(url, allow_http=provider.allow_http)
        headers = build_headers(provider.headers, self._key(provider), accept="application/json")
        async with (
            asyncio.timeout(TIMEOUT_S),
            session.get(
                url, headers=headers, allow_redirects=False, timeout=connect_timeout(TIMEOUT_S)
            ) as answer,
        ):
            if answer.status != 200:
                text = self._redact(await answer.content.read(2048))
                raise ValueError(f"HTTP {answer.status} from {self._redact(url)}: {text[:200]}")
            return json.loads(await _read(answer.content, MAX_BYTES))

    async def close(self) -> None:
        await self._outgoing.close()

    def _key(self, provider: Provider) -> str | None:
        keys = (self._env.get(name, "").strip() for name in provider.key_variables)
        return next((key for key in keys if key), None)


async def _read(content: Any, max_bytes: int) -> bytes:
    data = bytearray()
    async for piece in content.iter_chunked(64 * 1024):
        data += piece
        if len(data) > max_bytes:
            raise ValueError(f"the list is larger than {max_bytes} bytes")
    return bytes(data)
