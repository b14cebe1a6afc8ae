"""What a provider tells of the body that it sent, where somebody wants to see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from ionrouter.providers.litellm import LiteLLMProvider
from ionrouter.schema.events import SentBody
from tests.support.endpoints import collect
from tests.support.hosted import KEY
from tests.support.ion_provider import ask, ion_request, local_endpoint, provider_of
from tests.support.litellm_matrix import asking, is_ours, plain_answer
from tests.support.tiny_model import write_tiny_model
from tests.support.upstream import Upstream

HI = [{"role": "user", "content": "the quick brown fox"}]


async def test_a_local_model_tells_the_prompt_that_it_continues(tmp_path: Path) -> None:
    endpoint = local_endpoint(write_tiny_model(tmp_path / "tiny.gguf"))
    sent = SentBody("tiny", "Ion")
    body = {"messages": HI, "max_tokens": 2, "temperature": 0}
    async with provider_of(endpoint, cache=tmp_path) as provider:
        reply = await ask(provider, ion_request(endpoint, body, sent=sent))
    told = json.loads(sent.body or b"")
    assert told.keys() == {"model", "prompt", "max_tokens", "temperature"}
    assert "the quick brown fox" in told["prompt"] != HI[0]["content"]
    assert told["model"] == "tiny" and reply.text


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("carrier", ["on", "off"])
async def test_litellm_tells_what_is_carried_and_else_what_it_is_to_translate(
    carrying: LiteLLMProvider, carrier: str
) -> None:
    with Upstream(plain_answer) as up:
        request = asking(up, "groq", {"messages": HI}, endpoint={"options": {"carrier": carrier}})
        await collect(carrying, request)
        await carrying.carrier.settled()
        sent = SentBody("m", "Groq")
        await collect(carrying, replace(request, sent=sent))
        assert is_ours(up.requests[-1]) is (carrier == "on")
    told = json.loads(sent.body or b"")
    assert told["messages"] == HI
    if carrier == "on":
        assert told == up.requests[-1].json()
    else:
        assert told["model"].startswith("groq/")
    assert KEY.encode() not in (sent.body or b"")
