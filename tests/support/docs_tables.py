"""Rows of the generated tables in docs/, each made from the part of the code that decides. Knows no page."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from pydantic import BaseModel

from ionrouter import cli
from ionrouter.api import listing, routes
from ionrouter.api.guard import Access
from ionrouter.api.readiness import Readiness
from ionrouter.api.routes import make_application
from ionrouter.api.state import Edge
from ionrouter.balancing import fields as balancing_fields
from ionrouter.balancing.verdict import client_error_type, client_status
from ionrouter.errors import UpstreamError
from ionrouter.metrics import Metrics
from ionrouter.providers import error_tables
from ionrouter.providers.ion_parameters import _NEUTRAL, SUPPORTED_PARAMETERS
from ionrouter.schema.chat import ChatRequest
from ionrouter.schema.completions import CompletionRequest
from ionrouter.schema.errors import error_type
from ionrouter.schema.fields import GATEWAY_FIELDS, MODEL_PARAMETERS
from ionrouter.schema.preferences import IonrouterObject, ProviderObject
from ionrouter.settings import Settings
from ionrouter.stats.book import StatsBook
from tests.support import source_scan
from tests.support.edge import ScriptedRoutes, no_reload

ROOT = Path(__file__).parents[2]
Row = tuple[str, ...]
PREFIXES = (*routes.PREFIXES, routes.BETA_PREFIX)
FRAMEWORK_STATUSES = (400, 404, 405, 413, 500)  # answered outside any handler

_WHO: Mapping[Access, str] = {
    Access.OPEN: "anyone",
    Access.CATALOGUE: "anyone; a key that is sent must be right",
    Access.INFERENCE: "an inference key",
    Access.ANY_KEY: "any key",
    Access.MANAGEMENT: "a management key, always",
}
_DEFAULTS: Mapping[str, str] = {
    "config": "`./routes.yaml`, else the shipped one",
    "state_dir": "`$XDG_STATE_HOME/ionrouter`, else `~/.local/state/ionrouter`",
    "cache_dir": "`$XDG_CACHE_HOME/ionrouter`, else `~/.cache/ionrouter`",
}


def application() -> web.Application:
    """The real application, with its real routes, before nobody's router."""
    edge = Edge(Settings(), ScriptedRoutes(), StatsBook(), Metrics(), Readiness(), no_reload, False, None)
    return make_application(edge)


def http_routes() -> Iterator[Row]:
    """Method and path, both prefixes in one row, and who may."""
    access = {
        handler: access for _, _, handler, access in (*routes.API, *routes.BATCH_API, *routes.OPERATIONS)
    }
    found: dict[str, tuple[set[str], Access]] = {}
    for route in application().router.routes():
        if route.resource is not None and route.method != "HEAD":
            prefix, path = split_prefix(route.resource.canonical)
            prefixes, _ = found.setdefault(f"`{route.method} {path}`", (set(), access[route.handler]))  # type: ignore[index]
            prefixes.add(prefix)
    for name, (prefixes, who) in found.items():
        assert prefixes >= {*routes.PREFIXES}, f"{name} is not under both prefixes"
        also = ", also at the root" if "" in prefixes else ""
        also += f", also under `{routes.BETA_PREFIX}`" if routes.BETA_PREFIX in prefixes else ""
        yield f"{name}{also}", _WHO[who]


def split_prefix(path: str) -> tuple[str, str]:
    """Split "/api/v1/models" into prefix and the rest; the prefix is "" at the root."""
    prefix = next((prefix for prefix in PREFIXES if path.startswith(prefix + "/")), "")
    return prefix, path.removeprefix(prefix)


def request_fields() -> Iterator[Row]:
    """Every field of a request body that is known, how it is treated, and what the local engine does."""
    chat, completions = ChatRequest.model_json_schema(), CompletionRequest.model_json_schema()
    known = {**completions["properties"], **chat["properties"]}
    named = [*chat["properties"], *(name for name in known if name not in chat["properties"])]
    unread = (GATEWAY_FIELDS | MODEL_PARAMETERS | {*balancing_fields._CONTRACT}) - {*known}
    for name in [*named, *sorted(unread)]:
        both = [
            _takes(kind["properties"][name], kind["$defs"])
            for kind in (chat, completions)
            if name in kind["properties"]
        ]
        where = (
            ""
            if name in unread or len(both) == 2
            else "chat"
            if name in chat["properties"]
            else "completions"
        )
        takes = both[0] if len({*both}) == 1 else "; completions: ".join(both) or "not checked"
        yield f"`{name}` ({where})" if where else f"`{name}`", takes, _kind(name), _by_ion(name)


def _kind(name: str) -> str:
    """How a field travels: ionrouter/balancing/fields.py."""
    if name in GATEWAY_FIELDS:
        return "here"
    if name in balancing_fields.CONTENT or name in balancing_fields._LENGTH:
        return "content"
    if name in balancing_fields._CONTRACT:
        return "contract"
    return "sampling" if name in MODEL_PARAMETERS else "unknown"


def _by_ion(name: str) -> str:
    if name in SUPPORTED_PARAMETERS | balancing_fields._READ_FOR_ION or name in ("messages", "prompt"):
        return "yes"
    if name in GATEWAY_FIELDS:
        return ""
    if name in balancing_fields._CONTRACT or (name in _NEUTRAL and name not in MODEL_PARAMETERS):
        return "400"
    return "dropped"


def provider_object() -> Iterator[Row]:
    return _object(ProviderObject)


def ionrouter_object() -> Iterator[Row]:
    return _object(IonrouterObject)


def _object(model: type[BaseModel]) -> Iterator[Row]:
    schema = model.model_json_schema()
    for name, spec in schema["properties"].items():
        yield f"`{name}`", _SHORT_FORMS.get(name, "") + _takes(spec, schema.get("$defs", {}))


# Forms that a validator turns into the object before the schema sees them.
_SHORT_FORMS = {
    "sort": "text or ",
    "preferred_min_throughput": "number or ",
    "preferred_max_latency": "number or ",
}
_WORDS = {"string": "text", "boolean": "true, false", "array": "list", "object": "object"}


def _takes(spec: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Say a JSON schema in a few words: "number 0 to 2"."""
    if "anyOf" in spec:
        parts = [_takes(part, definitions) for part in spec["anyOf"] if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(parts))
    if "$ref" in spec:
        return _takes(definitions[spec["$ref"].rpartition("/")[2]], definitions)
    if "enum" in spec:
        return ", ".join(f"`{value}`" for value in spec["enum"])
    kind = spec.get("type", "anything")
    if kind in ("number", "integer"):
        return f"{'number' if kind == 'number' else 'whole number'}{_range(spec)}"
    most = spec.get("maxItems") or spec.get("maxLength")
    return f"{_WORDS.get(kind, kind)}{f', at most {most}' if most else ''}"


def _range(spec: Mapping[str, Any]) -> str:
    least, most = spec.get("minimum"), spec.get("maximum")
    if (above := spec.get("exclusiveMinimum")) is not None:
        return f" above {above:g}" if most is None else f" above {above:g}, up to {most:g}"
    if least is None or most is None:
        return "" if least is None else f" from {least:g}"
    return f" {least:g} to {most:g}"


def error_types() -> Iterator[Row]:
    """Every error type that can reach a client, with the statuses it comes with."""
    pairs = source_scan.error_types() | {*_from_upstreams()}
    pairs |= {(error_type(status), status) for status in FRAMEWORK_STATUSES}
    for name in sorted({kind for kind, _ in pairs}):
        yield f"`{name}`", ", ".join(str(status) for kind, status in sorted(pairs) if kind == name)


def _from_upstreams() -> Iterator[tuple[str, int]]:
    """What upstreams' failures become, by the tables that read them."""
    tables = (error_tables.BY_CODE, error_tables.BY_TYPE, error_tables.WEAK_TYPES, error_tables.BY_STATUS)
    for verdict in {verdict for table in tables for verdict in table.values()}:
        named = verdict.error_type or error_tables.ERROR_TYPES[verdict.status]
        error = UpstreamError(verdict.failure, "", status=verdict.status, error_type=named)
        yield client_error_type(error), client_status(error)


def availability_codes() -> Iterator[Row]:
    for code in sorted(source_scan.availability_codes()):
        yield (f"`{code}`",)


def model_filters() -> Iterator[Row]:
    for name in listing.FILTERS:
        yield (f"`{name}`",)


def settings() -> Iterator[Row]:
    for name, spec in Settings.model_fields.items():
        schema = Settings.model_json_schema()["properties"][name]
        default = _DEFAULTS.get(name) or _default(spec.get_default())
        yield f"`IONROUTER_{name.upper()}`", _setting_takes(schema), default, spec.description or ""


def _setting_takes(schema: Mapping[str, Any]) -> str:
    kinds = [schema, *schema.get("anyOf", ())]
    if any(kind.get("format") == "path" for kind in kinds):
        return "path"
    return "comma-separated list" if schema.get("type") == "array" else _takes(schema, {})


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
    return f"`{value}`" if value else "none"


def commands() -> Iterator[Row]:
    """Every subcommand as argparse knows it."""
    for words, text, sub in subcommands(cli.parser()):
        usage = re.sub(r"\s+", " ", sub.format_usage().removeprefix("usage: ")).strip()
        assert usage.startswith(f"ionrouter {words}")
        yield f"`{usage.replace(' [-h]', '').replace(' [--config FILE]', '')}`", text


def subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Words after the program's name, the sentence about them, and the parser of each leaf command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            sentences = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, sub in action.choices.items():
                leaves = [(f"{name} {words}", text, leaf) for words, text, leaf in subcommands(sub)]
                yield from leaves or [(name, sentences[name], sub)]


def log_events() -> Iterator[Row]:
    for event in sorted(source_scan.log_events().values(), key=lambda event: event.name):
        levels = " or ".join(level for level in source_scan.LEVELS if level in event.levels)
        yield f"`{event.name}`", levels, ", ".join(f"`{key}`" for key in event.keys)


def metrics() -> Iterator[Row]:
    """Every series of the registry under the names that a scrape shows."""
    for collector in Metrics().registry._collector_to_names:
        if hasattr(collector, "_labelnames"):
            kind, name = collector._type, collector._name  # type: ignore[attr-defined]
            yield _metric(name, kind, collector._labelnames, collector._documentation)  # type: ignore[attr-defined]
        else:
            for family in collector.describe():  # type: ignore[attr-defined]
                assert isinstance(family, GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily)
                yield _metric(family.name, family.type, family._labelnames, family.documentation)


def _metric(name: str, kind: str, labels: Any, text: str) -> Row:
    shown = {"counter": f"{name}_total", "histogram": f"{name}_bucket`, `_sum`, `_count"}.get(kind, name)
    return f"`{shown}`", kind, ", ".join(f"`{label}`" for label in labels), text


def decisions() -> Iterator[Row]:
    """Number and title of every entry."""
    for path in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ").partition(". ")[2]
        yield str(int(path.name[:4])), f"[{title}]({path.name})"
