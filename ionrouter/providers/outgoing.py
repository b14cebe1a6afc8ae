"""Outgoing: the one way requests leave for an upstream. Where they may go and what their headers hold.

Redirects off, TLS verified, proxies of the environment ignored, no cookies, headers built and never copied.
http:// goes to loopback and private addresses only, checked on the address that is connected to, so that a
name cannot be pointed elsewhere later. Knows nothing of chat, JSON or errors of upstreams.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Mapping

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import DefaultResolver
from yarl import URL

from ionrouter import __version__
from ionrouter.errors import ConfigError

USER_AGENT = f"ionrouter/{__version__}"
MAX_CONNECTIONS = 16384  # aiohttp's 100 would silently cap the router; the file limit is the real bound
READ_BUFFER_BYTES = 64 * 1024  # reading pauses at twice this, and TCP carries the pressure upstream
KEEPALIVE_S = 30.0
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, 5.6.2
_FORBIDDEN_VALUE = re.compile(r"[\r\n\x00]")
# Framing belongs to the transport; a configured one could smuggle a second request.
_TRANSPORT_HEADERS = frozenset(
    (
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "te",
        "trailer",
        "upgrade",
        "cookie",
        "expect",
    )
)
_SHARED = ipaddress.ip_network("100.64.0.0/10")  # RFC 6598, used by overlay networks


class AddressNotAllowed(OSError):
    """A plain http:// name leads to a public address."""


class Outgoing:
    """Owns the client sessions: one for any address, one that connects to private addresses only."""

    def __init__(self, resolver: Callable[[], AbstractResolver] = DefaultResolver) -> None:
        self._resolver = resolver
        self._any: aiohttp.ClientSession | None = None
        self._private: aiohttp.ClientSession | None = None

    def session(self, url: str, *, allow_http: bool) -> aiohttp.ClientSession:
        """Return the session for `url`; raises ConfigError when `url` may not be called."""
        if problem := url_problem(url, allow_http=allow_http):
            raise ConfigError(problem)
        if URL(url).scheme == "https" or allow_http:
            self._any = self._any or _new_session(self._resolver())
            return self._any
        self._private = self._private or _new_session(PrivateResolver(self._resolver()))
        return self._private

    async def close(self) -> None:
        """Close every connection."""
        for session in (self._any, self._private):
            if session is not None:
                await session.close()
        self._any = self._private = None


def url_problem(url: str, *, allow_http: bool = False) -> str | None:
    """Say why `url` may not be called, None when it may: "http:// to a public address: ..."."""
    try:
        parsed = URL(url)
        host = parsed.host
    except ValueError:
        return "base_url is not a URL"
    if parsed.scheme not in ("http", "https") or not host:
        return "base_url must be http:// or https:// with a host"
    if parsed.user or parsed.password:
        return "base_url holds user info; name the key's variable instead"
    address = _address(host)
    if parsed.scheme == "http" and not allow_http and address is not None and not is_private(address):
        return f"http:// to the public address {host} would show the key; use https:// or set allow_http"
    return None


async def name_problem(url: str) -> str | None:
    """Say why a plain http:// name may not be called, by the addresses it leads to now; None when it may.

    For doors whose sockets are not ours: another look-up happens when they connect.
    """
    parsed = URL(url)
    if parsed.scheme != "http" or not parsed.host or _address(parsed.host) is not None:
        return None
    resolver = PrivateResolver(DefaultResolver())
    try:
        await resolver.resolve(parsed.host, parsed.port or 80, socket.AF_UNSPEC)
    except AddressNotAllowed:
        return f"http:// to {parsed.host}, which is not a private address; use https:// or set allow_http"
    except OSError:
        return None  # the door will say that the name does not resolve
    finally:
        await resolver.close()
    return None


def is_private(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address is loopback or on a private network; link-local (cloud metadata) is not."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_link_local or address.is_multicast:
        return False
    is_shared = isinstance(address, ipaddress.IPv4Address) and address in _SHARED
    return address.is_loopback or address.is_private or is_shared


def build_headers(
    configured: Mapping[str, str], key: str | None, *, accept: str, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Build a request's headers from configuration alone; raises ConfigError naming a bad header.

    The key wins over a configured Authorization. Values are stripped (a key file ends with a newline).
    """
    headers = {"User-Agent": USER_AGENT, "Accept": accept, "Content-Type": "application/json"}
    headers.update(checked_headers({**configured, **(extra or {})}))
    if key is not None and key.strip():
        headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
        headers["Authorization"] = f"Bearer {_checked_value('Authorization', key)}"
    return headers


def checked_headers(configured: Mapping[str, str]) -> dict[str, str]:
    """Return configured headers with values stripped; raises ConfigError naming a bad one."""
    return {_checked_name(name): _checked_value(name, value) for name, value in configured.items()}


def _checked_name(name: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise ConfigError(f"{name[:40]!r} is not a header name")
    if name.lower() in _TRANSPORT_HEADERS:
        raise ConfigError(f"header {name} belongs to the transport and cannot be configured")
    return name


def _checked_value(name: str, value: str) -> str:
    stripped = value.strip()
    if _FORBIDDEN_VALUE.search(stripped):
        raise ConfigError(f"header {name}: its value holds a line break or NUL")
    return stripped


def _new_session(resolver: AbstractResolver) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=MAX_CONNECTIONS, limit_per_host=0, keepalive_timeout=KEEPALIVE_S, resolver=resolver, ssl=True
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        auto_decompress=True,
        read_bufsize=READ_BUFFER_BYTES,
        raise_for_status=False,
        timeout=aiohttp.ClientTimeout(total=None),
    )


class PrivateResolver(AbstractResolver):
    """Resolves names to private addresses only; the answer is what gets connected to."""

    def __init__(self, resolver: AbstractResolver) -> None:
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        results = await self._resolver.resolve(host, port, family)
        if not all(_is_private_host(result["host"]) for result in results):
            raise AddressNotAllowed(None, f"http:// to {host}, which is not a private address")
        return results

    async def close(self) -> None:
        await self._resolver.close()


def _is_private_host(host: str) -> bool:
    address = _address(host)
    return address is not None and is_private(address)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def connect_timeout(connect_s: float) -> aiohttp.ClientTimeout:
    """Limit name look-up, TCP and TLS together to `connect_s` seconds, and nothing after them."""
    return aiohttp.ClientTimeout(total=None, connect=connect_s, sock_connect=connect_s)
