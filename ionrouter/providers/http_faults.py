"""What goes wrong between here and an upstream, below the level of answers. Names no address and no key."""

from __future__ import annotations


class HttpFault(Exception):
    """Base. `errno` is the operating system's number, where there is one."""

    def __init__(self, why: int | str | None = None) -> None:
        super().__init__(why if isinstance(why, str) else "")
        self.errno = why if isinstance(why, int) else None


class AddressNotAllowed(OSError):
    """A plain http:// name leads to a public address."""


class NotResolved(HttpFault):
    """The upstream's name leads to no address."""


class NotConnected(HttpFault):
    """No connection; not one byte of the request was sent."""


class ConnectTooLong(HttpFault):
    """No connection in time; not one byte of the request was sent."""


class Disconnected(HttpFault):
    """The connection ended before the first byte of an answer."""


class Cut(HttpFault):
    """The connection ended in the middle of an answer."""


class Malformed(HttpFault):
    """What came is no HTTP/1.1 answer, or more than one will hold."""
