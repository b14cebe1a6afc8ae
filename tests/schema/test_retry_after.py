"""Retry-After in all its forms (G56)."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ionrouter.schema.retry_after import MAX_RETRY_AFTER_S, parse_retry_after

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("2.5", 2.5),
        ("0", 0.0),
        ("-1", None),
        ("1e9", MAX_RETRY_AFTER_S),
        ("inf", None),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("Wed, 21 Oct 2099 07:28:00 GMT", MAX_RETRY_AFTER_S),
        (formatdate(NOW + 10, usegmt=True), 10.0),
        (formatdate(NOW - 10, usegmt=True), 0.0),
        ("Wed, 99 Foo 2099 99:28:00 GMT", None),
    ],
)
def test_every_form_is_read_or_refused(text: str, seconds: float | None) -> None:
    assert parse_retry_after({"Retry-After": text}, NOW) == seconds


def test_milliseconds_win_and_names_are_matched_in_any_case() -> None:
    assert parse_retry_after({"RETRY-AFTER-MS": "1500", "retry-after": "9"}, NOW) == 1.5
    assert parse_retry_after({"retry-after-ms": "soon", "retry-after": "9"}, NOW) == 9.0
    assert parse_retry_after({}, NOW) is None


@given(st.text())
def test_no_text_raises(text: str) -> None:
    seconds = parse_retry_after({"retry-after": text, "retry-after-ms": text}, NOW)
    assert seconds is None or 0 <= seconds <= MAX_RETRY_AFTER_S
