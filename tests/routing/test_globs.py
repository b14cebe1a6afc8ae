import re

from hypothesis import given
from hypothesis import strategies as st

from ionrouter.routing.globs import best_match, matches, precision

pieces = st.text(alphabet="ab/:*[?.", max_size=8)


@given(glob=pieces, name=st.text(alphabet="ab/:[?.", max_size=10))
def test_a_star_is_any_text_and_all_else_is_itself(glob: str, name: str) -> None:
    expected = re.fullmatch(".*".join(re.escape(part) for part in glob.split("*")), name) is not None
    assert matches(glob, name) == expected


def test_case_is_ignored() -> None:
    assert matches("Anthropic/*", "anthropic/Claude")


def test_the_longest_text_before_the_star_wins_then_the_most_text_in_all() -> None:
    globs = ["*", "a/*", "a/c*", "a/*-mini"]
    assert best_match(globs, "a/claude") == "a/c*"
    assert best_match(["a/*-long-tail", "a/c*"], "a/c-long-tail") == "a/c*"
    assert best_match(globs, "a/gpt-mini") == "a/*-mini"
    assert best_match(globs, "a/gpt") == "a/*"
    assert best_match(globs, "z") == "*"
    assert best_match(["a/*"], "z") is None
    assert precision("a/*-mini") > precision("a/*")


def test_many_stars_do_not_take_forever() -> None:
    assert not matches("*a" * 50 + "*b", "a" * 5000)
