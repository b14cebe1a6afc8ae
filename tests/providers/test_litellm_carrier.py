"""The carrier's tables, and what does not pass by them. What it sends: test_litellm_wire.py."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ionrouter.providers.litellm import LiteLLMProvider
from ionrouter.providers.litellm_carrier import FORMAT, Carrier
from tests.support.endpoints import collect
from tests.support.hosted import KEY
from tests.support.litellm_matrix import asking, is_ours, plain_answer
from tests.support.upstream import Upstream

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("name", ["together_ai", "anthropic"])
async def test_a_table_lives_on_disk_without_key_and_prompt_and_a_broken_one_is_made_again(
    litellm: LiteLLMProvider, carrying: LiteLLMProvider, tmp_path: Path, name: str
) -> None:
    body = {"messages": [{"role": "user", "content": "a secret prompt"}]}
    was = carrying.carrier
    try:
        with Upstream(plain_answer) as up:
            carrying.carrier = Carrier(litellm.worker, tmp_path)
            await collect(carrying, asking(up, name, body))
            await carrying.carrier.settled()
            (path,) = await asyncio.to_thread(lambda: list(tmp_path.iterdir()))
            kept = path.read_text()
            assert KEY not in kept and "secret prompt" not in kept
            carried = []
            for content in (kept, "{", kept.replace(f'"format":{FORMAT}', '"format":0'), kept):
                path.write_text(content)
                carrying.carrier = Carrier(litellm.worker, tmp_path)
                await collect(carrying, asking(up, name, body))
                await carrying.carrier.settled()
                assert path.read_text() == kept
                carried.append(is_ours(up.requests[-1]))
            assert carried == [True, False, False, True]
    finally:
        carrying.carrier = was


@pytest.mark.parametrize("name", ["groq", "gemini"])
async def test_an_option_forces_litellm(carrying: LiteLLMProvider, name: str) -> None:
    with Upstream(plain_answer) as up:
        for _ in range(2):
            await collect(carrying, asking(up, name, endpoint={"options": {"carrier": "off"}}))
            await carrying.carrier.settled()
        assert not any(map(is_ours, up.requests))
