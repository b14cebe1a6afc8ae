"""Listening and stopping: sockets, signals, the drain. Knows nothing of what is served.

SIGTERM: readiness 503 at once, the listener stays for `drain_delay_s` (balancers notice), then requests in
flight, those that are still being uploaded too, get `drain_timeout_s`, then one error each. SIGINT skips the
delay: nobody balances a terminal. So does a stop before the first readiness: no balancer has sent anything
yet. A second signal ends the process at once.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import socket
from collections.abc import Callable

import structlog
from aiohttp import web

from ionrouter.addresses import address_of
from ionrouter.api.readiness import Phase
from ionrouter.api.server import EnvelopeRunner
from ionrouter.api.state import Edge
from ionrouter.errors import ConfigError, RequestError
from ionrouter.process import ignore_hangups

_log = structlog.get_logger(__name__)

LAST_WORDS_S = 5.0  # for the error event of a request that had to be ended to reach its client
_ANY = ipaddress.ip_address("::")
BACKLOG = 1024  # connections not yet accepted; who comes beyond it is let in a second later

Announce = Callable[[str], None]  # the base URL
Hangup = Callable[[], None]  # SIGHUP


async def serve(
    app: web.Application, edge: Edge, *, announce: Announce = lambda _url: None, hangup: Hangup = lambda: None
) -> None:
    """Listen until a signal, then drain; raises ConfigError if the address cannot be had."""
    stop = Stop()
    stop.install(hangup)
    keepalive_s = edge.settings.client_keepalive_s
    runner = EnvelopeRunner(app, shutdown_timeout=LAST_WORDS_S, keepalive_s=keepalive_s)
    await runner.setup()
    try:
        site = await listen(runner, edge.settings.host, edge.settings.port)
        announce(base_url(runner))
        received = await stop.wait()
        is_balanced = received is signal.SIGTERM and edge.readiness.phase is Phase.READY
        await drain(edge, site, delay_s=edge.settings.drain_delay_s if is_balanced else 0.0)
    finally:
        await runner.cleanup()
        stop.uninstall()


async def listen(runner: EnvelopeRunner, host: str, port: int) -> web.BaseSite:
    host = host.strip("[]")
    try:
        site: web.BaseSite
        if address_of(host) == _ANY:
            site = web.SockSite(runner, _everywhere(port), backlog=BACKLOG)
        else:
            site = web.TCPSite(runner, host, port, backlog=BACKLOG)
        await site.start()
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return site


def _everywhere(port: int) -> socket.socket:
    """A socket for all addresses, IPv4 too; what event loops make of "::" takes IPv6 alone."""
    bound = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(("::", port))
    except OSError:
        bound.close()
        raise
    return bound


def base_url(runner: EnvelopeRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def drain(edge: Edge, site: web.BaseSite, *, delay_s: float) -> None:
    """Say no to new traffic, wait for the old, end what is left with an error its client can read."""
    edge.readiness.phase = Phase.DRAINING
    _log.info("drain_started", in_flight=edge.in_flight.num_requests, delay_s=delay_s)
    await asyncio.sleep(delay_s)
    await site.stop()
    if not await edge.in_flight.wait_until_empty(edge.settings.drain_timeout_s):
        num = edge.in_flight.abort_all(
            RequestError(
                "the server is shutting down; try again", status=503, error_type="provider_overloaded"
            )
        )
        _log.warning("requests_aborted", count=num)
        await edge.in_flight.wait_until_empty(LAST_WORDS_S)
    _log.info("drain_finished")


class Stop:
    """The signals that end a server, and the one that reloads it."""

    def __init__(self) -> None:
        self._received: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self._has_one = False

    def install(self, hangup: Hangup) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        # Not the loop's own: taking that back would let the next SIGHUP end the process.
        signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(hangup))

    def uninstall(self) -> None:
        loop = asyncio.get_running_loop()
        ignore_hangups()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    async def wait(self) -> signal.Signals:
        return await self._received.get()

    def _on_signal(self, number: signal.Signals) -> None:
        if self._has_one:
            _log.warning("stopped_at_once", signal=number.name)
            os._exit(128 + number)  # children see their pipe close and end too
        self._has_one = True
        ignore_hangups()  # nothing will be served from new routes
        self._received.put_nowait(number)
