"""A name server in a test's hand: every name leads to the same addresses."""

from __future__ import annotations

from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult


class FixedResolver(AbstractResolver):
    """Answers every name with the same addresses."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=a, port=port, family=2, proto=0, flags=0)
            for a in self.addresses
        ]

    async def close(self) -> None:
        pass
