"""Responses requests: what their items become in chat, and what is refused with its field."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.errors import RequestError
from ionrouter.schema.chat import ChatRequest
from ionrouter.schema.responses_request import ResponsesRequest
from ionrouter.schema.responses_seal import seal
from ionrouter.schema.validation import validated


def chat(**body: Any) -> dict[str, Any]:
    """The chat body of a request; it must pass as one."""
    whole = {"model": "m", "input": "hi", **body}
    made = validated(ResponsesRequest, whole).to_chat(whole)
    validated(ChatRequest, made)
    return made


def test_a_string_is_what_the_user_says() -> None:
    made = chat(instructions="Be brief.", max_output_tokens=5, temperature=0.3, stop=["END"])
    assert made["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]
    assert (made["max_tokens"], made["temperature"], made["stop"]) == (5, 0.3, ["END"])
    assert not {"input", "instructions", "max_output_tokens"} & made.keys()


def test_items_of_every_kind_make_one_conversation() -> None:
    items = [
        {"role": "developer", "content": "rules"},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "see"},
                {"type": "input_image", "image_url": "https://x.example/a.png", "detail": "low"},
                {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="},
            ],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}],
         "encrypted_content": "sealed"},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
         "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2",
         "output": [{"type": "input_image", "image_url": "data:image/png;base64,aGk="}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]  # fmt: skip
    developer, user, assistant, one, two, shown, refusal = chat(input=items)["messages"]
    assert developer == {"role": "developer", "content": "rules"}
    assert user["content"][1]["image_url"] == {"url": "https://x.example/a.png", "detail": "low"}
    assert user["content"][2]["file"]["filename"] == "a.pdf"
    assert assistant["content"] == "Let me look."
    assert [c["id"] for c in assistant["tool_calls"]] == ["c1", "c2"]
    assert [d["type"] for d in assistant["reasoning_details"]] == ["reasoning.summary", "reasoning.encrypted"]
    assert one == {"role": "tool", "tool_call_id": "c1", "content": "one"}
    assert two["tool_call_id"] == "c2"
    assert shown["role"] == "user"
    assert refusal["content"] == [{"type": "refusal", "refusal": "no"}]


@pytest.mark.parametrize(
    ("result", "url"),
    [
        ("iVBORw0KGgo", "data:image/png;base64,iVBORw0KGgo"),
        ("/9j/4AAQ", "data:image/jpeg;base64,/9j/4AAQ"),
        ("https://a.example/b.png", "https://a.example/b.png"),
        ("data:image/gif;base64,R0lG", "data:image/gif;base64,R0lG"),
        (None, None),
    ],
)
def test_an_image_that_was_drawn_is_the_assistants(result: str | None, url: str | None) -> None:
    drawn = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": result}
    _, *said = chat(input=[{"role": "user", "content": "Draw."}, drawn])["messages"]
    images = [{"type": "image_url", "image_url": {"url": url}}]
    assert said == ([] if url is None else [{"role": "assistant", "content": None, "images": images}])


@pytest.mark.parametrize("verbosity", ["low", "medium", "high", "xhigh", "max"])
def test_every_verbosity_of_chat_is_taken(verbosity: str) -> None:
    assert chat(text={"verbosity": verbosity})["verbosity"] == verbosity


def test_a_response_can_be_sent_back_as_input() -> None:
    """What came out as reasoning, signature and all, goes back to whoever can read it."""
    item = {
        "type": "reasoning", "id": "rs_1", "summary": [], "status": "completed", "encrypted_content": None,
        "content": [{"type": "reasoning_text", "text": "hm"}], "signature": "s",
        "format": "anthropic-claude-v1",
    }  # fmt: skip
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
    (assistant,) = chat(input=[item, said])["messages"]
    (detail,) = assistant["reasoning_details"]
    assert (detail["text"], detail["signature"], detail["format"]) == ("hm", "s", "anthropic-claude-v1")
    assert (assistant["content"], assistant["reasoning"]) == ("x", "hm")


def test_tools_choice_and_format() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    made = chat(
        tools=[tool],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        text={
            "format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True},
            "verbosity": "low",
        },
    )
    function = {"name": "f", "parameters": {"type": "object"}, "strict": True}
    assert made["tools"] == [{"type": "function", "function": function}]
    assert made["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert made["parallel_tool_calls"] is False
    assert made["response_format"]["json_schema"] == {"name": "n", "schema": {}, "strict": True}
    assert made["verbosity"] == "low"
    assert chat(text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}


def test_reasoning_and_log_probabilities() -> None:
    made = chat(reasoning={"effort": "low", "summary": "auto"}, include=["message.output_text.logprobs"])
    assert made["reasoning"] == {"effort": "low", "summary": "auto"}
    assert made["logprobs"] is True
    assert chat(top_logprobs=3)["top_logprobs"] == 3


def test_what_is_echoed() -> None:
    body = {"model": "m", "input": "hi", "temperature": 0.5, "metadata": {"a": "b"}, "instructions": "i"}
    echo = validated(ResponsesRequest, body).echo(body)
    assert (echo["temperature"], echo["metadata"], echo["instructions"]) == (0.5, {"a": "b"}, "i")
    assert (echo["tools"], echo["tool_choice"], echo["parallel_tool_calls"]) == ([], "auto", True)
    assert echo["top_p"] is None
    assert echo["top_logprobs"] == 0  # OpenRouter's own SDKs refuse null here


def test_truncation_is_accepted_and_listed_as_without_effect() -> None:
    body = {"model": "m", "input": "hi", "truncation": "auto"}
    assert validated(ResponsesRequest, body).ignored == ("truncation",)


def _thought(**fields: Any) -> list[dict[str, Any]]:
    item = {"type": "reasoning", "summary": [], **fields}
    said = {"role": "assistant", "content": "x"}
    made: list[dict[str, Any]] = chat(input=[item, said])["messages"][0].get("reasoning_details", [])
    return made


def test_what_an_upstream_encrypted_goes_back_as_it_was() -> None:
    (detail,) = _thought(encrypted_content="gAAAA", id="rs_07f1")
    assert detail["type"] == "reasoning.encrypted"
    assert (detail["data"], detail["format"], detail["id"]) == ("gAAAA", "openai-responses-v1", "rs_07f1")


def test_the_name_that_an_item_got_here_is_not_told_to_its_maker() -> None:
    (detail,) = _thought(encrypted_content="gAAAA", id="rs_1795839483-IdpdQWDBORRUCLdtQf3t-0")
    assert detail["id"] is None


def test_a_signature_of_a_thought_that_is_not_shown_is_kept() -> None:
    (detail,) = _thought(signature="S", format="anthropic-claude-v1")
    assert (detail["type"], detail["text"], detail["signature"]) == ("reasoning.text", "", "S")


SEALED = seal([{"type": "reasoning.text", "text": "hm", "signature": "S"}])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (SEALED[:-4], "was changed"),
        (SEALED.replace("1.", "1.!"), "was changed"),
        (seal([{"type": "reasoning.text", "text": {"a": 1}}]), "was changed"),
        (seal([{"type": "text", "text": "hm"}]), "was changed"),
        ("ionrouter.2.abc", "another version"),
    ],
)
def test_a_sealed_thought_that_is_not_whole_is_refused(value: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as refused:
        _thought(encrypted_content=value)
    assert refused.value.param == "input[0]"


STORED = {"type": "input_image", "file_id": "f"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user"}]}, "input[0]"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [STORED]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "audio"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "reasoning_text", "text": "x"}]}]}, "input[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.tools"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "none", "tools": []}}, "tool_choice.mode"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"include": ["everything"]}, "include[0]"),
        ({"max_tool_calls": 31}, "max_tool_calls"),
        ({"n": 2}, "n"),
        ({"plugins": [{"id": "web"}]}, "plugins[0]"),
        ({"reasoning": {"effort": "low", "max_tokens": 5}}, "reasoning"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_with_its_field(body: Any, param: str | None) -> None:
    with pytest.raises(RequestError) as refused:
        chat(**body)
    assert refused.value.status == 400
    assert refused.value.param == param


@pytest.mark.parametrize("field", ["store", "background"])
def test_false_and_null_ask_for_nothing(field: str) -> None:
    assert field not in chat(**{field: False})
    assert field not in chat(**{field: None})


def test_a_reference_is_told_to_send_the_item() -> None:
    """Some clients send references of their own accord, until they are told that nothing is stored."""
    with pytest.raises(RequestError, match="send the item itself, not a reference"):
        chat(input=[{"type": "item_reference", "id": "rs_1"}])
