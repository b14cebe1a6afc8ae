"""Pieces: one object of an answer that comes a piece at a time. Knows no field's meaning."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


class Pieces:
    """Texts under `keys` are joined at the end; of every other field the last word but null counts."""

    __slots__ = ("_fields", "_keys", "_texts")

    def __init__(self, keys: Collection[str]) -> None:
        self._keys = keys
        self._fields: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}

    def add(self, piece: Mapping[str, Any]) -> None:
        """Take in the next piece."""
        fields, texts = self._fields, self._texts
        for key, value in piece.items():
            if key in texts:
                if value is not None:
                    texts[key].append(value)
            elif key in self._keys and value is not None:
                fields[key], texts[key] = value, [value]  # in `fields` for its place among the others
            elif value is not None or key not in fields:
                fields[key] = value

    def joined(self) -> dict[str, Any]:
        """The object."""
        return {**self._fields, **{key: "".join(texts) for key, texts in self._texts.items()}}
