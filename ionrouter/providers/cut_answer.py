"""What a whole answer's upstream has said that broke off on its way: it bills the prompt, and what it wrote.

A stream's text is counted as it comes; of a whole answer nothing is known before its end, so what came of
its JSON is closed where it was cut, and read.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any

from ionrouter.errors import UpstreamError
from ionrouter.providers.base import UpstreamRequest
from ionrouter.providers.error_body import find_error
from ionrouter.providers.http_errors import ErrorReader
from ionrouter.providers.normalise import complete_any
from ionrouter.providers.rerank_body import read_rerank_usage
from ionrouter.providers.usage_body import usage_of
from ionrouter.schema import json
from ionrouter.schema.tally import length_of

MAX_READ_BYTES = 1024 * 1024  # parsed in one piece; what comes behind them is not counted
# A string, open at its end perhaps, or what opens and closes groups of values.
_PIECE = re.compile(rb'"(?:[^"\\]|\\.)*("|\\?\Z)|[{}\[\]]', re.DOTALL)
_CLOSING = {b"{": b"}", b"[": b"]"}
_TEXTS = ("text", "thinking", "content")  # of answers that have no choices: Anthropic's, Gemini's, Cohere's


def note_cut(request: UpstreamRequest, data: bytes, errors: ErrorReader) -> None:
    """Tell `request.told` what came of a whole answer; nothing where none had begun, or it is an error."""
    payload = read_cut(data)
    if payload is None:
        return
    told = request.told
    told.usage = read_rerank_usage(payload) if request.kind == "rerank" else usage_of(payload)
    if not _is_error(payload):
        told.num_characters = _num_characters(request, payload, errors)


def _is_error(payload: dict[str, Any]) -> bool:
    """Ask whether it says what went wrong; not by a message with parts, in which Cohere answers."""
    if payload.get("error") is not None:  # one that was cut may be empty
        return True
    return not isinstance(payload.get("message"), dict) and find_error(payload) is not None


def read_cut(data: bytes) -> dict[str, Any] | None:
    """Read a JSON object as far as it came, without a number or a name that may go on; None: it is none."""
    data = data[:MAX_READ_BYTES].removeprefix(BOM_UTF8).lstrip()
    if not data.startswith(b"{"):
        return None
    for text in _closed(data):
        try:
            payload = json.loads(text)
        except (ValueError, RecursionError):
            continue
        return payload if isinstance(payload, dict) else None
    return {}  # it had begun


def _closed(data: bytes) -> Iterator[bytes]:
    """The text with all that is open closed: as it is if it ends with a value, else before its last value."""
    brackets: list[bytes] = []
    sure = end = 0  # ends of what is sure, and of the last piece
    is_open = False
    for piece in _PIECE.finditer(data):
        token = piece.group()
        if token.startswith(b'"'):
            is_open = piece.group(1) != b'"'
            if (comma := data.rfind(b",", end, piece.start())) >= 0:
                sure = comma
        else:
            if (closes := _CLOSING.get(token)) is not None:
                brackets.append(closes)
            elif brackets:
                brackets.pop()
            sure = piece.end()
        end = piece.end()
    closing = b"".join(reversed(brackets))
    if is_open:
        # Half of a character, or of what a backslash begins, is no text.
        text = data.decode("utf-8", "ignore").encode()
        yield re.sub(rb"\\(u[0-9a-fA-F]{0,3})?\Z", b"", text) + b'"' + closing
    elif data.rstrip().endswith((b'"', b"}", b"]")):
        yield data + closing
    elif (comma := data.rfind(b",", end)) >= 0:
        sure = comma
    yield data[:sure] + closing


def _num_characters(request: UpstreamRequest, payload: dict[str, Any], errors: ErrorReader) -> int:
    if "choices" not in payload:
        return sum(map(len, _texts(payload)))
    try:
        answer = complete_any(request.kind, payload, errors, request.body)
    except (UpstreamError, RecursionError):
        return 0
    return sum(length_of(choice.message) for choice in answer.choices)


def _texts(value: Any) -> Iterator[str]:
    """All texts of an answer in some provider's own shape."""
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if isinstance(item, str):
                if name in _TEXTS:
                    yield item
            else:
                yield from _texts(item)
