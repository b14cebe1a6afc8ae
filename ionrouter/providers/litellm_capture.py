"""Requests that are written down instead of sent, for proofs. Runs in the worker; never imports litellm."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from ionrouter.schema import json

CAPTURED: ContextVar[list[dict[str, Any]] | None] = ContextVar("captured", default=None)


class NeverSent(Exception):
    """Stands where an answer would be."""


def keep_instead(request: Any) -> None:
    """Write an httpx request down where the task asked for it, and raise NeverSent then."""
    if (seen := CAPTURED.get()) is None:
        return
    headers = {name: value for name, value in request.headers.items()}
    text = request.content.decode()
    seen.append({"method": request.method, "url": str(request.url), "headers": headers, "text": text})
    seen[-1]["body"] = json.loads(text)
    raise NeverSent
