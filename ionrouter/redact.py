"""Redactor: the one place where text from outside loses its secrets before anybody sees or logs it.

What callers are told loses the places of files here, too (`without_places`).

Knows shapes of credentials and the keys it was told of; knows nothing of HTTP, providers or logging.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import groupby
from urllib.parse import quote

MAX_BYTES = 2048  # what of an upstream's text is ever shown or logged
MARK = "[redacted]"
MIN_SECRET = 6  # shorter values ("EMPTY", "none") are placeholders and would eat ordinary words
_KNOWN_CHARS, _MAX_KNOWN = 80, 2048  # short texts, shorter than any limit in bytes, that are remembered
_SCAN_CHARS = 65536  # an upstream's megabyte is not worth a scan when 2 KB are shown

_VENDORS = ("gsk", "hf", "fw", "r8", "tgp_v1", "xai", "nvapi", "csk", "glpat", "ghp", "pplx")  # of keys

# Every repetition that can fail late is bounded: an upstream's text must not cost quadratic time.
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # URL user info: https://user:password@host
    (re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.\-]{0,30}://)[^/\s\"'<>@]{0,500}@"), rf"\1{MARK}@"),
    (re.compile(r"\b(Bearer|Basic)\s+[^\s\"',;<>{}]{4,}", re.I), rf"\1 {MARK}"),
    # key=..., api_key: "...", x-api-key: ..., also with escaped quotes inside quoted JSON
    (
        re.compile(
            r"((?:api[-_ ]?key|access[-_]token|auth[-_]token|client[-_]secret|[?&]key|password)"
            r"[\\\"']*\s*[=:]\s*[\\\"']*)(?!\[redacted\])[^\s\"'\\,;&<>{}\[\]]{6,}",
            re.I,
        ),
        rf"\1{MARK}",
    ),
    # sk-..., sk-or-v1-..., sk-ant-..., and the half-masked echoes some providers send back
    (re.compile(r"\b(?:sk|pk|rk)-[\w*.\-]{6,}"), MARK),
    (re.compile(rf"\b(?:{'|'.join(_VENDORS)})[_-][\w*\-]{{10,}}"), MARK),
    (re.compile(r"\bAIza[\w\-]{20,}"), MARK),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}"), MARK),
    (re.compile(r"\beyJ[\w\-]{8,1000}\.[\w\-]{8,}(?:\.[\w\-]*)?"), MARK),  # JSON web token
)
# No pattern fits a text without one of these, in lower case: most texts are looked at once, not nine times.
_SUSPECTS = (
    *("://", "bearer", "basic", "key", "token", "secret", "password", "sk-", "pk-", "rk-"),
    *("aiza", "akia", "asia", "eyj", *(vendor + mark for vendor in _VENDORS for mark in "-_")),
)


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Find any of the words. One branch for each first letter: `re` tries every branch at such a letter."""
    groups = groupby(sorted(words), key=lambda word: word[0])
    rests = ((first, "|".join(re.escape(word[1:]) for word in group)) for first, group in groups)
    return re.compile("|".join(f"{re.escape(first)}(?:{rest})" for first, rest in rests))


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]+")  # terminal escapes in logs; tab and LF stay


class Redactor:
    """Removes registered keys and anything that looks like a credential; cuts to 2 KB of valid UTF-8."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._registered: set[str] = set()  # as they came
        self._secrets: set[str] = set()
        self._known: re.Pattern[str] | None = None
        self._suspect = _any_of(_SUSPECTS)
        self._longest = self._shortest = 0
        self._known_texts: dict[str, str] = {}  # short text -> without secrets
        self.register(*secrets)

    def register(self, *secrets: str) -> None:
        """Remember key values; their URL-encoded and JSON-escaped forms count too."""
        if self._registered.issuperset(secrets):
            return  # every request says its upstream's key again
        self._registered.update(secrets)
        new = {form for secret in secrets for form in _forms(secret.strip())} - self._secrets
        if not new:
            return
        self._secrets |= new
        self._known_texts = {}
        longest_first = sorted(self._secrets, key=len, reverse=True)
        self._longest, self._shortest = len(longest_first[0]), len(longest_first[-1])
        self._known = re.compile("|".join(re.escape(secret) for secret in longest_first))
        self._suspect = _any_of({*_SUSPECTS, *(s.lower() for s in self._secrets if s.isascii())})

    def __call__(self, text: str | bytes, max_bytes: int = MAX_BYTES) -> str:
        """Return `text` without secrets, at most `max_bytes` of UTF-8."""
        if len(text) > _KNOWN_CHARS or not isinstance(text, str):
            return self._cleaned(text, max_bytes)
        clean = self._known_texts.get(text)
        if clean is None:  # names and reasons come again and again
            if len(self._known_texts) >= _MAX_KNOWN:
                self._known_texts.clear()
            clean = self._known_texts[text] = self._cleaned(text, max_bytes)
        return clean

    def name(self, text: str, max_bytes: int = MAX_BYTES) -> str:
        """The same of a name, such as a model's: of registered keys alone, for names may look like keys."""
        clean, known = text, self._known
        if known is not None and len(text) >= self._shortest:
            for secret in self._secrets:  # twice as fast as the pattern, for nearly always there is none
                if secret in text:
                    clean = known.sub(MARK, text[:_SCAN_CHARS])
                    break
        return clean if len(clean) <= max_bytes and clean.isascii() else _cut(clean, max_bytes)

    def without_keys(self, data: bytes) -> bytes:
        """Take registered keys out of UTF-8, all of it and nothing else; what holds none is not copied."""
        if self._known is None or not any(secret.encode() in data for secret in self._secrets):
            return data
        return self._known.sub(MARK, data.decode("utf-8", "replace")).encode()

    def _cleaned(self, text: str | bytes, max_bytes: int) -> str:
        whole = text if isinstance(text, str) else text[: 4 * _SCAN_CHARS].decode("utf-8", "replace")
        clean = self._replace(whole[:_SCAN_CHARS])
        if len(whole) > _SCAN_CHARS:
            clean = clean[: max(len(clean) - self._longest, 0)]  # a key cut in two at the scan's edge
        if len(clean) <= max_bytes and clean.isascii() and clean.isprintable():
            return clean  # nothing to replace, nothing to cut
        return _cut(_CONTROL.sub(" ", clean), max_bytes)

    def _replace(self, text: str) -> str:
        if text.isascii() and self._suspect.search(text.lower()) is None:
            return text  # beyond ASCII there are more letters that a pattern takes for one of these
        if self._known is not None:
            text = self._known.sub(MARK, text)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text


# Absolute paths in messages, quoted (long ones are cut at the front) and bare; of each the last part stays.
_QUOTED_PATH = re.compile(r"(?:\.\.\.'[^'\n]*/|'(?:file://)?/[^'\n]*/)([^'/\n]+)'")
_BARE_PATH = re.compile(r"(?<![\w:/.@~-])(?:file://)?/(?:[^\s'\":;,()/]+/)*([^\s'\":;,()/]+)/?")


def without_places(text: str, known: Iterable[str] = ()) -> str:
    """Leave of paths on this machine's disk the file's name; `known` paths may hold spaces or be relative."""
    for path in sorted(known, key=len, reverse=True):
        if (name := path.rstrip("/").rpartition("/")[2]) != path:
            text = text.replace(path, name)
    return _BARE_PATH.sub(r"\1", _QUOTED_PATH.sub(r"'\1'", text))


def _forms(secret: str) -> set[str]:
    if len(secret) < MIN_SECRET:
        return set()
    return {secret, quote(secret, safe=""), json.dumps(secret)[1:-1]}


def _cut(text: str, max_bytes: int) -> str:
    data = text.encode("utf-8", "replace")  # a lone surrogate becomes "?"
    if len(data) <= max_bytes:
        return data.decode("utf-8")
    ellipsis = "…".encode()
    return data[: max_bytes - len(ellipsis)].decode("utf-8", "ignore") + "…"
