"""Every exception of aiohttp has a row, and no address or key is in the words."""

from __future__ import annotations

import inspect

import aiohttp
import pytest
from aiohttp import client_exceptions

from ionrouter.errors import FailureClass
from ionrouter.providers.http_errors import ErrorReader
from ionrouter.providers.outgoing import AddressNotAllowed
from ionrouter.providers.transport_errors import TABLE, read_transport_error
from ionrouter.redact import Redactor

ERRORS = ErrorReader("Up", Redactor())
CATCH_ALL = {aiohttp.ClientError, OSError, ValueError}
# Not ours to meet: no web sockets, no proxies, no redirects, no Unix sockets.
UNUSED = ("WS", "Proxy", "Redirect", "Unix", "NonHttp", "TooManyRedirects")


def walked() -> list[type[BaseException]]:
    return [
        cls
        for name, cls in inspect.getmembers(client_exceptions, inspect.isclass)
        if issubclass(cls, BaseException) and cls.__module__ == client_exceptions.__name__
        and not any(word in name for word in UNUSED)
    ]  # fmt: skip


@pytest.mark.parametrize("cls", walked(), ids=lambda cls: cls.__name__)
def test_every_exception_of_aiohttp_has_a_row(cls: type[BaseException]) -> None:
    match = next((base for base in cls.__mro__ if base in TABLE), None)
    assert match is not None
    # Bases that are only ever raised through a subclass with its own row.
    bases = {"ClientError", "ClientConnectionError", "ClientOSError", "ServerConnectionError",
             "ClientConnectionResetError", "UploadAbortedError"}  # fmt: skip
    assert match not in CATCH_ALL or cls.__name__ in bases


def test_a_name_that_leads_to_a_public_address_is_a_fault_of_configuration() -> None:
    error = aiohttp.ClientConnectorDNSError.__new__(aiohttp.ClientConnectorDNSError)
    error._os_error = AddressNotAllowed(None, "x")
    raised = read_transport_error(error, ERRORS)
    assert (raised.failure, raised.code) == (FailureClass.DOMAIN, "config")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TimeoutError(), "timeout"),
        (ConnectionResetError(104, "Connection reset by peer"), "cut"),
        (aiohttp.ServerDisconnectedError(), "disconnected"),
        (aiohttp.ClientPayloadError("Response payload is not completed"), "cut"),
        (aiohttp.ConnectionTimeoutError("Connection timeout to host http://h:1/x?key=K"), "connect_error"),
        (aiohttp.ClientOSError(32, "Broken pipe"), "cut"),
    ],
)
def test_faults_are_transient_and_name_no_address(error: BaseException, code: str) -> None:
    raised = read_transport_error(error, ERRORS)
    assert (raised.failure, raised.code, raised.status in (None, 504)) == (FailureClass.TRANSIENT, code, True)
    assert "http" not in raised.message
