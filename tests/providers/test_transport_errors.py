"""Every fault below HTTP has a row, and no address or key is in the words."""

from __future__ import annotations

import inspect
import ssl

import pytest

from ionrouter.errors import FailureClass
from ionrouter.providers import http_faults
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
)
from ionrouter.providers.transport_errors import TABLE, read_transport_error
from ionrouter.redact import Redactor

ERRORS = ErrorReader("Up", Redactor())


def walked() -> list[type[HttpFault]]:
    classes = (cls for _, cls in inspect.getmembers(http_faults, inspect.isclass))
    return [cls for cls in classes if issubclass(cls, HttpFault) and cls is not HttpFault]


@pytest.mark.parametrize("cls", walked(), ids=lambda cls: cls.__name__)
def test_every_fault_has_a_row_of_its_own(cls: type[HttpFault]) -> None:
    assert cls in TABLE


def test_a_name_that_leads_to_a_public_address_is_a_fault_of_configuration() -> None:
    raised = read_transport_error(AddressNotAllowed(None, "x"), ERRORS)
    assert (raised.failure, raised.code) == (FailureClass.DOMAIN, "config")


@pytest.mark.parametrize(("error", "code"), [(NoFileLeft(24), "no_file"), (NoPlaceLeft(), "no_connection")])
def test_what_this_server_has_no_room_for_is_no_fault_of_the_upstream(error: HttpFault, code: str) -> None:
    raised = read_transport_error(error, ERRORS)
    assert (raised.failure, raised.code, raised.status) == (FailureClass.OWN_LIMIT, code, None)
    assert raised.retry_after_s == 1.0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TimeoutError(), "timeout"),
        (ConnectionResetError(104, "Connection reset by peer"), "cut"),
        (Disconnected(104), "disconnected"),
        (Cut(), "cut"),
        (ConnectTooLong(), "connect_error"),
        (NotConnected(111), "connect_error"),
        (NotResolved(), "connect_error"),
        (Malformed("no end of headers"), "malformed"),
        (ssl.SSLError(1, "https://host/"), "tls"),
        (ssl.SSLCertVerificationError(1, "https://host/"), "tls"),
    ],
)
def test_faults_are_transient_and_name_no_address(error: BaseException, code: str) -> None:
    raised = read_transport_error(error, ERRORS)
    assert (raised.failure, raised.code, raised.status in (None, 504)) == (FailureClass.TRANSIENT, code, True)
    assert "http:" not in raised.message
