"""Hosts that are written as numbers, and who may reach them. Pure; resolves nothing."""

from __future__ import annotations

import ipaddress
import re
import socket
import unicodedata
from collections.abc import Iterable, Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NUMBERS = re.compile(r"[0-9a-fx.]+", re.IGNORECASE | re.ASCII)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Read an IP address, without brackets or port; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def host_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Read the address that a resolver takes a URL's host for without asking anybody; None for a name.

    That is 169.254.169.254, too, for 169.254.169.254., 2852039166, 0xA9FEA9FE, 0251.0376.43518, digits and
    dots of other scripts, and the IPv6 addresses that lead to it: mapped, 6to4 or NAT64.
    """
    host = unicodedata.normalize("NFKC", host).replace("\u3002", ".").rstrip(".")
    address = address_of(host)
    if isinstance(address, ipaddress.IPv6Address):
        nat64 = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
        return address.ipv4_mapped or address.sixtofour or nat64 or address
    if address is None and _NUMBERS.fullmatch(host):
        try:
            return ipaddress.IPv4Address(socket.inet_aton(host))
        except OSError:
            return None
    return address


def subscriber_of(address: str) -> str:
    """Name what one subscriber has of the addresses that connections come from: by it callers are counted.

    Of IPv6 that is a /64, out of which a host may take any: 2001:db8:0:1::/64 for 2001:db8:0:1::5. IPv6 that
    leads to an IPv4 address (::ffff:192.0.2.1 on a server on ::) is that address; what is none is itself.
    """
    read = host_address(address)
    if isinstance(read, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((int(read), 64), strict=False))
    return address if read is None else str(read)


def client_address(peer: str, forwarded: Iterable[str], proxies: Sequence[Network]) -> str:
    """Tell where a request comes from that may have come through proxies which are trusted.

    `forwarded`: the lines of X-Forwarded-For, to whose end each proxy adds the address that asked it.
    So they are read from the end: the first that is no proxy's is the client's; what stands before it
    anybody may have written. What is no address ends the reading at the proxy that wrote it.
    """
    client = peer
    entries = ",".join(forwarded).split(",")
    while entries and _is_within(client, proxies):
        entry = _without_port(entries.pop().strip())
        if address_of(entry) is None:
            break
        client = entry
    return client


def _without_port(entry: str) -> str:
    """Read 192.0.2.1:80, [2001:db8::1]:80 and [2001:db8::1], as some proxies write them."""
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    return entry.partition(":")[0] if entry.count(":") == 1 else entry


def _is_within(address: str, networks: Sequence[Network]) -> bool:
    read = address_of(address)
    mapped = read.ipv4_mapped if isinstance(read, ipaddress.IPv6Address) else None  # of a server on ::
    return read is not None and any((mapped or read) in network for network in networks)


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether anybody may reach it: not loopback, private, link-local (cloud metadata) or multicast.

    Nor may it be IPv6 that leads to such an IPv4 address: mapped, 6to4, Teredo or NAT64.
    """
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        inner = [address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if not all(is_public(each) for each in inner if each is not None):
            return False
    return address.is_global and not address.is_multicast
