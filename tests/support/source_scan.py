"""What the source says of itself: log events, error types, availability codes, headers. Imports none of it.

Finds what is written as literals at the call, which is how this package writes them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ionrouter"
LEVELS = ("debug", "info", "warning", "error")
_LOGGERS = ("log", "_log")
_HEADER = re.compile(r"(?i)\bX-[a-z]+(?:-[a-z]+)*\b")


@dataclass
class LogEvent:
    """One event name: its levels, its keys in the order of first use, the files that log it."""

    name: str
    levels: set[str] = field(default_factory=set)
    keys: dict[str, None] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the package: path from the root, syntax tree."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def log_events() -> dict[str, LogEvent]:
    """Every structlog event by name."""
    found: dict[str, LogEvent] = {}
    for path, tree in modules():
        for function in (
            node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ):
            aliases = _level_aliases(function)
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and (levels := _levels(node, aliases)):
                    _note(found, path, node, levels)
    return found


def _note(found: dict[str, LogEvent], path: str, call: ast.Call, levels: set[str]) -> None:
    if not call.args or (name := _text(call.args[0])) is None:
        return
    event = found.setdefault(name, LogEvent(name))
    event.levels |= {"error" if level == "exception" else level for level in levels}
    keys = [keyword.arg for keyword in call.keywords if keyword.arg]
    event.keys.update(dict.fromkeys("exception" if key == "exc_info" else key for key in keys))
    if "exception" in levels:
        event.keys["exception"] = None
    event.files.add(path)


def _level_aliases(function: ast.AST) -> dict[str, set[str]]:
    """Names for a bound method: `log = _log.debug if ... else _log.info`."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            levels = {level for part in ast.walk(node.value) if (level := _method(part))}
            if levels and not isinstance(node.value, ast.Call):
                found[node.targets[0].id] = levels
    return found


def _levels(call: ast.Call, aliases: dict[str, set[str]]) -> set[str]:
    if isinstance(call.func, ast.Name):
        return aliases.get(call.func.id, set())
    level = _method(call.func)
    return {level} if level else set()


def _method(node: ast.AST) -> str | None:
    is_logger = (
        isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in _LOGGERS
    )
    return node.attr if is_logger and node.attr in (*LEVELS, "exception") else None  # type: ignore[attr-defined]


# What an exception stands for where the call does not say.
_DEFAULTS = {"RequestError": (400, "invalid_request"), "AvailabilityError": (404, "not_found")}


def error_types() -> set[tuple[str, int]]:
    """Every error type of a refusal of our own, each with a status it comes with."""
    found: set[tuple[str, int]] = set()
    for path, tree in modules():
        if path.startswith("ionrouter/store/"):
            continue  # refuses people at the command line, not clients
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            if name in _DEFAULTS:
                found |= _pairs({keyword.arg: keyword.value for keyword in call.keywords}, *_DEFAULTS[name])
    return found


def _pairs(given: dict[str | None, ast.expr], status: int, kind: str) -> set[tuple[str, int]]:
    """Join types and statuses; `429 if limited else 503` stands beside two types in the same order."""
    statuses = _constants(given["status"], int) if "status" in given else [status]
    kinds = _constants(given["error_type"], str) if "error_type" in given else [kind]
    if len(statuses) == len(kinds):
        return set(zip(kinds, statuses, strict=True))
    return {(kind, status) for kind in kinds for status in statuses}


def availability_codes() -> set[str]:
    """Every `error.availability.code`: what is assigned to `code` where AvailabilityErrors are made."""
    found: set[str] = set()
    for path, tree in modules():
        if path not in ("ionrouter/routing/naming.py", "ionrouter/balancing/verdict.py"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                found |= _assigned_code(node)
            elif isinstance(node, ast.keyword) and node.arg == "code":
                found |= {*_constants(node.value, str)}
            elif isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                found |= {
                    t for key, value in pairs if key and _text(key) == "code" for t in _constants(value, str)
                }
    return found


def _assigned_code(node: ast.Assign) -> set[str]:
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=True)
        return {t for name, part in pairs if _is_code(name) for t in _constants(part, str)}
    return set(_constants(value, str)) if _is_code(target) else set()


def _is_code(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "code"


def header_names() -> set[str]:
    """Every X- header that the HTTP edge reads, sends or allows, in lower case."""
    found: set[str] = set()
    for path, tree in modules():
        if path.startswith("ionrouter/api/"):
            for node in ast.walk(tree):
                if (text := _text(node)) is not None:
                    found |= {name.lower() for name in _HEADER.findall(text)}
    return found


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _constants(node: ast.AST, kind: type) -> list[Any]:
    if isinstance(node, ast.IfExp):
        return [*_constants(node.body, kind), *_constants(node.orelse, kind)]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, kind) else []
