"""An answer's annotations as other surfaces than chat write them; None where there is no form for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Those that come in the Responses' own form already, and what a client needs of them.
_RESPONSES_OWN = {"file_citation": ("file_id", "filename", "index"), "file_path": ("file_id", "index")}


def as_responses_annotation(annotation: Any, offset: int = 0) -> dict[str, Any] | None:
    """Write one into a part whose text begins at character `offset` of the answer's.

    {"type": "url_citation", "url_citation": {"url": U, ...}} -> {"type": "url_citation", "url": U, ...};
    where it points to no place, or to one before the part, it gets the empty one at the part's beginning.
    """
    if (cited := _cited(annotation)) is not None:
        place = {name: max(_count(cited.get(name)) - offset, 0) for name in ("start_index", "end_index")}
        written = {"type": "url_citation", "url": cited["url"], "title": _text(cited.get("title")), **place}
        return written | ({"content": content} if (content := _text(cited.get("content"))) else {})
    if not isinstance(annotation, dict):
        return None
    needed = _RESPONSES_OWN.get(str(annotation.get("type")))
    return dict(annotation) if needed and annotation.keys() >= set(needed) else None


def as_messages_citation(annotation: Any) -> dict[str, Any] | None:
    """Write one as Anthropic writes what its web search found; the index is sealed by Anthropic alone."""
    if (cited := _cited(annotation)) is None:
        return None
    return {
        "type": "web_search_result_location",
        "url": cited["url"],
        "title": _text(cited.get("title")) or None,
        "cited_text": _text(cited.get("content")),
        "encrypted_index": "",
    }


def listed(value: Any) -> list[Any]:
    """What should be a list as one; upstreams are not held to it."""
    if isinstance(value, list):
        return value
    return [value] if value else []


def _cited(annotation: Any) -> Mapping[str, Any] | None:
    """What a citation says of a URL, in chat's form or the flat one."""
    if not isinstance(annotation, dict) or annotation.get("type") != "url_citation":
        return None
    nested = annotation.get("url_citation")
    cited: dict[str, Any] = nested if isinstance(nested, dict) else annotation
    return cited if _text(cited.get("url")) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
