"""Hosted providers for tests: their wire formats, and attempts at them through litellm."""

from __future__ import annotations

from typing import Any

from ionrouter.providers.base import UpstreamRequest
from tests.support import wire
from tests.support.endpoints import HELLO, ask
from tests.support.upstream import Upstream

KEY = "sk-UPSTREAM-KEY-123456"
# (stream, whole answer, error) as each provider writes them.
SHAPES: dict[str, Any] = {
    "together_ai": (wire.together_stream, wire.together_json, wire.together_error),
    "fireworks_ai": (wire.fireworks_stream, wire.fireworks_json, wire.fireworks_error),
}
PROVIDERS = list(SHAPES)


def hosted(up: Upstream, name: str, body: Any = HELLO, **options: Any) -> UpstreamRequest:
    endpoint = {"type": "litellm", "litellm_provider": name, "key_variable": "UP_KEY"}
    return ask(up, body=body, endpoint=endpoint | options.pop("endpoint", {}), **options)
