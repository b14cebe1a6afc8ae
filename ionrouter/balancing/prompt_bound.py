"""How many tokens a prompt can have at most, whoever counts them: for limits of keys, never for routing.

Knows no tokenizer. Every piece that a tokenizer cuts off a text takes at least one byte of it, and tokenizers
that fall back to bytes do reach one token a byte (rare Han characters, digits): bytes are the tight bound.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ionrouter.schema.request import InferenceRequest

# What chat templates add. A message has its role and its marks (4 to 10 in the common ones); a prompt has its
# own marks, a date and a default system message; tools come with instructions (Anthropic states 346 to 530).
MESSAGE_TOKENS = 16
PROMPT_TOKENS = 64
TOOLS_TOKENS = 1024
# Assumed: no text says how many they are. Images of 4 megapixels take fewer with most models.
IMAGE_TOKENS = 4096
MEDIA_TOKENS = 65_536  # a file, a recording, a video
PIECE_TOKENS, UNIT_PIECES = 500, 100

_IMAGES = frozenset({"image_url"})
_MEDIA = frozenset({"input_audio", "video_url", "input_video", "file"})
_SHOWN = ("tools", "response_format", "functions")  # templates print them, as JSON


def most_prompt_tokens(request: InferenceRequest) -> int:
    """Bound what an upstream may count for the prompts of a request, all of them together."""
    body = request.body
    total = _shown(body) + _bytes(body.get("suffix"))
    for options in request.preferences.options.values():  # may bring tools and other texts
        total += _shown(options) + _bytes({k: v for k, v in options.items() if k not in _SHOWN})
    total += sum(_message(message) for message in _listed(body.get("messages")))
    prompts = [*_prompts(body.get("prompt")), *_prompts(body.get("input"))]
    total += sum(PROMPT_TOKENS + _content(prompt) for prompt in prompts)
    total += _pairs(body)
    return total + (PROMPT_TOKENS if "messages" in body else 0)


def most_search_units(request: InferenceRequest) -> int | None:
    """Bound what rerankers bill by, of a ranking; None for all else.

    As Cohere counts: a unit is a query with 100 documents; a longer document is several, each with the query.
    """
    if request.kind != "rerank":
        return None
    query = _bytes(request.body.get("query"))
    pieces = (-(-(query + _bytes(item)) // PIECE_TOKENS) for item in _listed(request.body.get("documents")))
    return -(-sum(max(number, 1) for number in pieces) // UNIT_PIECES)


def text_tokens(text: str) -> int:
    """Bound the tokens of a text: its bytes in UTF-8, or those of its NFKC form, which some count instead."""
    if text.isascii():
        return len(text)
    return max(
        len(form.encode("utf-8", "surrogatepass")) for form in (text, unicodedata.normalize("NFKC", text))
    )


def _shown(body: Mapping[str, Any]) -> int:
    found = [body[name] for name in _SHOWN if body.get(name)]
    return sum(text_tokens(json.dumps(value, ensure_ascii=True)) for value in found) + (
        TOOLS_TOKENS if found else 0
    )


def _message(message: Any) -> int:
    if not isinstance(message, Mapping):
        return _bytes(message)
    calls = [dict(call) for call in _listed(message.get("tool_calls")) if isinstance(call, Mapping)]
    others = [v for k, v in message.items() if k not in ("content", "tool_calls")]
    shown = sum(MESSAGE_TOKENS + text_tokens(json.dumps(call, ensure_ascii=True)) for call in calls)
    return MESSAGE_TOKENS + _content(message.get("content")) + shown + sum(map(_bytes, others))


def _content(content: Any) -> int:
    if not isinstance(content, list) or all(isinstance(item, int) for item in content):
        return _bytes(content)
    return sum(_part(part) for part in content)


def _part(part: Any) -> int:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _IMAGES:
        return IMAGE_TOKENS
    return MEDIA_TOKENS if kind in _MEDIA else _bytes(part)


def _pairs(body: Mapping[str, Any]) -> int:
    """Count a query beside each of its documents, as rerankers read them."""
    documents = _listed(body.get("documents"))
    return sum(PROMPT_TOKENS + _bytes(body.get("query")) + _bytes(document) for document in documents)


def _prompts(value: Any) -> Iterable[Any]:
    """Give each of a list of prompts; a text, or one list of token ids, is one."""
    if value is None:
        return ()
    is_many = isinstance(value, list) and bool(value) and not isinstance(value[0], int)
    return [_parts(item) for item in value] if is_many else (value,)


def _parts(item: Any) -> Any:
    return item.get("content", item) if isinstance(item, Mapping) else item


def _bytes(value: Any) -> int:
    """Add up the texts in a JSON value, keys included; a number is a token id or a few digits."""
    if isinstance(value, str):
        return text_tokens(value)
    if isinstance(value, Mapping):
        return sum(text_tokens(str(key)) + _bytes(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return len(value) if all(isinstance(item, int) for item in value) else sum(map(_bytes, value))
    return 0 if value is None else len(str(value))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
