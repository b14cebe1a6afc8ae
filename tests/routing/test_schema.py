"""The schema that editors read is the one the models make, and it agrees with what loading accepts."""

import datetime
import json
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from ionrouter.routing.schema import SCHEMA_PATH, render, schema
from tests.routing.build import ROUTES


def plain(value: Any) -> Any:
    """Data as an editor sees it: JSON has no dates."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.isoformat() if isinstance(value, datetime.date) else value


def problems(text: str) -> list[str]:
    data = plain(YAML(typ="safe", pure=True).load(text))
    validator = jsonschema.Draft202012Validator(schema())
    return [error.json_path for error in validator.iter_errors(data)]


def test_the_shipped_schema_is_fresh() -> None:
    assert SCHEMA_PATH.read_text() == render(), "run: python -m ionrouter.routing.schema"


def test_the_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(render()))


def test_the_shipped_routes_satisfy_the_schema() -> None:
    assert problems(ROUTES.read_text()) == []


def test_routes_point_editors_to_the_schema() -> None:
    first = ROUTES.read_text().splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    assert (ROUTES.parent / first.split("=", 1)[1]).samefile(SCHEMA_PATH)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("modles: {}", "$"),
        ("routing: {spread: 0}", "$.routing.spread"),
        ("routing: {strategy: cheap}", "$.routing.strategy"),
        ("models: {m: {endpoints: [{provider: p, prices: {promt: 1}}]}}", "$.models.m.endpoints[0].prices"),
        ("models: {m: {endpoints: [{}]}}", "$.models.m.endpoints[0]"),
        ("providers: {p: {type: vllm}}", "$.providers.p.type"),
    ],
)
def test_editors_see_mistakes_where_loading_does(text: str, path: str) -> None:
    assert problems(text) == [path]


@pytest.mark.parametrize(
    "text",
    [
        "x-shared: [1]",
        "providers: {p: {type: fake, keys: ONE}}",
        "models: {m: {created: 2024-12-06, endpoints: [{provider: p, kv_memory: 2GiB}]}}",
        "models: {m: {created: 5, endpoints: [{provider: p, kv_memory: 5}]}}",
    ],
)
def test_editors_accept_every_way_of_writing(text: str) -> None:
    assert problems(text) == []


def test_every_field_is_described() -> None:
    sections = schema()["$defs"]
    bare = [
        f"{name}.{field}"
        for name in sections.keys() - {"DefaultsSpec"}
        for field, fields in sections[name]["properties"].items()
        if "description" not in fields
    ]
    assert bare == []
