"""Images that an answer drew: chat's form, and the bare base64 of the Responses."""

from __future__ import annotations

from typing import Any

# How base64 of an image begins -> its media type.
_BEGINNINGS = {
    "iVBORw": "image/png",
    "/9j/": "image/jpeg",
    "UklGR": "image/webp",
    "R0lGOD": "image/gif",
}


def result_of(image: Any) -> str | None:
    """Take the base64 out of one of chat's images, or its URL; None: it has neither."""
    held = image.get("image_url") if isinstance(image, dict) else None
    url = held.get("url") if isinstance(held, dict) else held
    if not isinstance(url, str) or not url:
        return None
    head, mark, data = url.partition(";base64,")
    return data if mark and head.startswith("data:") else url


def image_of(result: str) -> dict[str, Any]:
    """Write chat's form of what `result_of` gave."""
    kind = next((kind for beginning, kind in _BEGINNINGS.items() if result.startswith(beginning)), None)
    is_url = kind is None and result.startswith(("https://", "http://", "data:"))
    url = result if is_url else f"data:{kind or 'image/png'};base64,{result}"
    return {"type": "image_url", "image_url": {"url": url}}
