"""The fields of routes.yaml as Markdown tables, made from the models in spec.py. Knows no file of routes.

`python -m ionrouter.routing.reference FILE` puts them into FILE between the two marks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ionrouter.routing.schema import schema

BEGIN = "<!-- fields of routes.yaml: made by `python -m ionrouter.routing.reference`, do not edit -->"
END = "<!-- end of the fields -->"

# Headings in the order of the file: (heading, model in the schema, fields told elsewhere).
_PARTS = (
    ("`routing`", "RoutingSpec", ()),
    ("`providers.NAME`", "ProviderSpec", ()),
    ("`models.NAME`", "ModelSpec", ()),
    ("`models.NAME.endpoints[]`", "EndpointSpec", ()),
    ("`models.NAME.endpoints[].kv_tier`", "KvTierSpec", ()),
    ("`patterns.GLOB`: the same, less what only `ion` has", "PatternSpec", ("EndpointSpec", "model")),
    ("`prices`: USD per million tokens", "PricesSpec", ()),
    ("`long`, of prices", "LongPricesSpec", ()),
    ("`flex` and `priority`, of prices", "TierPricesSpec", ()),
    ("`timeouts`, here, at a provider and under `defaults`", "TimeoutsSpec", ()),
    ("`breaker`, here, at a provider and under `defaults`", "BreakerSpec", ()),
    ("`expected`: speed to assume until measured", "ExpectedSpec", ()),
    ("`hedge`, of a model", "HedgeSpec", ()),
    ("`canary`, of a model", "CanarySpec", ()),
    ("`shadow`, of a model", "ShadowSpec", ()),
)


def render() -> str:
    """All tables, in the order of the file."""
    models = schema()["$defs"]
    return "\n".join(line for part in _PARTS for line in _part(models, *part))


def _part(models: Mapping[str, Any], heading: str, name: str, same_as: tuple[str, ...]) -> Iterator[str]:
    told = set(models[same_as[0]]["properties"]) - set(same_as[1:]) if same_as else set()
    needed = models[name].get("required", ())
    yield from (f"### {heading}", "", "| field | takes | default | |", "| --- | --- | --- | --- |")
    for field, fields in models[name]["properties"].items():
        if field not in told:
            default = "needed" if field in needed else _default(fields.get("default"))
            yield f"| `{field}` | {_takes(fields)} | {default} | {fields.get('description', '')} |"
    yield ""


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return f"`{value:g}`"
    return f"`{value}`" if isinstance(value, str) and value else ""


_WORDS = {
    "string": "text",
    "number": "number",
    "integer": "whole number",
    "boolean": "true, false",
    "array": "list",
    "object": "mapping",
}


def _takes(fields: Mapping[str, Any]) -> str:
    if "anyOf" in fields:
        return " or ".join(_takes(part) for part in fields["anyOf"] if part.get("type") != "null")
    if "enum" in fields:
        return ", ".join(f"`{value}`" for value in fields["enum"])
    if "$ref" in fields:
        return "mapping, see below"
    kinds = fields.get("type", "object")
    return " or ".join(_WORDS[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds))


def put_into(text: str) -> str:
    """The text with fresh tables between the marks; raises ValueError if it has no marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the text lacks the marks of the field tables")
    return f"{before}{BEGIN}\n\n{render()}\n{END}{after}"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(put_into(target.read_text(encoding="utf-8")), encoding="utf-8")
