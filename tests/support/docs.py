"""The generated parts of docs/: tables between `<!-- made: NAME -->` and `<!-- end: NAME -->`.

`python -m tests.support.docs` writes them anew. In tables that end with a column of words the words are
written by people, in the page, and kept by the name in the first column; all other columns are made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.support import docs_tables
from tests.support.pages import ROOT

TO_DO = "TO DO"  # stands where words are missing, until somebody writes them
_MADE = re.compile(r"(?ms)^<!-- made: ([\w-]+) -->\n(.*?)^<!-- end: \1 -->$")
Rows = Callable[[], Iterable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Table:
    """Headings and how the rows come about; `has_words`: the last heading's cells are people's."""

    headings: tuple[str, ...]
    rows: Rows
    has_words: bool = True


TABLES: Mapping[str, Mapping[str, Table]] = {
    "docs/api.md": {
        "routes": Table(("route", "who may", "what it answers"), docs_tables.http_routes),
        "request-fields": Table(("field", "takes", "kind", "Ion", ""), docs_tables.request_fields),
        "provider-object": Table(("key", "takes", ""), docs_tables.provider_object),
        "ionrouter-object": Table(("key", "takes", ""), docs_tables.ionrouter_object),
        "error-types": Table(("`error_type`", "status", "when"), docs_tables.error_types),
        "availability-codes": Table(("code", "when"), docs_tables.availability_codes),
        "model-filters": Table(("parameter", "keeps models"), docs_tables.model_filters),
    },
    "docs/operations.md": {
        "settings": Table(("setting", "takes", "default", "meaning"), docs_tables.settings, has_words=False),
        "commands": Table(("command", "what it does"), docs_tables.commands, has_words=False),
        "log-events": Table(("event", "level", "keys", "when"), docs_tables.log_events),
        "metrics": Table(("metric", "type", "labels", "what"), docs_tables.metrics, has_words=False),
    },
    "docs/decisions/README.md": {
        "decisions": Table(("", "decision"), docs_tables.decisions, has_words=False),
    },
}


def put_into(text: str, tables: Mapping[str, Table]) -> str:
    """The page with fresh tables; raises ValueError if a table has no place or a place no table."""
    places = [match[1] for match in _MADE.finditer(text)]
    if sorted(places) != sorted(tables):
        raise ValueError(f"the page has places for {sorted(places)}, there are tables for {sorted(tables)}")
    return _MADE.sub(lambda match: _section(match[1], tables[match[1]], match[2]), text)


def _section(name: str, table: Table, old: str) -> str:
    words = words_in(old)
    lines = [_line(table.headings), _line(["---"] * len(table.headings))]
    for row in table.rows():
        lines.append(_line([*row, words.get(row[0], TO_DO)] if table.has_words else row))
    return "\n".join([f"<!-- made: {name} -->", *lines, f"<!-- end: {name} -->"])


def words_in(table: str) -> dict[str, str]:
    """First cell -> last cell of every row, headings included."""
    rows = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("|")]
    return {row[0].strip(): row[-1].strip() for row in rows}


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    for page, made in TABLES.items():
        path = ROOT / page
        path.write_text(put_into(path.read_text(encoding="utf-8"), made), encoding="utf-8")
