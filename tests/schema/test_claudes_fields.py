"""A tool's result for Claude: its media inside it, its failure as a field."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.schema.claudes_fields import whole_results, without_claudes
from ionrouter.schema.conversation import Conversation, text_part

PICTURE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
FILE: dict[str, Any] = {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}}
A, B = text_part("a"), text_part("b")
MARK = {"cache_control": {"type": "ephemeral"}}


def conversation(*results: tuple[list[Any], bool], said: Any = ()) -> list[dict[str, Any]]:
    chat = Conversation()
    chat.call("0", "f", "{}")
    for number, (parts, is_error) in enumerate(results):
        chat.result(str(number), parts, is_error=is_error)
    if said:
        chat.say("user", said)
    return chat.messages()[1:]


@pytest.mark.parametrize(
    ("parts", "is_error", "content"),
    [
        ([A, PICTURE], False, [A, PICTURE]),
        ([PICTURE, FILE], False, [PICTURE, FILE]),
        ([PICTURE, A, text_part(""), B, FILE], False, [PICTURE, A, B, FILE]),
        ([A | MARK, PICTURE, B], False, [A | MARK, PICTURE, B]),
        ([A, PICTURE], True, [A, PICTURE]),
        ([A | MARK, PICTURE], True, [A | MARK, PICTURE]),
        ([PICTURE], True, [text_part("Error"), PICTURE]),  # Claude refuses a failure without words
        ([text_part("Error: x")], True, "Error: x"),
        ([A, B], False, "ab"),
    ],
)
def test_a_result_is_as_it_was(parts: list[Any], is_error: bool, content: Any) -> None:
    failed = {"is_error": True} if is_error else {}
    messages = conversation((parts, is_error))
    told = [without_claudes(message) for message in whole_results(messages)]
    assert told == [{"role": "tool", "tool_call_id": "0", "content": content, **failed}]


def test_results_side_by_side_have_their_own_and_the_user_what_was_said() -> None:
    for said in ([A], [A, PICTURE]):
        messages = conversation(([PICTURE], False), ([B], True), ([A, FILE], False), said=said)
        told = [message["content"] for message in whole_results(messages)]
        assert told == [[PICTURE], "b", [A, FILE], said]


@pytest.mark.parametrize(
    "changed",
    [
        lambda messages: messages[:1],
        lambda messages: [messages[0], {"role": "user", "content": "hi"}],
        lambda messages: [messages[0], {"role": "user", "content": [A, B]}],
        lambda messages: [messages[0], {"role": "assistant", "content": [PICTURE]}],
        lambda messages: [messages[0], "odd"],
    ],
)
def test_what_a_plugin_or_a_caller_has_changed_stays_as_it_is(changed: Any) -> None:
    messages = changed(conversation(([PICTURE], False)))
    assert whole_results(messages) == messages


@pytest.mark.parametrize("places", [[1, None], ["x"], [9, None], [-1, 2, None], [None, 1, 1]])
def test_texts_whose_places_are_not_known_come_first(places: list[Any]) -> None:
    messages = [
        {"role": "tool", "content": "abc", "tool_result": {"places": places}},
        {"role": "user", "content": [PICTURE]},
    ]
    (result, *_) = whole_results(messages)
    content = result["content"]
    assert content[0] == text_part("abc") if isinstance(content, list) else content == "abc"
