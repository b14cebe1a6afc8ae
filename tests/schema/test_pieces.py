"""One object of several pieces."""

from __future__ import annotations

from ionrouter.schema.pieces import Pieces


def test_texts_are_joined_and_of_the_rest_the_last_word_counts() -> None:
    pieces = Pieces(("text",))
    for piece in (
        {"id": None, "text": "a", "n": 1},
        {"text": None, "id": "i"},
        {"text": "b", "n": 2, "id": None},
    ):
        pieces.add(piece)
    assert list(pieces.joined().items()) == [("id", "i"), ("text", "ab"), ("n", 2)]


def test_a_text_that_was_only_ever_null_stays_null() -> None:
    pieces = Pieces(("text",))
    pieces.add({"text": None})
    assert pieces.joined() == {"text": None}
