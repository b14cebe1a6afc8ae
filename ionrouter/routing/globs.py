"""Patterns for model names: `*` stands for any text, everything else for itself."""

from __future__ import annotations

from collections.abc import Iterable


def matches(glob: str, name: str) -> bool:
    """Whether `name` fits `glob`, ignoring case. Linear in the name for every star."""
    first, *rest = glob.casefold().split("*")
    text = name.casefold()
    if not rest:
        return text == first
    if not text.startswith(first):
        return False
    position, last = len(first), rest.pop()
    for part in rest:
        found = text.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    return len(text) - position >= len(last) and text.endswith(last)


def precision(glob: str) -> tuple[int, int]:
    """Sort key: the longest text before the first star wins, then the most text in all."""
    return len(glob.split("*", 1)[0]), len(glob.replace("*", ""))


def best_match(globs: Iterable[str], name: str) -> str | None:
    """The most precise of the globs that fit; of equals the first."""
    fitting = [glob for glob in globs if matches(glob, name)]
    return max(fitting, key=precision, default=None)
