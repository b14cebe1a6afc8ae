"""Reads server-sent events as a strict client would: every data line must be JSON or [DONE]."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def data_lines(text: str) -> list[str]:
    """The data of each event; comments are left out, anything else is an error."""
    found = []
    assert text == "" or text.endswith("\n\n"), f"the last event is not terminated: {text[-80:]!r}"
    for block in text.split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        assert block.startswith("data: "), block
        assert "\n" not in block, block
        found.append(block.removeprefix("data: "))
    return found


def chunks(text: str) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=_no_constant) for line in data_lines(text) if line != "[DONE]"]


def content(text: str) -> str:
    return "".join(
        choice["delta"].get("content") or "" for chunk in chunks(text) for choice in chunk["choices"]
    )


class Pieces:
    """A source of bytes, as reads bring them."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    async def pour(self, take: Callable[[bytes], bool]) -> None:
        while take(self._pieces.pop(0) if self._pieces else b""):
            pass
