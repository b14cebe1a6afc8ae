"""What goes wrong between here and an upstream, below the level of answers. Names no address and no key."""

from __future__ import annotations

import errno
import ssl

_OTHER_NAME = (62, 64)  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_PLAIN = "WRONG_VERSION_NUMBER"  # as OpenSSL calls what is no TLS at all
_OWN_LIMITS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


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


class NoFileLeft(HttpFault):
    """This process may open no more files or sockets; `errno` says which limit it is."""


class NoPlaceLeft(HttpFault):
    """The time to connect went by in waiting for one of the connections that this process allows itself."""


class Disconnected(HttpFault):
    """The connection ended before the first byte of an answer."""


class Cut(HttpFault):
    """The connection ended in the middle of an answer."""


class Malformed(HttpFault):
    """What came is no HTTP/1.1 answer, or more than one will hold."""


def tls_reason(error: ssl.SSLError) -> str:
    """Say why TLS failed, without a name or an address; its errno is a number of OpenSSL's."""
    if isinstance(error, ssl.SSLCertVerificationError):
        is_other = getattr(error, "verify_code", 0) in _OTHER_NAME  # OpenSSL would name what was asked for
        return "it is made out to another name" if is_other else str(getattr(error, "verify_message", ""))
    reason = str(getattr(error, "reason", None) or "")  # only those that OpenSSL raised have one
    return "no TLS is spoken there" if reason == _PLAIN else reason.replace("_", " ").lower()


def is_own_limit(error: BaseException) -> bool:
    """Ask whether it is this process, or its machine, that has no file, socket or memory left."""
    return isinstance(error, OSError) and error.errno in _OWN_LIMITS
