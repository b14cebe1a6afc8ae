"""JSON answers that parse again, and those that are left alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ionrouter.schema.events import Choice, Complete
from ionrouter.schema.healing import MAX_CHARACTERS, heal, healed_answer, wants_healing
from tests.support.routes import request

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('```\n{"a": "```"}\n', {"a": "```"}),
        ('Here you are: {"a": 1}. Anything else?', {"a": 1}),
        ('As said in [1], {"a": [1, 2]}', {"a": [1, 2]}),
        ('{"a": [1, 2,], }', {"a": [1, 2]}),
        ('{a: 1, b_c: {d-e: "x: y"}}', {"a": 1, "b_c": {"d-e": "x: y"}}),
        ('{"a": [1, {"b": 2}', {"a": [1, {"b": 2}]}),
        ('{"a": [1, 2}', {"a": [1, 2]}),
        ('{"a": "}]", "b": "\\"{"', {"a": "}]", "b": '"{'}),
        ("[1, 2", [1, 2]),
    ],
)
def test_what_is_wrapped_or_left_open_is_mended(text: str, value: Any) -> None:
    mended = heal(text)
    assert mended is not None and json.loads(mended) == value


@pytest.mark.parametrize("text", ["", "no", '"a string"', "7", '{"a": "cut of', '{"a": tru', "{'a': 1}"])
def test_what_would_have_to_be_guessed_is_not(text: str) -> None:
    assert heal(text) is None


@given(st.dictionaries(st.text(), _json) | st.lists(_json))
def test_what_parses_stays_as_it_is_and_survives_a_fence_and_a_lost_end(value: Any) -> None:
    text = json.dumps(value)
    assert heal(text) == text
    fenced = heal(f"```json\n{text}\n```")
    assert fenced is not None and json.loads(fenced) == value
    opened = heal(text.rstrip("]}") if not text.endswith(('"', "{}", "[]")) else text)
    assert opened is None or json.loads(opened) is not None


@given(st.text(alphabet='{}[]",:a1 \\`\n'))
def test_any_text_is_mended_into_json_or_left(text: str) -> None:
    mended = heal(text)
    assert mended is None or isinstance(json.loads(mended), dict | list)


def test_what_is_too_long_or_too_deep_is_left() -> None:
    assert heal('{"a": [' + "1," * MAX_CHARACTERS) is None
    assert heal("[" * 60_000) is None and heal("[" * 60_000 + "]" * 60_000) is None
    long = json.dumps(["x" * MAX_CHARACTERS])
    assert heal(long) == long


def test_an_answer_that_its_length_cut_off_stays_as_it_is() -> None:
    cut, open_ = Choice(0, {"content": '{"a": 1'}, "length"), Choice(1, {"content": '{"a": 1'}, "stop")
    healed, is_changed = healed_answer(Complete((cut, open_)))
    assert is_changed
    assert [c.message["content"] for c in healed.choices] == ['{"a": 1', '{"a": 1}']
    assert open_.message["content"] == '{"a": 1'
    good = Complete((Choice(0, {"content": '{"a": 1}'}, "stop"), Choice(1, {"content": None}, "stop")))
    assert healed_answer(good) == (good, False)


def test_only_whole_json_answers_are_mended_and_only_when_asked() -> None:
    plugins = {"plugins": [{"id": "response-healing"}]}
    body = {"messages": [], "response_format": {"type": "json_object"}}
    assert wants_healing(request(body=body, gateway_fields=plugins))
    assert not wants_healing(request(body=body, gateway_fields=plugins, stream=True))
    assert not wants_healing(request(body={"messages": []}, gateway_fields=plugins))
    assert not wants_healing(request(body=body))
    off = {"plugins": [{"id": "response-healing", "enabled": False}]}
    assert not wants_healing(request(body=body, gateway_fields=off))
