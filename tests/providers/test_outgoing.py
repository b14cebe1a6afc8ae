"""Where requests may go and what their headers hold."""

from __future__ import annotations

import ipaddress

import pytest

from ionrouter import __version__
from ionrouter.errors import ConfigError
from ionrouter.providers.http_faults import AddressNotAllowed
from ionrouter.providers.outgoing import (
    build_headers,
    is_private,
    private_only,
    target_of,
    url_problem,
)
from ionrouter.providers.pool import Origin
from tests.support.resolver import fixed


@pytest.mark.parametrize(
    "url",
    [
        "https://api.example/v1", "http://127.0.0.1:8000/v1", "http://localhost:8000", "http://10.1.2.3/v1",
        "http://192.168.0.9:1/v1", "http://172.31.0.1/v1", "http://[::1]:8000/v1", "http://[fd00::1]/v1",
        "http://100.64.0.7/v1", "http://vllm:8000/v1",
    ],
)  # fmt: skip
def test_https_anywhere_and_http_to_private_addresses_is_fine(url: str) -> None:
    assert url_problem(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://8.8.8.8/v1", "http://[2001:4860:4860::8888]/v1", "http://169.254.169.254/latest",
        "http://[::ffff:8.8.8.8]/v1", "http://172.32.0.1/v1", "ftp://10.0.0.1/", "file:///etc/passwd", "",
        "api.example/v1", "http://", "https://user:pass@api.example/v1", "http://[::1",
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_words(url: str) -> None:
    problem = url_problem(url)
    assert problem
    assert "pass" not in problem


def test_allow_http_allows_public_http_only() -> None:
    assert url_problem("http://8.8.8.8/v1", allow_http=True) is None
    assert url_problem("ftp://8.8.8.8/v1", allow_http=True)


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.8.9.1", True), ("10.0.0.1", True), ("169.254.169.254", False), ("8.8.8.8", False),
     ("::ffff:10.0.0.1", True), ("::ffff:8.8.8.8", False), ("fe80::1", False), ("224.0.0.1", False)],
)  # fmt: skip
def test_private_means_reachable_without_the_internet(address: str, expected: bool) -> None:
    assert is_private(ipaddress.ip_address(address)) is expected


async def test_a_name_is_judged_by_the_addresses_it_leads_to() -> None:
    found = await private_only(fixed("10.0.0.1", "::1"))("vllm", 80)
    assert [info[4][0] for info in found] == ["10.0.0.1", "::1"]
    for addresses in (("8.8.8.8",), ("10.0.0.1", "8.8.8.8"), ("169.254.169.254",)):
        with pytest.raises(AddressNotAllowed):
            await private_only(fixed(*addresses))("rebound.example", 80)


def test_plain_http_may_lead_to_private_addresses_only() -> None:
    assert target_of("http://vllm:8000/v1/x?y=1", False).origin == Origin("vllm", 8000, False, True)
    assert target_of("http://vllm:8000/v1", True).origin == Origin("vllm", 8000, False, False)
    assert target_of("https://a.example/v1", False).origin == Origin("a.example", 443, True, False)
    with pytest.raises(ConfigError):
        target_of("http://8.8.8.8/v1", False)


@pytest.mark.parametrize("host", ["stra\u00dfe.example", "xn--strae-oqa.example"])
def test_a_name_is_looked_up_as_it_is_written_in_ascii_and_never_as_another(host: str) -> None:
    """The codec of sockets and of TLS makes strasse.example of both, which may be somebody else's."""
    target = target_of(f"https://{host}/v1", False)
    assert target.origin.host == target.host == "xn--strae-oqa.example"


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [("http://vllm:8000/v1", "vllm:8000", "/v1"), ("https://a.example/v1?k=%20", "a.example", "/v1?k=%20"),
     ("https://a.example", "a.example", "/"), ("http://[::1]:80/v1", "[::1]", "/v1"),
     ("http://[::1]:81/v1", "[::1]:81", "/v1")],
)  # fmt: skip
def test_the_request_line_and_the_host_header_are_those_of_the_url(url: str, host: str, path: str) -> None:
    target = target_of(url, False)
    assert (target.host, target.path) == (host, path)


def test_headers_come_from_configuration_alone() -> None:
    headers = build_headers({"X-Title": "t"}, "UP-KEY", accept="application/json")
    assert headers == {
        "User-Agent": f"ionrouter/{__version__}",
        "Accept": "application/json",
        "Content-Type": "application/json",
        "X-Title": "t",
        "Authorization": "Bearer UP-KEY",
    }


def test_the_key_wins_over_a_configured_authorization() -> None:
    headers = build_headers({"authorization": "Bearer old"}, "UP-KEY", accept="*/*")
    assert [v for k, v in headers.items() if k.lower() == "authorization"] == ["Bearer UP-KEY"]


def test_without_a_key_a_configured_authorization_stays() -> None:
    assert build_headers({"Authorization": "Token x"}, None, accept="*/*")["Authorization"] == "Token x"
    assert "Authorization" not in build_headers({}, "  ", accept="*/*")


def test_a_key_file_ends_with_a_newline() -> None:
    """G130."""
    assert build_headers({"X-A": " v\r\n"}, "UP-KEY\n", accept="*/*")["Authorization"] == "Bearer UP-KEY"


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\rb", "a\0b"])
def test_a_line_break_in_a_value_is_refused_by_name_and_never_shown(value: str) -> None:
    """G130."""
    with pytest.raises(ConfigError, match="X-Title") as caught:
        build_headers({"X-Title": value}, None, accept="*/*")
    assert "Evil" not in str(caught.value)
    with pytest.raises(ConfigError, match="Authorization"):
        build_headers({}, value, accept="*/*")


@pytest.mark.parametrize("name", ["Host", "content-length", "Transfer-Encoding", "Connection", "Cookie"])
def test_framing_headers_cannot_be_configured(name: str) -> None:
    with pytest.raises(ConfigError, match="transport"):
        build_headers({name: "x"}, None, accept="*/*")


@pytest.mark.parametrize("name", ["", "a b", "a\r\nb", "a:b", "ä"])
def test_a_header_name_is_a_token(name: str) -> None:
    with pytest.raises(ConfigError, match="header name"):
        build_headers({name: "x"}, None, accept="*/*")
