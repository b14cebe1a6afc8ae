"""The text in a custom tool's arguments, however they are cut."""

from __future__ import annotations

import json

import pytest

from ionrouter.schema.input_text import InputText

TEXT = 'a "b"\n\\c\t\u00e9 \U0001f600 d \\ud83d'


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 1000])
@pytest.mark.parametrize("is_ascii", [True, False])
def test_it_is_given_as_it_comes(size: int, is_ascii: bool) -> None:
    arguments = json.dumps({"input": TEXT}, ensure_ascii=is_ascii)
    reader = InputText()
    pieces = [reader.add(arguments[at : at + size]) for at in range(0, len(arguments), size)]
    assert "".join(pieces) == reader.whole() == TEXT
    assert reader.rest() == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a\\', "a"),
        ('{"input": "a\\ud83d', "a"),
        ('{"input": "a\\ud83d"}', "a\ufffd"),
        ('{"input": "two\nlines"}', "two\nlines"),
        ('{"input": "\\d\\\\d \\user \\u12\\n"}', "\\d\\d \\user \\u12\n"),
        ('{"other": 1, "input": "a"}', "a"),
        ('{"input": 3}', '{"input": 3}'),
        ("", ""),
    ],
)
def test_what_is_cut_or_odd_is_shown_as_far_as_it_goes(arguments: str, text: str) -> None:
    for pieces in ([arguments], arguments):
        reader = InputText()
        assert "".join(map(reader.add, pieces)) + reader.rest() == reader.whole() == text
