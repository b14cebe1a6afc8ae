"""Putting a few lines into the text of a YAML file without touching any other byte. Knows no fields.

ruamel tells where things stand; the text is cut there, so that comments, quotes and alignment stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ruamel.yaml import YAML
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from ionrouter.errors import ConfigError

INDENT = 2
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./@+-]*")
_WORDS_OF_YAML = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def scalar(text: str) -> str:
    """Write a text as a YAML scalar, quoted when it must be."""
    is_plain = _PLAIN.fullmatch(text) is not None and text.lower() not in _WORDS_OF_YAML
    return text if is_plain else json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Text:
    """A file's text and its YAML nodes."""

    text: str
    root: MappingNode

    @classmethod
    def parse(cls, text: str) -> Text:
        """Read a text that is known to be valid YAML."""
        root = YAML(typ="rt").compose(text)
        if not isinstance(root, MappingNode):
            raise ConfigError("the file must hold sections such as providers: and models:")
        return cls(text, root)

    def node(self, path: Sequence[str]) -> Node | None:
        """The value at a path of keys, or None."""
        node: Node | None = self.root
        for key in path:
            pair = _pair(node, key)
            node = pair[1] if pair else None
        return node

    def append(self, path: Sequence[str], lines: Sequence[str], *, blank_before: bool = False) -> str:
        """The text with `lines` at the end of the block at `path`; makes the block if it is empty or absent.

        `lines` begin at column 0 and are moved to the block's own column. Raises ConfigError if the block is
        written in braces or comes from an anchor.
        """
        block = self.node(path)
        if block is None:
            inner = [f"{scalar(path[-1])}:", *_moved(lines, INDENT)]
            return (
                self.append(path[:-1], inner, blank_before=len(path) == 1)
                if path[:-1]
                else self._at_end(inner)
            )
        if _is_empty(block):
            return self._fill(path, block, lines)
        self._refuse_foreign(path, block)
        column = self._column(block)
        after = self._last_line(block, column)
        new = _moved(lines, column)
        needs_blank = blank_before and self.text.splitlines()[after].strip()
        return self._insert(after, ["", *new] if needs_blank else new)

    def _at_end(self, lines: Sequence[str]) -> str:
        return self.text.rstrip("\r\n") + self._newline + self._newline.join(["", *lines, ""])

    def _fill(self, path: Sequence[str], block: Node, lines: Sequence[str]) -> str:
        """Fill `key:` or `key: {}`."""
        key = _key(self, path)
        new = _moved(lines, key.start_mark.column + INDENT)
        start, end = block.start_mark.index, block.end_mark.index
        emptied = Text(
            self.text[:start].rstrip(" ") + self.text[end:] if end > start else self.text, self.root
        )
        return emptied._insert(key.end_mark.line, new)

    def _refuse_foreign(self, path: Sequence[str], block: Node) -> None:
        where = ".".join(path)
        if block.start_mark.index < _key(self, path).start_mark.index:
            raise ConfigError(f"{where} comes from an anchor; write it out first")
        if _is_in_brackets(block):
            raise ConfigError(f"{where} is written in braces or brackets; write it one entry a line first")

    def _column(self, block: Node) -> int:
        """Where the keys or dashes of a block stand; its own mark may be that of an anchor before it."""
        if isinstance(block, MappingNode):
            return int(block.value[0][0].start_mark.column)
        first = self.text.splitlines()[block.value[0].start_mark.line]
        return len(first) - len(first.lstrip(" "))

    def _last_line(self, block: Node, column: int) -> int:
        """0-based line on which a block ends, with comments that are indented deeper than its keys."""
        last = max(_end_line(node) for node in _leaves(block, block.start_mark.index))
        lines = self.text.splitlines()
        while last + 1 < len(lines) and _is_comment_below(lines[last + 1], column):
            last += 1
        return last

    def _insert(self, after: int, new: Sequence[str]) -> str:
        lines = self.text.splitlines(keepends=True)
        if lines and not lines[-1].endswith(("\n", "\r")):
            lines[-1] += self._newline
        return "".join([*lines[: after + 1], *(line + self._newline for line in new), *lines[after + 1 :]])

    @property
    def _newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"


def _moved(lines: Sequence[str], column: int) -> list[str]:
    return [f"{' ' * column}{line}" if line else line for line in lines]


def _pair(node: Node | None, key: str) -> tuple[Node, Node] | None:
    if not isinstance(node, MappingNode):
        return None
    return next(((k, v) for k, v in node.value if k.value == key), None)


def _key(text: Text, path: Sequence[str]) -> Node:
    pair = _pair(text.node(path[:-1]), path[-1])
    assert pair is not None, path
    return pair[0]


def _is_empty(node: Node) -> bool:
    if isinstance(node, ScalarNode):
        return str(node.tag).endswith(":null")
    return not node.value


def _is_in_brackets(node: Node) -> bool:
    return isinstance(node, CollectionNode) and bool(node.flow_style)


def _leaves(node: Node, start: int) -> Iterator[Node]:
    """Scalars and brackets inside a block that stand after `start`: not those behind an anchor's name."""
    if node.start_mark.index < start:
        return
    if isinstance(node, ScalarNode) or _is_in_brackets(node):
        yield node
    elif isinstance(node, MappingNode):
        for key, value in node.value:
            yield key
            yield from _leaves(value, key.start_mark.index)
    elif isinstance(node, SequenceNode):
        for item in node.value:
            yield from _leaves(item, start)


def _end_line(node: Node) -> int:
    """Block texts (`|`, `>`) end at the start of the line after them."""
    end = node.end_mark
    return int(end.line - 1 if end.column == 0 and end.line > node.start_mark.line else end.line)


def _is_comment_below(line: str, column: int) -> bool:
    text = line.lstrip(" ")
    return text.startswith("#") and len(line) - len(text) > column
