from pathlib import Path

import pytest

from ionrouter.routing.reference import BEGIN, END, put_into, render
from ionrouter.routing.schema import schema

PAGE = Path(__file__).parents[2] / "docs" / "routing.md"


def test_the_tables_in_the_docs_are_fresh() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert put_into(text) == text, "run: python -m ionrouter.routing.reference docs/routing.md"


def test_every_field_has_a_row() -> None:
    rows = render().splitlines()
    for name, model in schema()["$defs"].items():
        for field in model["properties"] if name != "DefaultsSpec" else ():
            assert any(row.startswith(f"| `{field}` |") for row in rows), f"{name}.{field}"


def test_defaults_and_choices_are_shown() -> None:
    rows = render().splitlines()
    assert any(row.startswith("| `spread` | number | `1.25` |") for row in rows)
    assert any(row.startswith("| `provider` | text | needed |") for row in rows)
    assert any(row.startswith("| `numerics` | `fast`, `deterministic`, `exact` |") for row in rows)
    assert any(row.startswith("| `keys` | list or text |") for row in rows)


def test_a_page_without_marks_is_refused_and_text_around_them_is_kept() -> None:
    with pytest.raises(ValueError, match="lacks the marks"):
        put_into("# Page\n")
    page = put_into(f"before\n{BEGIN}\nSTALE\n{END}\nafter\n")
    assert page.startswith("before\n")
    assert page.endswith("\nafter\n")
    assert "STALE" not in page
    assert put_into(page) == page
