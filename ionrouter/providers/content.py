"""Text, reasoning and extras of a delta or message, in our names. Knows nothing of choices or finishes."""

from __future__ import annotations

from typing import Any

from ionrouter.providers.indexes import read_index
from ionrouter.schema import json

_REASONING_KEYS = ("reasoning", "reasoning_content", "thinking")
_THOUGHTS = frozenset({*_REASONING_KEYS, "reasoning_details", "thinking_blocks"})
_KEPT_AS_THEY_ARE = ("audio", "images", "annotations")


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
    for key in _KEPT_AS_THEY_ARE:
        if source.get(key):
            out[key] = source[key]
    if images:
        out["images"] = [*out.get("images", []), *images]
    return out


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
    details = source.get("reasoning_details")
    if not isinstance(details, list) or not details:
        details = _from_thinking_blocks(source.get("thinking_blocks"))
    plain = plain or "".join(_detail_text(detail) for detail in details)
    if plain:
        out["reasoning"] = plain
        details = details or [{"type": "reasoning.text", "text": plain, "format": "unknown", "index": 0}]
    if details:
        out["reasoning_details"] = details


def _detail_text(detail: Any) -> str:
    if not isinstance(detail, dict):
        return ""
    text = detail.get("text") or detail.get("summary")
    return text if isinstance(text, str) else ""


def _from_thinking_blocks(blocks: Any) -> list[dict[str, Any]]:
    """litellm's form of Anthropic's thinking, whose signatures must come back unchanged."""
    details: list[dict[str, Any]] = []
    for position, block in enumerate(blocks if isinstance(blocks, list) else ()):
        if not isinstance(block, dict):
            continue
        index = read_index(block.get("index"))  # of a stream: a delta holds one block, whichever it is
        common = {"format": "anthropic-claude-v1", "index": position if index is None else index}
        if block.get("type") == "redacted_thinking":
            details.append({"type": "reasoning.encrypted", "data": block.get("data"), **common})
        elif block.get("thinking") or block.get("signature"):
            text = block.get("thinking") or ""
            signature = {"signature": block["signature"]} if block.get("signature") else {}
            details.append({"type": "reasoning.text", "text": text, **signature, **common})
    return details


def finite(value: Any) -> Any:
    """Replace NaN and infinities by null in parsed JSON; logprobs of impossible tokens carry them."""
    return json.loads(json.dumps(value))
