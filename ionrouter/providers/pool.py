"""Pool: kept connections by origin, opened within a deadline, counted against one cap with other processes'.

A request goes out on a kept connection where there is one. If that connection turns out to have been closed
by the other side before one byte of an answer came, at once and only then, the request goes out once more on
a fresh one (RFC 9112, 9.3.1). Knows nothing of what is asked or answered.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import aiohappyeyeballs

from ionrouter.providers.answer import Answer
from ionrouter.providers.base import Held
from ionrouter.providers.connection import Connection, PlainConnection, SecureConnection
from ionrouter.providers.http_faults import (
    AddressNotAllowed,
    ConnectTooLong,
    Disconnected,
    NoFileLeft,
    NoPlaceLeft,
    NotConnected,
    NotResolved,
    is_own_limit,
)
from ionrouter.providers.look_ups import AddressInfo, LookUps

READ_BYTES = 32 * 1024  # at once; who reads slowly holds as much, and uvloop's own would be four times that
KEEPALIVE_S = 30.0  # shorter than what servers keep idle connections for
STALE_S = 1.0  # a closing that crossed our request comes within a round trip; later, the request was read
NUM_LOOKUPS = 16  # at once; a name server that is away holds each of them for long
NEXT_ADDRESS_S = 0.25  # RFC 8305's delay before another address is tried beside a slow one

Resolve = Callable[[str, int], Awaitable[Sequence[AddressInfo]]]

resolve = LookUps(NUM_LOOKUPS, "name-lookup")


class Origin(NamedTuple):
    """Where a connection leads: connections are shared by requests of one origin alone."""

    host: str
    port: int
    is_tls: bool
    is_private: bool  # may lead to private addresses only


def require_a_file() -> None:
    """Raise NoFileLeft if not one more may be opened: what failed before may have failed of that."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if is_own_limit(error):
            raise NoFileLeft(error.errno) from None


class Pool:
    """All connections of one process to upstreams. `resolvers`: for any address, for private ones only."""

    def __init__(self, resolvers: tuple[Resolve, Resolve], max_connections: int) -> None:
        self._resolvers = resolvers
        self._num_left = max_connections  # places under the cap
        self._waiting: dict[object, asyncio.Future[None]] = {}  # in turn, for one of them or a connection
        self._free: dict[Origin, dict[Connection, None]] = {}  # oldest first
        self._all: set[Connection] = set()
        self._room = memoryview(bytearray(READ_BYTES))
        self._tls: ssl.SSLContext | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def ask(
        self, origin: Origin, head: bytes, body: bytes, connect_s: float, held: Held | None = None
    ) -> Answer:
        """Send a request and wait for the head of its answer; raises HttpFault, OSError, ssl.SSLError.

        `held` is told while it waits for a place under the cap.
        """
        kept = None if self._waiting else self._take(origin)
        connection, queue_s = (kept, 0.0) if kept else await self._connected(origin, connect_s, held)
        asked_at = connection.loop.time()
        try:
            answer = await connection.ask(head, body).begun()
        except Disconnected:  # closed while it lay here, and not one byte came
            is_stale = connection.num_asked > 1 and connection.loop.time() - asked_at < STALE_S
            if not is_stale or self._is_closed:
                raise
            connection, queue_s = await self._connected(origin, connect_s, held, may_be_kept=False)
            answer = await connection.ask(head, body).begun()
        answer.queue_s = queue_s
        return answer

    @asynccontextmanager
    async def place(self, within_s: float, held: Held | None = None) -> AsyncIterator[float]:
        """Hold a place under the cap for a connection that another process of ours opens; raises NoPlaceLeft.

        Gives the seconds waited for it.
        """
        try:
            async with asyncio.timeout(within_s):
                _, queue_s = await self._claim(None, held)
        except TimeoutError:
            raise NoPlaceLeft from None
        try:
            yield queue_s
        finally:
            self._leave_place()

    async def close(self) -> None:
        """Close every connection at once; for good."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in list(self._all):
            connection.abort()
        self._free.clear()

    def __len__(self) -> int:
        return len(self._all)

    def _take(self, origin: Origin) -> Connection | None:
        """Take the connection that was used last: the others may grow old and go."""
        kept = self._free.get(origin)
        while kept:
            connection, _ = kept.popitem()
            if connection.is_usable and connection.free_since > connection.loop.time() - KEEPALIVE_S:
                return connection
            connection.abort()
        return None

    async def _connected(
        self, origin: Origin, connect_s: float, held: Held | None, *, may_be_kept: bool = True
    ) -> tuple[Connection, float]:
        """Open a connection: a place under the cap, name look-up, TCP and TLS together in `connect_s`.

        Or take one that comes free while a place is waited for. Also tells how many of those seconds it took.
        """
        connection: Connection | None = None
        queue_s = connect_s  # until it has a place
        try:
            async with asyncio.timeout(connect_s):
                kept, queue_s = await self._claim(origin if may_be_kept else None, held)
                if kept is not None:
                    return kept, queue_s
                try:
                    connection = await self._open(origin)
                finally:
                    if connection is None:
                        self._leave_place()
        except TimeoutError:
            is_own = queue_s > connect_s / 2  # what was left for the upstream tells nothing of it
            raise (NoPlaceLeft if is_own else ConnectTooLong) from None
        self._all.add(connection)
        return connection, queue_s

    async def _claim(self, origin: Origin | None, held: Held | None) -> tuple[Connection | None, float]:
        """Take a kept connection to `origin`, or a place under the cap; returns the seconds waited for it.

        First come, first served: what comes free wakes who waits longest, and who comes later waits behind.
        """
        if not self._waiting and self._take_place():
            return None, 0.0
        loop, me, kept = asyncio.get_running_loop(), object(), None
        begun = loop.time()
        if held is not None:
            held.hold()
        try:
            while True:
                self._waiting[me] = woken = loop.create_future()  # again: in its old turn
                await woken
                kept = None if origin is None else self._take(origin)
                if kept is not None or self._take_place():
                    waited_s = loop.time() - begun
                    if held is not None:
                        held.go(waited_s)
                    return kept, waited_s
        finally:
            del self._waiting[me]
            self._wake_next()  # it may have been woken for nothing, and there may be more than it took

    def _take_place(self) -> bool:
        """Take one under the cap, where there is none that of a connection which lies idle."""
        if not self._num_left:
            self._close_one_idle()
        if not self._num_left:
            return False
        self._num_left -= 1
        return True

    def _leave_place(self) -> None:
        self._num_left += 1
        self._wake_next()

    def _wake_next(self) -> None:
        for woken in self._waiting.values():
            if not woken.done():
                woken.set_result(None)
                return

    def _close_one_idle(self) -> None:
        for kept in self._free.values():
            if kept:
                next(iter(kept)).abort()
                return

    async def _open(self, origin: Origin) -> Connection:
        loop = asyncio.get_running_loop()
        addresses = await self._addresses(origin)
        try:
            connected = await aiohappyeyeballs.start_connection(
                addresses, happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1, loop=loop
            )
            try:
                return await self._connection(origin, connected)
            except BaseException:
                connected.close()
                raise
        except ssl.SSLError:
            raise
        except OSError as error:
            raise (NoFileLeft if is_own_limit(error) else NotConnected)(error.errno) from error

    async def _connection(self, origin: Origin, connected: socket.socket) -> Connection:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        kept = self._free.setdefault(origin, {})
        loop = asyncio.get_running_loop()
        ends = partial(self._keep, kept), partial(self._forget, kept)
        plain, connection = await loop.create_connection(
            lambda: SecureConnection(*ends) if origin.is_tls else PlainConnection(*ends, self._room),
            sock=connected,
        )
        if origin.is_tls and connection.is_usable:
            name = origin.host.rstrip(".")  # no certificate says the root's dot
            try:  # not by create_connection, which keeps the socket's own transport to itself
                secure = await loop.start_tls(plain, connection, self._context(), server_hostname=name)
            except BaseException:
                plain.abort()
                raise
            if secure is not None:
                connection.secured(secure)
        if not connection.is_usable:
            raise NotConnected
        return connection

    async def _addresses(self, origin: Origin) -> Sequence[AddressInfo]:
        try:
            found = await self._resolvers[origin.is_private](origin.host, origin.port)
        except AddressNotAllowed:
            raise
        except OSError:
            require_a_file()  # a look-up opens some, and does not say why it found nothing
            raise NotResolved from None
        if not found:
            raise NotResolved
        return found

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:  # reading the system's certificates takes a while
            context = ssl.create_default_context()
            if not context.get_ca_certs():
                require_a_file()  # it is silent about a file that it cannot read, and trusts nobody then
            context.set_alpn_protocols(["http/1.1"])
            self._tls = context
        return self._tls

    def _keep(self, kept: dict[Connection, None], connection: Connection) -> None:
        if self._is_closed:
            connection.abort()
            return
        kept[connection] = None
        if self._waiting:
            self._wake_next()
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(KEEPALIVE_S, self._drop_old)

    def _drop_old(self) -> None:
        """Close what has lain idle too long; comes again while anything lies there."""
        self._sweep = None
        loop = asyncio.get_running_loop()
        oldest = loop.time() - KEEPALIVE_S
        for kept in self._free.values():
            for connection in [c for c in kept if c.free_since <= oldest]:
                connection.abort()
        if any(self._free.values()):
            self._sweep = loop.call_later(KEEPALIVE_S / 2, self._drop_old)

    def _forget(self, kept: dict[Connection, None], connection: Connection) -> None:
        kept.pop(connection, None)
        if connection in self._all:
            self._all.discard(connection)
            self._leave_place()
