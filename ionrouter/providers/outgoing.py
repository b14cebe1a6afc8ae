"""Outgoing: the one way requests leave for an upstream. Where they may go and what their headers hold.

Redirects off, TLS verified, proxies of the environment ignored, no cookies, headers built and never copied.
http:// goes to loopback and private addresses only, checked on the address that is connected to, so that a
name cannot be pointed elsewhere later. Knows nothing of chat, JSON or errors of upstreams.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import lru_cache

from yarl import URL

from ionrouter import __version__
from ionrouter.addresses import address_of
from ionrouter.errors import ConfigError
from ionrouter.providers.answer import Answer
from ionrouter.providers.base import Held
from ionrouter.providers.http_faults import AddressNotAllowed
from ionrouter.providers.look_ups import AddressInfo
from ionrouter.providers.pool import Origin, Pool, Resolve, resolve

USER_AGENT = f"ionrouter/{__version__}"
MAX_CONNECTIONS = 16384  # on purpose far above what a router needs; the file limit is the other bound
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
MayReach = Callable[[ipaddress.IPv4Address | ipaddress.IPv6Address], bool]
_SHARED = ipaddress.ip_network("100.64.0.0/10")  # RFC 6598, used by overlay networks


class Outgoing:
    """Owns the connections to upstreams and says which may be opened."""

    def __init__(self, find: Resolve = resolve, *, max_connections: int = MAX_CONNECTIONS) -> None:
        self._pool = Pool((find, private_only(find)), max_connections)

    async def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        allow_http: bool,
        connect_s: float,
        held: Held | None = None,
    ) -> Answer:
        """Send a request and wait for the head of its answer.

        `headers` hold checked names and values. Raises ConfigError when `url` may not be called, and what
        `ask` raises.
        """
        head = _remembered_head(method, url, allow_http, tuple(headers.items()))
        return await self.ask(head, body, connect_s, held=held)

    def ask(
        self,
        head: Head,
        body: bytes | None,
        connect_s: float,
        traceparent: str | None = None,
        held: Held | None = None,
    ) -> Awaitable[Answer]:
        """The same with a head that was made before; `traceparent` is one more header, never the same twice.

        `held` is told of a wait for a place among our connections. Raises HttpFault, OSError or ssl.SSLError
        when something goes wrong.
        """
        rest = b"\r\n" if body is None else b"Content-Length: %d\r\n\r\n" % len(body)
        if traceparent is not None:
            rest = b"traceparent: %s\r\n%s" % (traceparent.encode("ascii"), rest)
        return self._pool.ask(head.origin, head.lines + rest, body or b"", connect_s, held)

    def place(self, within_s: float, held: Held | None) -> AbstractAsyncContextManager[float]:
        """Hold a place among our connections for one that another process of ours opens.

        Gives the seconds waited for it; raises NoPlaceLeft after `within_s`.
        """
        return self._pool.place(within_s, held)

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.close()

    def __len__(self) -> int:
        return len(self._pool)


@dataclass(frozen=True, slots=True)
class Target:
    """An address as a request needs it."""

    origin: Origin
    path: str  # with the query
    host: str  # as the Host header says it


@dataclass(frozen=True, slots=True)
class Head:
    """A request's head but for its length, for all requests that differ in nothing else."""

    origin: Origin
    lines: bytes


def target_of(url: str, allow_http: bool) -> Target:
    """Take a URL apart; raises ConfigError when it may not be called."""
    if problem := url_problem(url, allow_http=allow_http):
        raise ConfigError(problem)
    parsed = URL(url)
    host = parsed.raw_host  # in ASCII: sockets and TLS would write some names by the rules of 2003, as others
    assert host is not None and parsed.port is not None  # url_problem has looked
    is_tls = parsed.scheme == "https"
    origin = Origin(host, parsed.port, is_tls, is_private=not (is_tls or allow_http))
    return Target(origin, parsed.raw_path_qs, parsed.host_port_subcomponent or host)


def head_of(method: str, url: str, headers: Iterable[tuple[str, str]], *, allow_http: bool) -> Head:
    """Write a head; names and values were checked. Raises ConfigError when `url` may not be called."""
    target = target_of(url, allow_http)
    lines = [f"{method} {target.path} HTTP/1.1", f"Host: {target.host}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return Head(target.origin, "\r\n".join((*lines, "")).encode("utf-8"))


@lru_cache(maxsize=1024)
def _remembered_head(method: str, url: str, allow_http: bool, headers: tuple[tuple[str, str], ...]) -> Head:
    return head_of(method, url, headers, allow_http=allow_http)


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
    try:
        await private_only(resolve)(parsed.raw_host or "", parsed.port or 80)
    except AddressNotAllowed:
        return f"http:// to {parsed.host}, which is not a private address; use https:// or set allow_http"
    except OSError:
        return None  # the door will say that the name does not resolve
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
) -> Mapping[str, str]:
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


def private_only(find: Resolve) -> Resolve:
    """Resolve names to private addresses only; the answer is what gets connected to."""
    return reaching_only(find, is_private, "http:// to {host}, which is not a private address")


def reaching_only(find: Resolve, may_reach: MayReach, why: str) -> Resolve:
    """Resolve names whose addresses may all be reached; others raise AddressNotAllowed with `why`."""

    async def found(host: str, port: int) -> Sequence[AddressInfo]:
        results = await find(host, port)
        addresses = (_address(str(info[4][0])) for info in results)
        if not all(address is not None and may_reach(address) for address in addresses):
            raise AddressNotAllowed(None, why.format(host=host))
        return results

    return found


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    return address_of(host.partition("%")[0])
