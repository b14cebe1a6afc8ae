"""Names of special tokens in a text, found as the Hugging Face library finds them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models

from ionrouter.engine.special_tokens import SpecialNames, SpecialToken

NAMES = ("<s>", "</s>", "<|end|>", "<|end|>x", "[INST]", "[", "a b", "é", "]^-\\")


def found(specials: list[SpecialToken], text: str) -> list[tuple[int, int, int]]:
    return [(start, end, special.id) for start, end, special in SpecialNames(specials).find(text)]


def found_by_theirs(specials: list[SpecialToken], text: str) -> list[tuple[int, int, int]]:
    theirs = Tokenizer(models.BPE())  # which has no other tokens
    for special in specials:
        flags = {"lstrip": special.lstrip, "rstrip": special.rstrip, "normalized": False}
        theirs.add_special_tokens([AddedToken(special.text, **flags)])
    encoding = theirs.encode(text, add_special_tokens=False)
    return [(*span, i) for span, i in zip(encoding.offsets, encoding.ids, strict=True)]


specials_of_a_vocabulary = st.lists(
    st.tuples(st.sampled_from(NAMES), st.booleans(), st.booleans()),
    unique_by=lambda made: made[0],
    max_size=9,
).map(lambda made: [SpecialToken(i, *of) for i, of in enumerate(made)])


@settings(max_examples=500, deadline=None)
@given(
    specials_of_a_vocabulary,
    st.lists(st.sampled_from([*NAMES, " ", "\n", "x", "<", "<|", "\u2003"]), max_size=12),
)
def test_names_are_found_as_the_hugging_face_library_does(
    specials: list[SpecialToken], parts: list[str]
) -> None:
    text = "".join(parts)
    assert found(specials, text) == found_by_theirs(specials, text)


def test_the_longest_name_wins_and_the_next_search_begins_behind_it() -> None:
    specials = [SpecialToken(7, "<a>"), SpecialToken(8, "<a><a>"), SpecialToken(9, "<a>b")]
    assert found(specials, "<a><a><a>b<a>c<") == [(0, 6, 8), (6, 10, 9), (10, 13, 7)]


def test_white_space_goes_to_the_name_that_swallows_it_and_to_one_only() -> None:
    specials = [SpecialToken(1, "<l>", lstrip=True), SpecialToken(2, "<r>", rstrip=True)]
    assert found(specials, " <l> <r>\n\t<l>") == [(0, 4, 1), (5, 10, 2), (10, 13, 1)]


def test_a_vocabulary_without_special_tokens_finds_none() -> None:
    assert found([], "<s> and more") == []
