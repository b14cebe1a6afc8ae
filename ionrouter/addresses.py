"""Whether a host is written as a number. Pure; resolves nothing."""

from __future__ import annotations

import ipaddress


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Read an IP address, without brackets or port; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
