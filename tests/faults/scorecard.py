"""docs/faults.md: one row for each fault, door and mode, made from what a run showed; and the public cases.

`python -m tests.faults.scorecard` plays every fault and writes the page anew (`cases`: the list alone).
Nothing in it depends on time.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.faults.arena import CASES, Arena, Case, Seen, arena, mode
from tests.support.pages import ROOT

PAGE = "docs/faults.md"
HEADINGS = (
    "fault",
    "mode",
    "door",
    "what the client got",
    "asked, and how it ended",
    "the primary afterwards",
)
CASE_HEADINGS = ("case", "tests")
_CASE_NAME = re.compile(r"\bG\d{2,3}\b")
_TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)


def row(case: Case, seen: Sequence[Seen], afterwards: str) -> str:
    """What one case showed: every request in order, equal ones counted once."""
    got, asked = [_got(one) for one in seen], [_asked(case, one) for one in seen]
    return line(
        (case.fault.name, mode(case.stream), case.door, _in_turn(got), _in_turn(asked), f"`{afterwards}`")
    )


def _in_turn(texts: Sequence[str]) -> str:
    same = len(set(texts)) == 1
    return (
        f"{len(texts)} times: {texts[0]}" if same and len(texts) > 1 else "; then ".join(dict.fromkeys(texts))
    )


def _got(seen: Seen) -> str:
    if (error := seen.error) is not None and not seen.is_stream:
        return f"{seen.status}, error {error['code']}"
    if error is not None:
        return f"{seen.status}, the beginning, one error event {error['code']}, no [DONE]"
    finish = seen.generation["finish_reason"]
    words = f'"{seen.words}"' if seen.words else "no words"
    return f"{seen.status}, {words}, {finish}{', [DONE]' if seen.is_done else ''}"


def _asked(case: Case, seen: Seen) -> str:
    told = []
    for attempt in seen.generation["provider_responses"]:
        side = {case.primary: "primary", case.fallback: "fallback"}[attempt["endpoint_id"]]
        told.append(f"{side}: {attempt['failure'] or 'ok'}")
    return ", ".join(told)


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def played(arena: Arena, case: Case) -> str:
    """Play a case and tell its row."""
    seen = arena.play(case)
    return row(case, seen, arena.afterwards(case))


def rows_in(text: str, first: str, headings: Sequence[str]) -> list[str]:
    """The rows of the table of one section of the page."""
    part = text.split(f"<!-- made: {first} -->\n", 1)[1].split(f"<!-- end: {first} -->", 1)[0]
    lines = part.splitlines()
    assert lines[:2] == [line(headings), line(["---"] * len(headings))]
    return lines[2:]


def case_rows() -> list[str]:
    """Every public case that a test names, with those tests."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(ROOT)
        for match in _CASE_NAME.finditer(text):
            tests = _TEST.findall(text, 0, match.start())
            where = f"[{name}](../{name})" + (f" `{_owner(text, match.start(), tests)}`")
            if where not in found.setdefault(match[0], []):
                found[match[0]].append(where)
    return [line((case, ", ".join(found[case]))) for case in sorted(found, key=lambda c: int(c[1:]))]


def _owner(text: str, at: int, before: Sequence[str]) -> str:
    """The test whose docstring or body names the case, or the one that a comment or parameter precedes."""
    ahead = _TEST.search(text, at)
    indented = text[text.rfind("\n", 0, at) + 1 :].startswith("    ")
    last_def = max(text.rfind("\ndef ", 0, at), text.rfind("\nasync def ", 0, at))
    inside_parameters = text.rfind("\n@pytest", 0, at) > last_def
    if before and indented and not inside_parameters:
        return before[-1]
    return ahead[1] if ahead else (before[-1] if before else "the whole file")


def with_table(text: str, name: str, headings: Sequence[str], rows: Iterable[str]) -> str:
    """The page with one table made anew."""
    start, end = f"<!-- made: {name} -->\n", f"<!-- end: {name} -->"
    head, _, rest = text.partition(start)
    _, _, tail = rest.partition(end)
    lines = [line(headings), line(["---"] * len(headings)), *rows]
    return head + start + "\n".join(lines) + "\n" + end + tail


def main(only: Sequence[str]) -> None:
    path = ROOT / PAGE
    text = with_table(path.read_text(encoding="utf-8"), "cases", CASE_HEADINGS, case_rows())
    if list(only) != ["cases"]:
        with tempfile.TemporaryDirectory() as folder, arena(Path(folder)) as place:
            text = with_table(text, "faults", HEADINGS, [played(place, case) for case in CASES])
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
