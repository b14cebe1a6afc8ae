"""Proofs: has litellm build requests that never leave, and derives a recipe from them. Runs in the worker.

A recipe is handed out only when it explains two requests that litellm built, for the call itself and for
one of the same signature with other words and numbers. So is the bare translation (litellm_bare.py).
"""

from __future__ import annotations

from typing import Any

from ionrouter.providers.litellm_bare import PROVIDERS
from ionrouter.providers.litellm_capture import CAPTURED
from ionrouter.providers.litellm_recipe import BARE, KEY, derive, explains, is_same_request
from ionrouter.providers.litellm_shape import varied
from ionrouter.providers.litellm_stream import RAW_HANDLER, open_call
from ionrouter.providers.outgoing import Outgoing
from ionrouter.schema import json


async def prove(litellm: Any, call: dict[str, Any], outgoing: Outgoing) -> dict[str, Any]:
    """Return {"recipe": JSON or BARE} or {"recipe": None, "why": words} for a call with a key's stand-in."""
    is_bare = call["kind"] == "chat" and call["model"].partition("/")[0] in PROVIDERS
    if not is_bare and (why := _unfit(litellm, call)):
        return {"recipe": None, "why": why}
    other = varied(call)
    sent, other_sent = [await captured(litellm, each, outgoing) for each in (call, other)]
    if sent is None or other_sent is None:
        return {"recipe": None, "why": "litellm sent nothing through httpx, or more than one request"}
    if is_bare:
        return await _prove_bare(litellm, outgoing, (call, sent), (other, other_sent))
    recipe = derive(call, sent)
    if isinstance(recipe, str):
        return {"recipe": None, "why": recipe}
    if not explains(recipe, call, sent) or not explains(recipe, other, other_sent):
        return {"recipe": None, "why": "values are translated"}
    return {"recipe": recipe.as_json()}


async def _prove_bare(
    litellm: Any, outgoing: Outgoing, *proved: tuple[dict[str, Any], dict[str, Any]]
) -> dict[str, Any]:
    """Whether the bare translation builds, to the byte, the requests that acompletion built."""
    for call, sent in proved:
        bare = await captured(litellm, {**call, "bare": True}, outgoing)
        if bare is None or not is_same_request(bare, sent):
            return {"recipe": None, "why": "the bare translation sends something else"}
    return {"recipe": BARE}


def _unfit(litellm: Any, call: dict[str, Any]) -> str | None:
    """Answers of these providers are handed on as they came (litellm_stream.py); others are translated."""
    if call["kind"] != "chat":
        return "not chat"
    name, _, model = call["model"].partition("/")
    if name not in {provider.value for provider in litellm.LlmProviders}:
        return "a provider unknown to litellm"
    config = litellm.ProviderConfigManager.get_provider_chat_config(
        model=model, provider=litellm.LlmProviders(name)
    )
    if not _names(type(config)) & {"OpenAIGPTConfig", "OpenAIConfig"}:
        return "another shape than OpenAI's"
    if name in litellm.openai_compatible_providers:
        return None
    reads = config.get_model_response_iterator(iter(()), sync_stream=True)
    return None if RAW_HANDLER in _names(type(reads)) else "answers are translated"


def _names(cls: type) -> set[str]:
    return {base.__name__ for base in cls.__mro__}


async def captured(litellm: Any, call: dict[str, Any], outgoing: Outgoing) -> dict[str, Any] | None:
    """Have the request of a call built, with KEY for the key, and not sent; None where there is not one."""
    seen: list[dict[str, Any]] = []
    token = CAPTURED.set(seen)
    try:
        # A copy: litellm writes into what it is given.
        copied = json.loads(json.dumps({**call, "api_key": KEY}))
        wrapper = await open_call(litellm, copied, outgoing)
        if call["stream"] and hasattr(wrapper, "fetch_stream"):
            await wrapper.fetch_stream()
    except Exception:  # NeverSent comes out as any of litellm's classes; `seen` says what happened
        pass
    finally:
        CAPTURED.reset(token)
    return seen[0] if len(seen) == 1 else None
