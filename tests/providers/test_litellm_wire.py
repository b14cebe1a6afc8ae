"""The wire matrix: whichever way a call takes, what leaves is what acompletion would have sent.

What comes back: test_litellm_answers.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from ionrouter.providers.litellm import LiteLLMProvider
from ionrouter.providers.litellm_recipe import BARE
from tests.support.litellm_matrix import BODIES, CARRIED, TRANSLATED, asking, is_ours, plain_answer
from tests.support.litellm_ways import both, learnt, told, way
from tests.support.upstream import Received, Upstream

pytestmark = pytest.mark.asyncio(loop_scope="session")
_OURS = {"host", "accept-encoding", "connection", "content-length"}
# What only acompletion can send, with and without streaming: it translates values or imitates streams.
_MARKS = {"cached", "developer"}
KEPT: dict[str, set[str]] = {
    "together_ai": _MARKS,
    "fireworks_ai": {*_MARKS, "required", "pdf"},
    "groq": {*_MARKS, "schema", "strict", "strict tools", "json stream"},
    "deepseek": {*_MARKS, "image", "pdf", "audio", "results", "effort", "low effort", "no effort", "budget",
                 "signed"},
    "mistral": {*_MARKS, "turns", "results", "signed", "required", "sampling", "choices", "penalties", "bias",
                "tier", "padded", "audio", "effort", "low effort", "no effort", "budget"},
    "anthropic": {"sampling", "system alone", "choices", "penalties", "bias", "tier"},  # refused by litellm
    "gemini": {"sampling", "bias", "tier"},
}  # fmt: skip


def _wire(name: str, seen: Received) -> Any:
    headers = {name: value for name, value in seen.headers.items() if name not in _OURS}
    return seen.method, seen.path, headers, seen.body if name in TRANSLATED else seen.json()


@pytest.mark.parametrize("name", CARRIED + TRANSLATED)
async def test_what_goes_on_the_wire_is_what_litellm_would_have_sent(
    litellm: LiteLLMProvider, carrying: LiteLLMProvider, name: str
) -> None:
    kept: set[str] = set()
    with Upstream(plain_answer) as up:
        for case, body in BODIES.items():
            for stream in (False, True):
                request = asking(up, name, body, stream=stream, options={"route": "r"})
                label = f"{case} stream" if stream else case
                await learnt(carrying, request)
                first = len(up.requests)
                old, new = await both(litellm, carrying, request)
                sent = up.requests[first:]
                assert told(old) == told(new), label
                assert [_wire(name, r) for r in sent[:1]] == [_wire(name, r) for r in sent[1:]], label
                if not sent:
                    assert old.error is not None, label  # litellm itself refused
                else:
                    assert old.error is None, label
                found = way(carrying, request)
                if found is None:
                    kept.add(label)
                else:
                    assert (found == BARE) is (name in TRANSLATED), label
                    assert is_ours(sent[1]), label
    expected = {c for case in BODIES for c in (case, f"{case} stream")}
    left = {c for c in expected if KEPT[name] & {c, c.removesuffix(" stream")}}
    assert kept == left, (sorted(kept - left), sorted(left - kept))


async def test_no_two_bodies_of_the_matrix_are_the_same() -> None:
    """Else one thing would be proved twice."""
    assert len({json.dumps(body, sort_keys=True) for body in BODIES.values()}) == len(BODIES)


SPOKEN = {
    "anthropic": {
        "model": "claude-sonnet-4-5",
        "system": [{"type": "text", "text": "short"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "warm?"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "k7", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "k7", "content": "21"}]},
        ],
        "tools": [{"type": "custom", "name": "f", "input_schema": {"type": "object", "properties": {}}}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "max_tokens": 99,
        "temperature": 0.5,
        "top_k": 5,
        "stop_sequences": ["x"],
    },
    "gemini": {
        "system_instruction": {"parts": [{"text": "short"}]},
        "contents": [
            {"role": "user", "parts": [{"text": "warm?"}]},
            {"role": "model", "parts": [{"function_call": {"name": "f", "args": {}}}]},
            {"role": "user", "parts": [{"function_response": {"name": "f", "response": {"content": "21"}}}]},
        ],
        "tools": [{"function_declarations": [{"name": "f", "parameters": {"type": "object"}}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
        "generationConfig": {
            "max_output_tokens": 99,
            "temperature": 0.5,
            "top_k": 5,
            "stop_sequences": ["x"],
        },
    },
}


@pytest.mark.parametrize("name", TRANSLATED)
async def test_a_conversation_in_their_words(carrying: LiteLLMProvider, name: str) -> None:
    """Against the providers' own references, not against litellm: both ways could be wrong together."""
    body = {**BODIES["turns"], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 99}
    body |= {"temperature": 0.5, "top_k": 5, "stop": ["x"]}
    with Upstream(plain_answer) as up:
        for _ in range(2):
            await learnt(carrying, asking(up, name, body, stream=False))
        assert [r.json() for r in up.requests] == [SPOKEN[name]] * 2
