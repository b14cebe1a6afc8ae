"""The pages of the documentation, and what stands in them in code font."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
_FENCE = re.compile(r"(?ms)^```\w*\n(.*?)^```$")
_CODE = re.compile(r"`([^`\n]+)`")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def code_in(text: str) -> list[str]:
    """Everything in code font: blocks line by line, then spans."""
    blocks = [line for block in _FENCE.findall(text) for line in block.splitlines()]
    return blocks + _CODE.findall(prose_of(text))


def prose_of(text: str) -> str:
    """The text without its code blocks."""
    return _FENCE.sub("", text)
