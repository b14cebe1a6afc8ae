"""Presets: under the request, field by field, tools joined."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.errors import RequestError
from ionrouter.schema.presets import with_preset


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


PRESETS: dict[str, dict[str, Any]] = {
    "coder": {
        "model": "big",
        "temperature": 0.2,
        "provider": {"sort": "price", "zdr": True},
        "tools": [tool("a", description="preset's"), tool("b")],
    }
}


@pytest.mark.parametrize(
    ("body", "model"),
    [
        ({"model": "@preset/coder"}, "big"),
        ({"model": "small@preset/coder"}, "small"),
        ({"model": "small", "preset": "coder"}, "small"),
        ({"preset": "coder"}, "big"),
        ({"model": None, "preset": "coder"}, "big"),
        ({"model": "@preset/coder", "preset": "coder"}, "big"),
    ],
)
def test_a_preset_is_named_in_three_ways(body: dict[str, Any], model: str) -> None:
    merged = with_preset(body, PRESETS)
    assert merged["model"] == model and merged["temperature"] == 0.2 and "preset" not in merged


def test_what_the_request_gives_wins_whole_and_null_gives_nothing() -> None:
    body = {"preset": "coder", "temperature": 0, "provider": {"only": ["x"]}, "tools": None}
    merged = with_preset(body, PRESETS)
    assert merged["temperature"] == 0 and merged["provider"] == {"only": ["x"]}
    assert merged["tools"] == PRESETS["coder"]["tools"]


def test_tools_are_joined_by_name_and_the_requests_own_win() -> None:
    merged = with_preset({"preset": "coder", "tools": [tool("a", description="mine"), tool("c")]}, PRESETS)
    names = [(t["function"]["name"], t["function"].get("description")) for t in merged["tools"]]
    assert names == [("b", None), ("a", "mine"), ("c", None)]


def test_a_merge_changes_neither_the_body_nor_the_preset() -> None:
    body: dict[str, Any] = {"preset": "coder", "tools": [tool("c")]}
    with_preset(body, PRESETS)
    assert body == {"preset": "coder", "tools": [tool("c")]} and len(PRESETS["coder"]["tools"]) == 2


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "@preset/nope"}, 404, "model"),
        ({"model": "m", "preset": "nope"}, 404, "preset"),
        ({"model": "m@preset/"}, 404, "model"),
        ({"model": "m@preset/coder", "preset": "other"}, 400, "preset"),
        ({"model": "m", "preset": 7}, 400, "preset"),
    ],
)
def test_a_preset_that_is_not_there_is_told(body: dict[str, Any], status: int, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        with_preset(body, PRESETS)
    assert (caught.value.status, caught.value.param) == (status, param)


@pytest.mark.parametrize("body", [[], None, "x", {"model": 7}, {"model": "a@b"}])
def test_what_names_no_preset_passes_as_it_is(body: Any) -> None:
    assert with_preset(body, PRESETS) is body
