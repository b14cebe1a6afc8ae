"""The tokens of a prompt as Anthropic counts them, which it does for nothing. Runs in the worker.

litellm builds the request that a call would send, and what of it is the prompt goes to the counting path.
"""

from __future__ import annotations

from typing import Any

from ionrouter.providers.http_faults import HttpFault
from ionrouter.providers.litellm_proof import captured
from ionrouter.providers.litellm_recipe import KEY, is_of_transport
from ionrouter.providers.outgoing import Outgoing, checked_headers
from ionrouter.schema import json

PATH = "/v1/messages"  # of an answer; what counts is below it
MAX_ANSWER_BYTES = 64 * 1024
_COUNTED = frozenset(("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"))


async def count_tokens(litellm: Any, call: dict[str, Any], outgoing: Outgoing) -> dict[str, Any]:
    """Return {"input_tokens": N}, or {"input_tokens": None, "why": words} where nobody counts."""
    built = await captured(litellm, {**call, "stream": False, "bare": True}, outgoing)
    if built is None or not built["url"].endswith(PATH):
        return _uncounted("litellm built no request for it")
    body = {name: value for name, value in built["body"].items() if name in _COUNTED}
    headers = {
        name: value.replace(KEY, call["api_key"] or "")
        for name, value in built["headers"].items()
        if not is_of_transport(name)
    }
    limits = {"allow_http": call["allow_http"], "connect_s": call["connect_s"]}
    url, sent = built["url"] + "/count_tokens", checked_headers({**headers, "Accept-Encoding": "identity"})
    try:
        answer = await outgoing.send("POST", url, sent, json.dumps(body), **limits)
        try:
            told = json.loads(await answer.read(MAX_ANSWER_BYTES)) if answer.status == 200 else None
        finally:
            answer.release(0.0)
    except (HttpFault, OSError, ValueError) as error:
        return _uncounted(type(error).__name__)
    counted = told.get("input_tokens") if isinstance(told, dict) else None
    if isinstance(counted, int) and not isinstance(counted, bool) and counted >= 0:
        return {"input_tokens": counted}
    return _uncounted(f"answered {answer.status}")


def _uncounted(why: str) -> dict[str, Any]:
    return {"input_tokens": None, "why": why}
