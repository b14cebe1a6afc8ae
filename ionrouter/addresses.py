"""Hosts that are written as numbers, and who may reach them. Pure; resolves nothing."""

from __future__ import annotations

import ipaddress

_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Read an IP address, without brackets or port; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


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
