"""No credential that came in any known form leaves in a message or a log line."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ionrouter.redact import _PATTERNS, MARK, MAX_BYTES, Redactor

KEY = 'UP-KEY/with+odd"chars'


@pytest.mark.parametrize(
    "text",
    [
        f"Incorrect API key provided: {KEY}.",
        f"https://up.example/v1?key={quote(KEY, safe='')}&x=1",
        json.dumps({"error": {"message": f"bad key {KEY}"}}),
        f"{KEY}{KEY}",
    ],
)
def test_a_registered_key_goes_in_every_form(text: str) -> None:
    shown = Redactor([KEY])(text)
    for form in (KEY, quote(KEY, safe=""), json.dumps(KEY)[1:-1]):
        assert form not in shown
    assert MARK in shown


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer other-vendor-SECRET-CCC", "other-vendor-SECRET-CCC"),
        ("authorization: bearer abc.def_123~x", "abc.def_123~x"),
        ("Basic dXNlcjpwYXNzd29yZA== was refused", "dXNlcjpwYXNzd29yZA=="),
        ("key sk-proj-abcDEF123456 is wrong", "sk-proj-abcDEF123456"),
        ("Incorrect API key provided: sk-abc12***********wxyz.", "sk-abc12***********wxyz"),
        ("sk-or-v1-0123456789abcdef0123", "sk-or-v1-0123456789abcdef0123"),
        ("https://user:hunter22@proxy.example:8080/x", "hunter22"),
        ("postgres://app:s3cret@db/x", "s3cret"),
        ("?key=AIzaSyA-1234567890abcdefghij", "AIzaSyA-1234567890abcdefghij"),
        ('{"api_key": "0123456789abcdef"}', "0123456789abcdef"),
        ('{\\"api_key\\": \\"0123456789abcdef\\"}', "0123456789abcdef"),
        ("x-api-key: 0123456789abcdef", "0123456789abcdef"),
        ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig-nature", "eyJzdWIiOiIxIn0"),
        ("gsk_0123456789abcdef", "gsk_0123456789abcdef"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
    ],
)
def test_what_looks_like_a_credential_goes(text: str, secret: str) -> None:
    """G123: a wrong key is never echoed."""
    assert secret not in Redactor()(text)


@pytest.mark.parametrize(
    "text",
    [
        "model meta-llama/Llama-3.3-70B-Instruct not found",
        "This model's maximum context length is 8192 tokens, however you requested 9000.",
        "https://docs.example/errors#rate-limits",
        "task-oriented risk-free desk-lamp",
        "the key was a key",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert Redactor(["EMPTY", "none", ""])(text) == text


def test_placeholder_keys_are_not_secrets() -> None:
    assert Redactor(["EMPTY"])("EMPTY response") == "EMPTY response"


def test_a_key_registered_later_counts_too() -> None:
    redact = Redactor()
    redact.register("  LATER-KEY-1\n")
    assert "LATER-KEY-1" not in redact("with LATER-KEY-1 inside")


def test_the_longer_of_two_keys_goes_whole() -> None:
    assert Redactor(["abcdef", "abcdef-ghijkl"])("abcdef-ghijkl") == MARK


@given(st.text(), st.integers(min_value=16, max_value=4096))
def test_the_result_is_valid_utf8_within_its_limit(text: str, limit: int) -> None:
    shown = Redactor()(text, limit)
    assert len(shown.encode("utf-8")) <= limit


def test_long_text_is_cut_at_2_kb_and_a_lone_surrogate_does_not_raise() -> None:
    shown = Redactor()("\ud83d" + "ä" * 5000)
    assert len(shown.encode("utf-8")) <= MAX_BYTES
    assert shown.endswith("…")


def test_bytes_that_are_no_utf8_are_shown_as_they_can_be() -> None:
    assert Redactor()(b"caf\xe9 sk-abcdefgh1234").startswith("caf\ufffd ")


def test_terminal_escapes_do_not_reach_a_log() -> None:
    assert "\x1b" not in Redactor()("\x1b[31mred\x00\x07")


@pytest.mark.parametrize("offset", [65530, 65536 - 10, 65536])
def test_a_key_at_the_edge_of_what_is_scanned_does_not_leak_a_half(offset: int) -> None:
    secret = "TOPSECRET-0123456789"
    shown = Redactor([secret])("x" * offset + secret, max_bytes=1 << 20)
    assert "TOPSECRET" not in shown


FRAGMENTS = (
    *(
        "://",
        "u:p@",
        "BEARER",
        "bea\u017fer",
        "Basic ",
        "Ba\u017fic",
        "ba\u0131ic",
        "apiKey",
        "api\u212aey",
        "API_KEY",
    ),
    *(
        "=abcdefgh",
        ": 'abcdefgh'",
        "pa\u017fsword",
        "PassWord",
        "client-\u017fecret",
        "sk-abcdefgh",
        "SK-abcdefgh",
    ),
    *("gsk_0123456789ab", "tgp_v1-0123456789ab", "r8_0123456789ab", "AIza" + "x" * 20, "AKIA" + "0" * 12),
    *(
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0",
        "score 0.00021, first pick of 3",
        " ",
        "\n",
        "ä",
        "?key=123456",
    ),
)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join))
def test_what_is_looked_at_once_only_would_have_been_changed_by_no_pattern(text: str) -> None:
    whole = text
    for pattern, replacement in _PATTERNS:
        whole = pattern.sub(replacement, whole)
    assert Redactor()._replace(text) == whole
