"""ErrorBody: what an upstream's error text says, whatever its shape. Judges nothing, redacts nothing."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Any

from ionrouter.schema import json

_MAX_PARSED_BYTES = 1024 * 1024
_TAGS = re.compile(r"<(?:script|style|head)\b.*?</(?:script|style|head)\s*>|<!--.*?-->|<[^>]*>", re.I | re.S)
_TITLE = re.compile(r"<(title|h1)\b[^>]*>(.*?)</\1", re.I | re.S)
_MAX_PAGE = 8 * 1024  # titles are at the top, and the patterns below are not linear
_MAX_DEPTH = 8
_MAX_HTML_MESSAGE = 120  # a page's title says enough

# Keys that hold the words, best first: OpenAI and most others; FastAPI; older gateways.
_MESSAGE_KEYS = (
    "message",
    "detail",
    "error_message",
    "msg",
    "error_description",
    "description",
    "title",
    "reason",
)


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """The parts of an error. `code` is text, never "None"; `number` is a numeric code such as 429."""

    message: str = ""
    code: str | None = None
    type: str | None = None
    param: str | None = None
    number: int | None = None
    retry_after_s: float | None = None


def find_error(payload: Any) -> Any:
    """Return the error object inside an answer that claims success, None when there is none."""
    if not isinstance(payload, dict):
        return None
    if error := payload.get("error"):
        return error
    if payload.get("object") == "error" or payload.get("type") == "error":
        return payload
    if any(key in payload for key in ("choices", "data", "usage", "embedding")):
        return None
    return payload if any(payload.get(key) for key in (*_MESSAGE_KEYS, "errors")) else None


def read_body(body: bytes, content_type: str = "") -> ErrorBody:
    """Read an error answer's bytes: JSON in any known shape, HTML, or plain text."""
    text = body[:_MAX_PARSED_BYTES].decode("utf-8-sig", "replace").strip()
    if text.startswith(("{", "[", '"')):
        try:
            return read_error(json.loads(text))
        except (ValueError, RecursionError):
            pass  # then it is text
    if "html" in content_type.lower() or text[:200].lower().lstrip().startswith(("<!doctype", "<html")):
        return ErrorBody(message=_html_words(text))
    return ErrorBody(message=text)


def read_error(value: Any, depth: int = 0) -> ErrorBody:
    """Read a parsed error: an envelope around `error`, the object itself, a list of them, or words."""
    if depth > _MAX_DEPTH:
        return ErrorBody()
    if isinstance(value, list):
        return _read_list(value, depth)
    if not isinstance(value, dict):
        return ErrorBody(message="" if value is None else str(value))
    inner = value.get("error")
    if isinstance(inner, dict | list) and inner:
        return read_error(inner, depth + 1)
    if isinstance(value.get("detail"), list | dict):
        return read_error(value["detail"], depth + 1)
    if value.get("errors") and isinstance(value["errors"], list):
        return read_error(value["errors"], depth + 1)
    return _read_object(value, depth)


def _read_list(items: list[Any], depth: int) -> ErrorBody:
    """FastAPI's {"loc", "msg", "type"} list, Google's [{"error": ...}], Cloudflare's errors."""
    bodies = [read_error(item, depth + 1) for item in items[:5]]
    if not bodies:
        return ErrorBody()
    message = "; ".join(body.message for body in bodies if body.message)
    first = bodies[0]
    return ErrorBody(message, first.code, first.type, first.param, first.number, first.retry_after_s)


def _read_object(error: dict[str, Any], depth: int) -> ErrorBody:
    code, number = _code(error)
    return ErrorBody(
        message=_message(error, depth),
        code=code,
        type=_text(error.get("type")),
        param=_param(error),
        number=number,
        retry_after_s=_retry_delay(error),
    )


def _message(error: dict[str, Any], depth: int) -> str:
    words = next((_words(error[key], depth) for key in _MESSAGE_KEYS if error.get(key)), "")
    if not words and isinstance(error.get("error"), str):
        words = error["error"]
    return _with_raw(words, error.get("metadata"))


def _words(value: Any, depth: int) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        return read_error(value, depth + 1).message
    return str(value)


def _with_raw(words: str, metadata: Any) -> str:
    """OpenRouter says "Provider returned error" and keeps the reason in `metadata.raw`."""
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if isinstance(raw, str) and raw.strip():
        inner = read_body(raw.encode("utf-8", "replace")).message
        return f"{words}: {inner}" if words and inner not in words else words or inner
    return words


def _code(error: dict[str, Any]) -> tuple[str | None, int | None]:
    """Return the code as text and as an HTTP-like number; Google's `status` and `statusCode` count too."""
    for key in ("code", "error_code", "status", "statusCode", "status_code"):
        value = error.get(key)
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, int | float) or (isinstance(value, str) and value.strip().isdecimal()):
            size = float(value) if isinstance(value, str) else value
            number = int(size) if abs(size) < 1e6 else 0  # NaN is not
            status = error.get("status")
            text = _text(status) if isinstance(status, str) and not status.isdecimal() else None
            return text or str(number), number
        if text := _text(value):
            return text, None
    return None, None


def _param(error: dict[str, Any]) -> str | None:
    if param := _text(error.get("param")):
        return param
    location = error.get("loc")
    if isinstance(location, list | tuple):
        return ".".join(str(part) for part in location if part != "body") or None
    return None


def _retry_delay(error: dict[str, Any]) -> float | None:
    """Google's RetryInfo: {"details": [{"retryDelay": "17s"}]}."""
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and re.fullmatch(r"\d+(\.\d+)?s", delay):
            return float(delay[:-1])
    return None


def _text(value: Any) -> str | None:
    if isinstance(value, str) and value.strip() and value.strip().lower() not in ("none", "null"):
        return value.strip()
    return None


def _html_words(page: str) -> str:
    """A page's title or first heading without markup: "502 Bad Gateway"."""
    page = page[:_MAX_PAGE]
    match = _TITLE.search(page)
    words = match.group(2) if match else page
    text = " ".join(html.unescape(_TAGS.sub(" ", words)).split())
    text = re.sub(r"[<>]", "", text)
    # Half a key would be known to nobody: what does not fit goes by whole words.
    return text if len(text) <= _MAX_HTML_MESSAGE else text[:_MAX_HTML_MESSAGE].rpartition(" ")[0]
