"""The text of a YAML file as plain data, with the line of every value. Knows YAML, not what the keys mean.

All duplicate keys are found in one pass; a syntax error ends it, since nothing after it can be trusted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from ionrouter.errors import ConfigError, Problem

Loc = tuple[str | int, ...]

MAX_BYTES = 8 * 1024 * 1024
MAX_VALUES = 500_000  # after anchors are expanded: stops a file of nested anchors from filling the memory


def path_of(loc: Sequence[str | int]) -> str:
    """Write a location as people read it: ("models", "m", "endpoints", 1) -> `models.m.endpoints[1]`."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed file. `lines` holds 1-based line numbers of keys and list items, by location."""

    path: Path
    text: str
    data: Any
    lines: Mapping[Loc, int] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Hash of the text: changes exactly when the file does."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def line(self, loc: Sequence[str | int]) -> int | None:
        """Line of the value at `loc`, or of the nearest parent that is in the file."""
        for end in range(len(loc), 0, -1):
            if (line := self.lines.get(tuple(loc[:end]))) is not None:
                return line
        return None

    def problem(self, loc: Sequence[str | int], message: str, severity: str = "error") -> Problem:
        """A Problem at `loc`, with its path and line."""
        return Problem(path_of(loc), message, self.line(loc), severity)


def read_source(path: Path) -> Source:
    """Read and parse a YAML file; raises ConfigError with the line of each fault."""
    return parse_source(_read_text(path), path)


def parse_source(text: str, path: Path) -> Source:
    """Parse YAML text; raises ConfigError with lines: duplicate keys, tabs, anchors, syntax."""
    try:
        loader = YAML(typ="safe", pure=True)
        loader.Constructor = _Constructor
        loader.allow_duplicate_keys = True  # _walk refuses them, all at once
        root = loader.compose(text)
        lines, problems = _walk(root)
        if problems:
            raise ConfigError(problems)
        data = None if root is None else loader.constructor.construct_document(root)
        return Source(path, text, data, lines)
    except MarkedYAMLError as error:
        raise ConfigError([_syntax_problem(error, text)]) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"character {_code_point(error.character)} is not allowed in YAML"
        raise ConfigError([Problem("", message, line)]) from None
    except YAMLError as error:
        raise ConfigError([Problem("", f"not valid YAML: {error}")]) from None
    except RecursionError:
        raise ConfigError("nested too deeply") from None


class _Constructor(SafeConstructor):
    """Says in which line a value is that its tag, written or guessed, does not fit."""

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, OverflowError) as error:  # `!!bool x`, `!!int x`, 2024-13-45
            kind = str(node.tag).rpartition(":")[2]
            # What a date says of itself shows no value; others repeat it, and it may be a secret.
            why = f": {error}" if kind == "timestamp" else ""
            message = f"a value cannot be read as !!{kind}{why}"
            raise ConstructorError(problem=message, problem_mark=node.start_mark) from None


def first_bytes(path: Path) -> bytes:
    """Read a file, and of one that is too large no more than shows it; raises OSError."""
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _read_text(path: Path) -> str:
    try:
        raw = first_bytes(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path} has more than {MAX_BYTES} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError([Problem("", "not UTF-8 text; save the file as UTF-8", line)]) from None


def _code_point(character: str | int) -> str:
    return f"U+{character if isinstance(character, int) else ord(character):04X}"


_HINTS = (
    ("'\\t'", "a tab in the indentation; YAML allows spaces only"),
    ("mapping values are not allowed", "a second colon here; quote the value, or break the line"),
    ("another document", "a second document starts here; the file must hold one"),
    ("could not find expected ':'", "a key without a colon"),
)


def _syntax_problem(error: MarkedYAMLError, text: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark is not None else None
    message = error.problem or str(error)
    for sign, hint in _HINTS:
        if sign in message:
            return Problem("", hint, line)
    if line is not None and line <= text.count("\n") and text.splitlines()[line - 1].startswith("\t"):
        return Problem("", _HINTS[0][1], line)
    context = f" ({error.context})" if error.context else ""
    return Problem("", f"not valid YAML: {message}{context}", line)


class _Walk:
    """Visits every value once per place it is used, so that an anchor's fields have a line everywhere."""

    def __init__(self) -> None:
        self.lines: dict[Loc, int] = {}
        self.problems: list[Problem] = []
        self._open: set[int] = set()  # nodes on the way down: an anchor inside itself would never end
        self._num_values = 0  # merged ones too, which share their places with each other

    def visit(self, node: Node, loc: Loc) -> None:
        self._count()
        if id(node) in self._open:
            self._report(loc, "an anchor that contains itself", node)
            return
        self._open.add(id(node))
        if isinstance(node, MappingNode):
            self._mapping(node, loc)
        elif isinstance(node, SequenceNode):
            for index, item in enumerate(node.value):
                self.lines[(*loc, index)] = item.start_mark.line + 1
                self.visit(item, (*loc, index))
        self._open.discard(id(node))

    def _mapping(self, node: MappingNode, loc: Loc) -> None:
        first_line: dict[str, int] = {}
        merges = []
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == "tag:yaml.org,2002:merge":
                merges.append(value)
                continue
            if not isinstance(key, ScalarNode):
                self._report(loc, "a key must be plain text", key)
                continue
            if key.value in first_line:
                self._report((*loc, key.value), f"given twice; first in line {first_line[key.value]}", key)
                continue
            first_line[key.value] = line
            self.lines[(*loc, key.value)] = line
            self.visit(value, (*loc, key.value))
        for merged in merges:
            self._merge(merged, loc, set(first_line))

    def _merge(self, node: Node, loc: Loc, own: set[str]) -> None:
        for mapping in node.value if isinstance(node, SequenceNode) else [node]:
            if not isinstance(mapping, MappingNode):
                self._report(loc, "`<<` needs a mapping, or a list of mappings", node)
                continue
            for key, value in mapping.value:
                self._count()
                if key.tag == "tag:yaml.org,2002:merge":
                    self._merge(value, loc, own)
                elif isinstance(key, ScalarNode) and key.value not in own:
                    self.lines.setdefault((*loc, key.value), key.start_mark.line + 1)
                    self.visit(value, (*loc, key.value))

    def _count(self) -> None:
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            raise ConfigError(f"more than {MAX_VALUES} values after anchors are expanded")

    def _report(self, loc: Loc, message: str, node: Node) -> None:
        self.problems.append(Problem(path_of(loc), message, node.start_mark.line + 1))


def _walk(root: Node | None) -> tuple[dict[Loc, int], list[Problem]]:
    walk = _Walk()
    if root is not None:
        walk.visit(root, ())
    return walk.lines, walk.problems
