"""aiohttp's exceptions as ours: one table, the most specific match wins. A test walks aiohttp for gaps."""

from __future__ import annotations

import asyncio
import os
import ssl

import aiohttp

from ionrouter.errors import UpstreamError
from ionrouter.providers.http_errors import ErrorReader
from ionrouter.providers.outgoing import AddressNotAllowed

# exception -> (our code, HTTP status it stands for, words). The code `connect_error` promises that not one
# byte of the request was sent, so the same endpoint may be tried again.
TABLE: dict[type[BaseException], tuple[str, int, str]] = {
    aiohttp.ClientConnectorCertificateError: ("tls", 502, "the upstream's certificate is not trusted"),
    aiohttp.ClientConnectorSSLError: ("tls", 502, "no TLS connection to the upstream"),
    aiohttp.ClientSSLError: ("tls", 502, "no TLS connection to the upstream"),
    aiohttp.ServerFingerprintMismatch: ("tls", 502, "the upstream's certificate is not the expected one"),
    ssl.SSLError: ("tls", 502, "TLS to the upstream failed"),
    aiohttp.ClientConnectorDNSError: ("connect_error", 502, "the upstream's name does not resolve"),
    aiohttp.ClientConnectorError: ("connect_error", 502, "cannot connect to the upstream"),
    aiohttp.ConnectionTimeoutError: ("connect_error", 504, "connecting to the upstream took too long"),
    aiohttp.ServerDisconnectedError: ("disconnected", 502, "the upstream closed without an answer"),
    aiohttp.ServerTimeoutError: ("timeout", 504, "the upstream took too long"),
    aiohttp.ClientPayloadError: ("cut", 502, "the upstream's answer was cut off"),
    aiohttp.ClientResponseError: ("malformed", 502, "the upstream's answer is not valid HTTP"),
    aiohttp.InvalidURL: ("config", 502, "base_url is not a usable URL"),
    aiohttp.ClientError: ("cut", 502, "the connection to the upstream failed"),
    asyncio.TimeoutError: ("timeout", 504, "the upstream took too long"),
    OSError: ("cut", 502, "the connection to the upstream broke"),
    ValueError: ("config", 502, "the request cannot be sent as configured"),
}
_REFUSED = frozenset({"config"})  # F2: trying again changes nothing


def read_transport_error(error: BaseException, errors: ErrorReader) -> UpstreamError:
    """Translate an exception met while sending or reading; the message names no address and no key."""
    if _is_not_allowed(error):
        return errors.refused("config", "http:// to a public address is not allowed for this provider")
    match = next(cls for cls in type(error).__mro__ if cls in TABLE)
    code, status, words = TABLE[match]
    detail = _reason(error)
    message = f"{words}: {detail}" if detail else words
    if code in _REFUSED:
        return errors.refused(code, message)
    return errors.fault(code, message, status=status)


def _is_not_allowed(error: BaseException) -> bool:
    return isinstance(error, AddressNotAllowed) or isinstance(
        getattr(error, "os_error", None) or error.__cause__, AddressNotAllowed
    )


def _reason(error: BaseException) -> str:
    """The operating system's short reason ("Connection refused"), without host and port."""
    number = getattr(getattr(error, "os_error", error), "errno", None)
    return os.strerror(number) if isinstance(number, int) and number > 0 else ""
