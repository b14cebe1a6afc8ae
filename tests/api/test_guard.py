"""How wrong keys are counted: by whom a connection comes from, in bounded memory."""

from __future__ import annotations

import pytest

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
