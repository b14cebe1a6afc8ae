"""Errors and lists: whatever the upstream writes, ours are in the shape that stock clients read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import strict_shapes
from tests.support.defects import WHOLE
from tests.support.server import Server, running_server
from tests.support.upstream import Upstream, error, response, sse

Serving = tuple[Server, Upstream]
PARTIAL = {"index": 0, "message": {"role": "assistant", "content": "part"}, "finish_reason": "error"}
FAILURES: dict[str, Any] = {
    "an error in a 200": {"error": {"code": 503, "message": "overloaded"}},
    "an error in a 200 with a word as its code": {"error": {"code": "busy", "message": "overloaded"}},
    "an error that is a text": {"error": "overloaded"},
    "an error in the choice": {
        **WHOLE,
        "choices": [{**PARTIAL, "error": {"code": 502, "message": "overloaded"}}],
    },
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", FAILURES)
def test_an_error_in_a_200_becomes_a_real_status(serving: Serving, name: str, stream: bool) -> None:
    server, up = serving
    failure = FAILURES[name]
    up.enqueue(sse([failure]) if stream and "choices" not in failure else response(200, json.dumps(failure)))
    status, body = server.chat(stream=stream)
    assert status in (502, 503)
    strict_shapes.assert_refusal(status, body)
    assert "overloaded" in body["error"]["message"]


REFUSALS: dict[str, str] = {
    "a word as its code": json.dumps({"error": {"code": "too_bad", "message": "sorry"}}),
    "no code": json.dumps({"error": {"message": "sorry"}}),
    "code null": json.dumps({"error": {"code": None, "message": "sorry"}}),
    "a code with a fraction": json.dumps({"error": {"code": 429.5, "message": "sorry"}}),
    "another code than its status": json.dumps({"error": {"code": 7, "message": "sorry"}}),
    "message null": json.dumps({"error": {"code": 400, "message": None}}),
    "message an object": json.dumps({"error": {"code": 400, "message": {"why": "sorry"}}}),
    "a detail": json.dumps({"detail": "sorry"}),
    "a list of details": json.dumps({"detail": [{"loc": ["body"], "msg": "sorry", "type": "x"}]}),
    "a text": "Bad Gateway",
    "a page": "<html><h1>502 Bad Gateway</h1></html>",
    "nothing": "",
    "null": "null",
    "a list": "[]",
}


OUR_ACCOUNT = (401, 402, 404)  # about the router's own key or model there: not for callers to read
CASES = [(status, name) for status in (400, 401, 402, 404, 422, 429, 500, 502, 503) for name in REFUSALS]


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A provider and a model for each case: one that was refused is not asked again for a while."""
    with Upstream() as up:
        cases = [f"{mode}{number}" for mode in "ws" for number in range(len(CASES))]
        providers = {case: {"type": "openai", "name": "Up", "base_url": f"{up.url}/{case}"} for case in cases}
        models = {case: {"endpoints": [{"provider": case, "model": "u"}]} for case in cases}
        routes = json.dumps({"providers": providers, "models": models})
        with running_server(tmp_path_factory.mktemp("refusing"), routes) as server:
            yield server, up


@pytest.mark.parametrize("mode", ["whole", "stream"])
@pytest.mark.parametrize(("status", "name"), CASES)
def test_a_refusal_is_an_envelope_with_its_status_as_integer_code(
    refusing: Serving, status: int, name: str, mode: str
) -> None:
    server, up = refusing
    asked = len(up.requests)
    up.enqueue(error(status, REFUSALS[name]))
    told, body = server.chat(model=f"{mode[0]}{CASES.index((status, name))}", stream=mode == "stream")
    assert len(up.requests) == asked + 1
    assert told >= 400
    strict_shapes.assert_refusal(told, body)
    if "sorry" in REFUSALS[name] and name != "message an object" and status not in OUR_ACCOUNT:
        assert "sorry" in body["error"]["message"]


def test_the_catalogue_fits_both_shapes_whatever_the_upstream_lists(tmp_path: Path) -> None:
    """A bare list, as most servers of OpenAI's API write it, and not even every field of that."""
    rows = [{"id": "one"}, {"id": "two", "object": "model", "created": 1.5, "owned_by": None}]
    listed = response(200, json.dumps({"object": "list", "data": rows}))
    routes = """
providers: {{ up: {{ type: openai, name: Up, base_url: {up}, discover: true }} }}
models: {{ acme/m: {{ endpoints: [ {{ provider: up, model: u }} ] }} }}
"""
    with (
        Upstream(listed) as up,
        running_server(tmp_path, routes.format(up=up.base_url), cache_dir=tmp_path / "cache") as server,
    ):
        server.wait_for("/api/v1/model/two", 200)  # the upstream is asked after the start
        status, body = server.get("/api/v1/models")
        assert status == 200
        assert {row["id"] for row in body["data"]} == {"acme/m", "one", "two"}
        strict_shapes.assert_fits(strict_shapes.MODELS, body)
        for row in body["data"]:
            assert type(row["created"]) is int
            _, endpoints = server.get(f"/api/v1/models/{row['id']}/endpoints")
            strict_shapes.assert_fits(strict_shapes.ENDPOINTS, endpoints)
