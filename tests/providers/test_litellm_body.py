"""What the worker is asked to call, from an attempt. No sockets are used."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.providers.litellm_body import build_call
from tests.support.hosted import hosted
from tests.support.upstream import Upstream

OURS = {"type": "reasoning.text", "text": "so", "format": "unknown", "index": 0}


@pytest.mark.parametrize("kept", [{"reasoning": "so"}, {"reasoning_details": [OURS]}])
@pytest.mark.parametrize(
    ("name", "options", "goes_back"),
    [
        ("deepseek", {}, True),
        ("moonshot", {}, True),
        ("zai", {}, True),
        ("groq", {}, False),  # refuses the field
        ("groq", {"reasoning_field": "reasoning_content"}, True),
        ("deepseek", {"reasoning_field": "reasoning"}, False),
    ],
)
def test_thoughts_go_back_to_providers_that_want_them(
    name: str, options: dict[str, Any], goes_back: bool, kept: dict[str, Any]
) -> None:
    answer = {"role": "assistant", "content": "x", **kept}
    question = {"role": "user", "content": "?", "reasoning": "no answer's"}
    with Upstream() as up:
        request = hosted(up, name, {"messages": [answer, question]}, endpoint={"options": options})
    sent, asked = build_call(request, None)["arguments"]["messages"]
    assert sent == answer | ({"reasoning_content": "so"} if goes_back else {})
    assert asked == question
