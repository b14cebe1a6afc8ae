"""Control tokens, and where their names stand in a text; a vocabulary may have more than a thousand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A control token; `lstrip`/`rstrip`: it swallows the white space beside it in template text."""

    id: int
    text: str
    lstrip: bool = False
    rstrip: bool = False


class SpecialNames:
    """Finds the names of these tokens. How many there are costs no time, only how many lengths they have."""

    def __init__(self, specials: Sequence[SpecialToken]) -> None:
        self._by_text: dict[str, SpecialToken] = {}
        lengths: dict[str, set[int]] = {}
        for special in specials:
            self._by_text.setdefault(special.text, special)
            lengths.setdefault(special.text[0], set()).add(len(special.text))
        self._lengths = {first: sorted(of_first, reverse=True) for first, of_first in lengths.items()}
        self._first = re.compile(f"[{''.join(map(re.escape, lengths))}]" if lengths else "(?!)")

    def find(self, text: str) -> Iterator[tuple[int, int, SpecialToken]]:
        """Yield start, end and token of every name from left to right; white space that it swallows is in."""
        at = 0  # behind the last name
        match = self._first.search(text)
        while match:
            begin = match.start()
            special = self._longest_at(text, begin)
            if special is not None:
                end = begin + len(special.text)
                while special.lstrip and begin > at and text[begin - 1].isspace():
                    begin -= 1
                while special.rstrip and text[end : end + 1].isspace():
                    end += 1
                yield begin, end, special
                at = end
            match = self._first.search(text, begin + 1 if special is None else at)

    def _longest_at(self, text: str, begin: int) -> SpecialToken | None:
        # So that no name hides a longer one that begins with it.
        for length in self._lengths[text[begin]]:
            if special := self._by_text.get(text[begin : begin + length]):
                return special
        return None
