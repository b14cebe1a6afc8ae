"""Text, reasoning and extras of a delta or message, in our names. Knows nothing of choices or finishes.

Whoever writes answers takes these fields apart and does not look again. So each has its type here, or is
left out: none of them is worth losing the answer.
"""

from __future__ import annotations

from typing import Any

from ionrouter.providers.indexes import read_index
from ionrouter.schema import json
from ionrouter.schema.reasoning_details import ENCRYPTED, TEXT, TEXTS

_REASONING_KEYS = ("reasoning", "reasoning_content", "thinking")
_THOUGHTS = frozenset({*_REASONING_KEYS, "reasoning_details", "thinking_blocks"})
_EXTRAS = frozenset(("audio", "images", "annotations"))
_NUMBER = (int, float)
_TEXT_OR_NULL, _NUMBER_OR_NULL = (str, type(None)), (*_NUMBER, type(None))
_AUDIO = dict.fromkeys(("id", "data", "transcript"), _TEXT_OR_NULL) | {"expires_at": _NUMBER_OR_NULL}
_TEXTS_OF_DETAIL = frozenset(("type", "id", "format", *TEXTS.values(), "signature"))


def read_content(source: dict[str, Any]) -> dict[str, Any]:
    """Return content, refusal, reasoning, reasoning_details, audio, images, annotations: those present."""
    out: dict[str, Any] = {}
    text, thought, images = _split(source.get("content"))
    if text is not None:
        out["content"] = text
    if thought or not _THOUGHTS.isdisjoint(source):
        _add_reasoning(out, source, thought)
    if isinstance(source.get("refusal"), str) and source["refusal"]:
        out["refusal"] = source["refusal"]
    if images or not _EXTRAS.isdisjoint(source):
        _add_extras(out, source, images)
    return out


def _add_extras(out: dict[str, Any], source: dict[str, Any], images: list[Any]) -> None:
    found = {
        "audio": _audio(source.get("audio")),
        "images": _objects(source.get("images")) + _objects(images),
        "annotations": _objects(source.get("annotations")),
    }
    out.update({key: value for key, value in found.items() if value})


def _objects(told: Any) -> list[dict[str, Any]]:
    items = told if isinstance(told, list) else [told]
    return [item for item in items if isinstance(item, dict) and item and json.is_shallow(item)]


def _audio(told: Any) -> dict[str, Any]:
    if not isinstance(told, dict) or not json.is_shallow(told):
        return {}
    return {key: value for key, value in told.items() if isinstance(value, _AUDIO.get(key, object))}


def _split(content: Any) -> tuple[str | None, str, list[Any]]:
    """Split content into text, thinking and images; a list of parts is Mistral's and Cohere's way."""
    if content is None or isinstance(content, str):
        return content, "", []
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return str(content), "", []
    texts, thoughts, images = [], [], []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "thinking":
            thoughts.append(_words(part.get("thinking")))
        elif kind in ("image_url", "image"):
            images.append(part)
        else:
            texts.append(_words(part))
    return "".join(texts), "".join(thoughts), images


def _words(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, list):
        return "".join(_words(item) for item in part)
    if isinstance(part, dict):
        return _words(part.get("text") or part.get("content") or "")
    return ""


def _add_reasoning(out: dict[str, Any], source: dict[str, Any], thought: str) -> None:
    plain = next((v for key in _REASONING_KEYS if isinstance(v := source.get(key), str) and v), thought)
    details = _details(source.get("reasoning_details"))
    details = details or _details(_from_thinking_blocks(source.get("thinking_blocks")))
    plain = plain or "".join(detail.get("text") or detail.get("summary") or "" for detail in details)
    if plain:
        out["reasoning"] = plain
        details = details or [{"type": TEXT, "text": plain, "format": "unknown", "index": 0}]
    if details:
        out["reasoning_details"] = details


def _details(told: Any) -> list[dict[str, Any]]:
    if not told:
        return []
    items = told if isinstance(told, list) else [told]
    return [detail for item in items if (detail := _detail(item)) is not None]


def _detail(told: Any) -> dict[str, Any] | None:
    """Return a detail whose every known field is what it should be; a block goes back whole or not at all."""
    if not isinstance(told, dict):
        return None
    for key, value in told.items():
        if (value.__class__ is str and key != "index") or value is None:
            continue  # nearly always
        if key in _TEXTS_OF_DETAIL or (key == "index" and not isinstance(value, _NUMBER)):
            return None
        if not json.is_shallow(value):
            return None
    if told.get("type"):
        return told
    kind = next((kind for kind, key in TEXTS.items() if told.get(key)), None)
    return None if kind is None else {**told, "type": kind}


def _from_thinking_blocks(blocks: Any) -> list[dict[str, Any]]:
    """litellm's form of Anthropic's thinking, whose signatures must come back unchanged."""
    details: list[dict[str, Any]] = []
    for position, block in enumerate(blocks if isinstance(blocks, list) else ()):
        if not isinstance(block, dict):
            continue
        index = read_index(block.get("index"))  # of a stream: a delta holds one block, whichever it is
        common = {"format": "anthropic-claude-v1", "index": position if index is None else index}
        if block.get("type") == "redacted_thinking":
            details.append({"type": ENCRYPTED, "data": block.get("data"), **common})
        elif block.get("thinking") or block.get("signature"):
            text = block.get("thinking") or ""
            signature = {"signature": block["signature"]} if block.get("signature") else {}
            details.append({"type": TEXT, "text": text, **signature, **common})
    return details
