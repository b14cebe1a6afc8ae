"""What goes wrong below HTTP as ours: one table, the most specific match wins. A test walks it for gaps."""

from __future__ import annotations

import asyncio
import os
import ssl

from ionrouter.errors import UpstreamError
from ionrouter.providers.http_errors import ErrorReader
from ionrouter.providers.http_faults import (
    AddressNotAllowed,
    ConnectTooLong,
    Cut,
    Disconnected,
    HttpFault,
    Malformed,
    NoFileLeft,
    NoPlaceLeft,
    NotConnected,
    NotResolved,
    tls_reason,
)

# exception -> (our code, HTTP status it stands for, words). The code `connect_error` promises that not one
# byte of the request was sent, so the same endpoint may be tried again.
TABLE: dict[type[BaseException], tuple[str, int, str]] = {
    ssl.SSLCertVerificationError: ("tls", 502, "the upstream's certificate is not trusted"),
    ssl.SSLError: ("tls", 502, "TLS to the upstream failed"),
    NotResolved: ("connect_error", 502, "the upstream's name does not resolve"),
    NotConnected: ("connect_error", 502, "cannot connect to the upstream"),
    ConnectTooLong: ("connect_error", 504, "connecting to the upstream took too long"),
    NoFileLeft: ("no_file", 503, "this server can open no connection to the upstream"),
    NoPlaceLeft: ("no_connection", 503, "all of this server's connections to upstreams are in use"),
    Disconnected: ("disconnected", 502, "the upstream closed without an answer"),
    Cut: ("cut", 502, "the upstream's answer was cut off"),
    Malformed: ("malformed", 502, "the upstream's answer is not valid HTTP"),
    asyncio.TimeoutError: ("timeout", 504, "the upstream took too long"),
    OSError: ("cut", 502, "the connection to the upstream broke"),
    ValueError: ("config", 502, "the request cannot be sent as configured"),
}
_REFUSED = frozenset({"config"})  # F2: trying again changes nothing
_OURS = frozenset({"no_file", "no_connection"})  # nothing was asked of the upstream


def read_transport_error(error: BaseException, errors: ErrorReader) -> UpstreamError:
    """Translate an exception met while sending or reading; the message names no address and no key."""
    if isinstance(error, AddressNotAllowed):
        return errors.refused("config", "http:// to a public address is not allowed for this provider")
    match = next(cls for cls in type(error).__mro__ if cls in TABLE)
    code, status, words = TABLE[match]
    detail = _reason(error)
    message = f"{words}: {detail}" if detail else words
    if code in _REFUSED:
        return errors.refused(code, message)
    return errors.own_limit(code, message) if code in _OURS else errors.fault(code, message, status=status)


def _reason(error: BaseException) -> str:
    """A short reason without host and port: the operating system's ("Connection refused"), or that of TLS."""
    if isinstance(error, ssl.SSLError):  # before errno, which is a number of OpenSSL's there
        return tls_reason(error)
    if isinstance(error, HttpFault) and (told := str(error)):
        return told
    number = getattr(error, "errno", None)
    return os.strerror(number) if isinstance(number, int) and number > 0 else ""
