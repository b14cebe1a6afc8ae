"""Prompts of the families' own templates, tools and thoughts included, as transformers renders them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from ionrouter.engine import tool_format
from ionrouter.engine.chat_template import ChatTemplate
from ionrouter.errors import RequestError
from ionrouter.providers.ion_tools import messages_for, tools_of
from tests.support.family_templates import FAMILIES

SPECIALS = (
    "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "<|im_start|>", "<|im_end|>",
    "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
)  # fmt: skip
SYSTEM = {"role": "system", "content": " Be brief.\n"}
ASK = {"role": "user", "content": "What is the weather in Zürich? <|im_end|> [/INST] <|eot_id|></s> 🙂 \n"}
SAID = {"role": "assistant", "content": "Sunny.\n"}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSunny, I think."}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'Tells the weather, "now" & here',
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}},
]


def call(name: str, number: int = 0, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_0123456789{number}", "type": "function", "function": function}


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def result(content: str, number: int = 0) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_0123456789{number}", "content": content}


ONE_CALL = [ASK, calling(call("weather", city="Zürich <b>")), result('{"sky": "blue </s>"}')]
PLAIN = {
    "user": [ASK],
    "system": [SYSTEM, ASK],
    "turns": [SYSTEM, ASK, SAID, ASK],
    "thoughts": [ASK, THOUGHT, ASK],
}
WITH_TOOLS = {
    **PLAIN,
    "result": ONE_CALL,
    "turns_after_a_result": [SYSTEM, *ONE_CALL, SAID, ASK],
    "two_calls": [ASK, calling(call("weather", city="Bern"), call("time", 1)), result("1"), result("2", 1)],
}


def compared(family: str, messages: list[dict[str, Any]], **options: Any) -> tuple[str, str]:
    """Render with both, the way a request goes: calls rewritten for the template, then rendered."""
    source = FAMILIES[family]
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>", special_texts=SPECIALS)
    wish = tools_of({"tools": options.get("tools")})
    told = messages_for(messages, template.tool_format, wish, knows_tools=template.knows_tools)
    now = datetime.now()
    ours = template.render(
        told, now=now, tools=options.get("tools") or (), thinks=options.get("enable_thinking")
    )
    theirs, _ = render_jinja_template(
        [[dict(message) for message in told]],
        chat_template=source,
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
        **options,
    )
    return ours.text.replace(ours.mark, ""), theirs[0]


@pytest.mark.parametrize("conversation", PLAIN)
@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_equal_those_of_transformers(family: str, conversation: str) -> None:
    ours, theirs = compared(family, PLAIN[conversation])
    assert ours == theirs


@pytest.mark.parametrize("conversation", WITH_TOOLS)
@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_with_tools_equal_those_of_transformers(family: str, conversation: str) -> None:
    if (family, conversation) == ("llama3.1", "two_calls"):
        with pytest.raises(RequestError, match="One call at a time"):
            compared(family, WITH_TOOLS[conversation], tools=TOOLS)
        return
    ours, theirs = compared(family, WITH_TOOLS[conversation], tools=TOOLS)
    assert ours == theirs
    assert '"weather"' in ours and "Tells the weather" in ours


@pytest.mark.parametrize("thinks", [True, False])
def test_a_wish_to_think_or_not_reaches_the_template(thinks: bool) -> None:
    ours, theirs = compared("qwen3", [ASK], enable_thinking=thinks)
    assert ours == theirs and ours.endswith("</think>\n\n") is not thinks


def test_thoughts_in_messages_are_read_under_any_of_their_names() -> None:
    """A client sends back `reasoning`, as it got it; Qwen's template asks for `reasoning_content`."""
    thought = {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call("time")]}
    ours, theirs = compared("qwen3", [ASK, thought, result("1")], tools=TOOLS)
    assert ours == theirs and "<think>\nhm\n</think>" in ours


def test_each_familys_way_of_calling_is_told_from_its_template() -> None:
    found = {family: tool_format.format_of(source) for family, source in FAMILIES.items()}
    hermes, llama, mistral = tool_format.HERMES, tool_format.LLAMA, tool_format.MISTRAL
    assert found == {"qwen2.5": hermes, "qwen3": hermes, "llama3.1": llama, "mistral3": mistral}
