"""How wrong keys are counted: by whom a connection comes from, in bounded memory."""

from __future__ import annotations

import ipaddress

import pytest

from ionrouter.addresses import client_address
from ionrouter.api.guard import MAX_ADDRESSES, WrongKeys


@pytest.mark.parametrize(
    ("addresses", "is_one"),
    [
        (("2001:db8:0:1::5", "2001:db8:0:1:ffff:1:2:3"), True),  # a host has 2^64 of them
        (("2001:db8:0:1::5", "2001:db8:0:2::5"), False),
        (("fe80::1%eth0", "fe80::2%eth0"), True),
        (("::ffff:192.0.2.1", "192.0.2.1"), True),
        (("::ffff:192.0.2.1", "::ffff:192.0.2.2"), False),
        (("192.0.2.1", "192.0.2.2"), False),
        (("", ""), True),  # a socket without addresses
    ],
)
def test_a_host_is_counted_once_whatever_it_calls_from(addresses: tuple[str, str], is_one: bool) -> None:
    wrong = WrongKeys(1)
    first, second = (wrong.add(address, 0.0) for address in addresses)
    assert first is None
    assert (second is not None) is is_one


def test_so_many_addresses_are_remembered_and_no_more() -> None:
    wrong = WrongKeys(1)
    for number in range(MAX_ADDRESSES + 10):
        assert wrong.add(f"2001:db8:{number:x}::1", 0.0) is None
    assert len(wrong._levels) == MAX_ADDRESSES


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.9", ["198.51.100.7"], "192.0.2.9"),  # no proxy of ours: its own word is worth nothing
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["203.0.113.1, 198.51.100.7"], "198.51.100.7"),  # the caller wrote the first itself
        ("10.0.0.1", ["203.0.113.1", "198.51.100.7"], "198.51.100.7"),  # a line of its own
        ("10.0.0.1", ["10.9.9.9, 198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["198.51.100.7,10.0.0.2 , 2001:db8:1::3"], "198.51.100.7"),  # three proxies
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),  # a caller out of the proxies' own network
        ("10.0.0.1", ["198.51.100.7:50123"], "198.51.100.7"),
        ("10.0.0.1", ["[2001:db8::7]:50123"], "2001:db8::7"),
        ("10.0.0.1", ["[2001:db8::7]"], "2001:db8::7"),
        ("10.0.0.1", ["2001:db8::7"], "2001:db8::7"),
        ("::ffff:10.0.0.1", ["198.51.100.7"], "198.51.100.7"),  # of a server on ::
        ("10.0.0.1", ["198.51.100.7, ::ffff:10.0.0.2"], "198.51.100.7"),
        ("10.0.0.1", ["198.51.100.7, unix:, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["unknown"], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.7, <script>"], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.7,,"], "10.0.0.1"),
        ("10.0.0.1", ["[::1"], "::1"),
        ("", ["198.51.100.7"], ""),  # a socket without addresses
    ],
)
def test_a_request_is_from_the_last_address_that_is_no_proxys(
    peer: str, forwarded: list[str], client: str
) -> None:
    proxies = [ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("2001:db8:1::/48")]
    assert client_address(peer, forwarded, proxies) == client
    assert client_address(peer, forwarded, []) == peer
