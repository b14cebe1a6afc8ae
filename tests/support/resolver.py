"""A name server in a test's hand: every name leads to the same addresses."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence

from ionrouter.providers.look_ups import AddressInfo


def fixed(*addresses: str) -> Callable[[str, int], Awaitable[Sequence[AddressInfo]]]:
    """Answer every name with the same addresses."""

    async def resolve(_host: str, port: int) -> Sequence[AddressInfo]:
        return [
            (
                socket.AF_INET6 if ":" in a else socket.AF_INET,
                socket.SOCK_STREAM,
                socket.IPPROTO_TCP,
                "",
                (a, port),
            )
            for a in addresses
        ]

    return resolve
