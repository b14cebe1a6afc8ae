"""One call by two ways, acompletion's and the proved one, and what a client would see of each."""

from __future__ import annotations

import re
from typing import Any

from ionrouter.providers.base import UpstreamRequest
from ionrouter.providers.litellm import LiteLLMProvider
from ionrouter.providers.litellm_body import build_call
from ionrouter.providers.litellm_carrier import Way
from ionrouter.schema.events import Complete
from tests.support.endpoints import Answer, collect
from tests.support.hosted import KEY

_MADE_UP = re.compile(r"\b(?:call|toolu)_[0-9a-f-]{24,}")  # Gemini gives its calls no ids; litellm does
_LISTS = ("reasoning_details", "images", "annotations")


def told(answer: Answer) -> Any:
    """What a client would see: whole choices, or the sum of the pieces, and the error."""
    fault = answer.error
    what = fault and (
        fault.failure,
        fault.status,
        fault.error_type,
        fault.code,
        fault.message,
        fault.retry_after_s,
    )
    whole = [(e.choices, e.usage) for e in answer.events if isinstance(e, Complete)]
    indexes = sorted({c.index for chunk in answer.chunks for c in chunk.choices})
    keys = [(i, key) for i in indexes for key in ("content", "reasoning", "refusal")]
    texts = {(i, key): text for i, key in keys if (text := answer.text(i, key))}
    calls = {i: made for i in indexes if (made := answer.tool_calls(i))}
    deltas = [(c.index, c.delta) for chunk in answer.chunks for c in chunk.choices]
    lists = [(i, name, item) for i, d in deltas for name in _LISTS for item in d.get(name, ())]
    all = what, whole, texts, calls, lists, answer.finishes(), answer.usages()
    return _MADE_UP.sub("made_up", repr(all))


def way(carrying: LiteLLMProvider, request: UpstreamRequest) -> Way:
    """Which way the request will go."""
    return carrying.carrier.way(build_call(request, KEY))


async def both(litellm: LiteLLMProvider, carrying: LiteLLMProvider, request: Any) -> tuple[Answer, Answer]:
    return await collect(litellm, request), await collect(carrying, request)


async def learnt(carrying: LiteLLMProvider, request: Any) -> None:
    """A call of a kind not seen before goes the worker's way, and a proof is made beside it."""
    await collect(carrying, request)
    await carrying.carrier.settled()
