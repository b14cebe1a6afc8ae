"""The shape of a call: what a proof about litellm's translation may be carried over to. No prompt's words.

Two calls of one shape differ in words and in numbers of one range only. Knows neither litellm nor sockets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from ionrouter.schema import json

# Names below which a string's value decides how it is translated, so it belongs to the shape.
_TELLING = frozenset(("role", "type", "format", "detail", "cache_control"))
# Arguments whose values vary from call to call; all others (tools, response_format ...) count as they are.
_VARYING = frozenset(("messages", "stop", "user", "prompt_cache_key", "session_id"))
_SCHEMES = ("data:", "http://", "https://", "gs://", "s3://", "{", "[")


def signature(call: Mapping[str, Any]) -> str:
    """Return a hash that calls share when one proof may serve them: 32 hex digits."""
    arguments = {name: _argument(name, value) for name, value in sorted(call["arguments"].items())}
    shape = [call["kind"], call["stream"], arguments, call["extra_body"]]
    return hashlib.blake2b(json.dumps(shape), digest_size=16).hexdigest()


def varied(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call of the same signature with other words and numbers: a proof's second point."""
    arguments = {
        name: _other(value) if name in _VARYING or _is_number(value) else value
        for name, value in call["arguments"].items()
    }
    return {**call, "arguments": arguments, "extra_body": dict(call["extra_body"])}


def _argument(name: str, value: Any) -> Any:
    if name == "messages" and isinstance(value, list):
        return _messages(value)
    return _shape(name, value) if name in _VARYING or _is_number(value) else value


def _messages(messages: list[Any]) -> Any:
    """Kinds of messages, neighbours, first and last: whoever merges or orders turns looks at those."""
    shapes = [json.dumps(_shape("", message)).decode() for message in messages]
    roles = [str(m.get("role")) if isinstance(m, dict) else "" for m in messages]
    pairs = sorted({f"{a} {b}" for a, b in pairwise(roles)})
    return [sorted(set(shapes)), pairs, shapes[:1], shapes[-1:]]


def _shape(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shape(key, item) for key, item in sorted(value.items())}
    if isinstance(value, list):
        return ["list", len(value) == 1, sorted({json.dumps(_shape(name, i)).decode() for i in value})]
    if isinstance(value, str):
        return value if name in _TELLING else _text(value)
    return _number(value) if _is_number(value) else value


def _text(text: str) -> str:
    if not text.strip():
        return "blank" if text else "empty"
    scheme = next((s for s in _SCHEMES if text.startswith(s)), "words")
    if scheme == "data:":
        scheme = text[:64].partition(";")[0]
    return scheme if text == text.strip() else f"{scheme}, padded"


def _number(number: float) -> str:
    """A number's type and range: 0, up to 1, up to 2, more; translations clamp at those."""
    limit = next((f"<= {bound}" for bound in (0, 1, 2) if number <= bound), "more")
    is_exact = number in (0, 1, 2) or number < 0
    return f"{type(number).__name__} {number if is_exact else limit}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _other(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _other(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_other(item, name) for item in value]
    if isinstance(value, str):
        return value if name in _TELLING or _text(value) != "words" else f"{value}x"
    return _other_number(value) if _is_number(value) else value


def _other_number(number: float) -> float:
    other = number + 1 if isinstance(number, int) else number * 0.999
    return other if _number(other) == _number(number) else number
