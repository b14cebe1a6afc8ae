"""GET stats/routes: the statistics of endpoints, models, providers, classes and keys, as JSON or CSV."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from aiohttp import hdrs, web

from ionrouter.api.guard import Access, authenticate, presented_key
from ionrouter.api.row_stream import CsvRows, JsonRows, send_rows
from ionrouter.api.state import EDGE, KEY, Edge
from ionrouter.errors import RequestError
from ionrouter.routing.groups import group_names, group_route
from ionrouter.routing.resolve import resolve, split_variant
from ionrouter.stats.book import PURPOSES
from ionrouter.stats.classes import CLASSES
from ionrouter.stats.query import (
    DEFAULT_PERCENTILES,
    DIMENSIONS,
    MAX_STRETCH_S,
    Dimension,
    Question,
)
from ionrouter.stats.query import steps as stats_steps
from ionrouter.stats.ranking import Order, ranked, sortable
from ionrouter.stats.resolution import GRAINS, HOUR, MINUTE, UNITS_S, Resolution

DEFAULT_WINDOW_S = 1800.0
MAX_PERCENTILES = 20
MAX_ROWS = 100_000
_VALUES: Mapping[Dimension, tuple[str, ...]] = {"stream": ("true", "false"), "class": CLASSES}
_HASH = re.compile(r"[0-9a-f]{64}")
Word = TypeVar("Word", bound=str)
_KNOWN = frozenset(
    {"window", "since", "until", "group_by", "percentiles", "resolution", "role", "format", "sort", "limit"}
    | set(DIMENSIONS)
)


async def routes(request: web.Request) -> web.StreamResponse:
    """Filters, groups, percentiles, stretch and resolution come as query parameters (docs/api.md)."""
    edge, query = request.app[EDGE], request.query
    if unknown := [name for name in query if name not in _KNOWN]:
        raise _bad(unknown[0], f"is not known; known are {', '.join(sorted(_KNOWN))}")
    question = _question(query, time.time(), _filters(query, edge))
    if question.reads_keys:
        _check_may_see_keys(request)
        question = replace(question, filters=_of_keys(question.filters, edge))
    order, limit = _order(query, question), _limit(query)
    # One more, to know whether there is more.
    steps = ranked(edge.stats, question, order, limit + 1) if order else stats_steps(edge.stats, question)
    write = CsvRows() if _wants_csv(request) else JsonRows(_about(question))
    return await send_rows(request, steps, write, limit, edge.stats_turn)


def _about(question: Question) -> Mapping[str, Any]:
    return {
        "since": question.since,
        "until": question.until,
        "resolution_s": HOUR.width_s if question.reads_keys else question.width_s,
    }


def _check_may_see_keys(request: web.Request) -> None:
    """Ask for a management key, also while keys are off; raises RequestError 401 or 403."""
    edge, key = request.app[EDGE], request.get(KEY)
    if key is None and presented_key(request) is not None:
        key = authenticate(request, Access.MANAGEMENT, edge.keys, asks_for_keys=edge.asks_for_keys)
    if key is None or key.kind != "management":
        raise RequestError(
            "statistics of keys need a management key",
            status=403,
            error_type="permission_denied",
            param="key",
        )


def _filters(query: Mapping[str, str], edge: Edge) -> dict[Dimension, frozenset[str]]:
    """Read the filters; a model or a provider may have any name that a request may give it."""
    filters = {name: frozenset(_listed(query[name])) for name in DIMENSIONS if query.get(name)}
    for name, known in _VALUES.items():
        if wrong := filters.get(name, frozenset()).difference(known):
            raise _bad(name, f"should be of {', '.join(known)}, got '{min(wrong)[:40]}'")
    for name, counted_as in _COUNTED_AS.items():
        if name in filters:
            filters[name] = frozenset().union(*(counted_as(called, edge) for called in filters[name]))
    return filters


def _model_ids(name: str, edge: Edge) -> Collection[str]:
    """The ids under which a model, or each of a group, is counted; a name known no more stays what it is."""
    table = edge.router.table
    base, _ = split_variant(name, table)
    if base in group_names(table):
        return {endpoint.model_id for endpoint in group_route(table, base).endpoints}
    route = resolve(table, base)
    return {name if route is None else route.id}


def _provider_names(name: str, edge: Edge) -> Collection[str]:
    """The display names under which a provider is counted that is called by its slug, or in any case."""
    wanted, providers = name.lower(), edge.router.table.providers.values()
    return {p.name for p in providers if wanted in (p.slug.lower(), p.name.lower())} or {name}


_COUNTED_AS: Mapping[Dimension, Callable[[str, Edge], Collection[str]]] = {
    "model": _model_ids,
    "provider": _provider_names,
}


def _of_keys(filters: Mapping[Dimension, frozenset[str]], edge: Edge) -> Mapping[Dimension, frozenset[str]]:
    """Find keys by name, hash or the begin of one; the whole hash of one that is gone still counts."""
    if "key" not in filters or edge.keys is None:
        return filters
    keys = edge.keys
    return {"key": frozenset(n if _HASH.fullmatch(n) else keys.resolve(n).hash for n in filters["key"])}


def _question(query: Mapping[str, str], now: float, filters: Mapping[Dimension, frozenset[str]]) -> Question:
    until = _moment(query, "until", now)
    since = _moment(query, "since", until - _stretch(query))
    if not since < until:
        raise _bad("since", "should be before until")
    if until - since > MAX_STRETCH_S:
        raise _bad("since", f"should be at most {MAX_STRETCH_S / 86_400:.0f} days before until")
    resolution = _one_of(query, "resolution", tuple(GRAINS), None)
    _check_is_kept(resolution, now - since)
    role = _one_of(query, "role", PURPOSES, "main") or "main"
    question = Question(
        since,
        until,
        filters,
        _groups(query),
        _percentiles(query),
        resolution,
        role,
        now - since,
    )
    names = (*question.group_by, *question.filters)
    if question.reads_keys and set(names) != {"key"}:
        raise _bad("key", "does not go together with other filters or groups: keys have no endpoints")
    if question.reads_keys and resolution == "minute":
        raise _bad("resolution", "of keys hours are kept, no minutes")
    if question.reads_keys and role != "main":
        raise _bad("role", "of keys their own requests are kept, no shadows or probes")
    if question.reads_keys and now - since > HOUR.kept_s:
        raise _bad("since", "statistics of keys are kept for 31 days")
    return question


def _check_is_kept(resolution: Resolution | None, age_s: float) -> None:
    """Refuse to answer with nothing where there is nothing any more: rows would look like silence."""
    if resolution == "minute" and age_s > MINUTE.kept_s:
        raise _bad("resolution", "minutes are kept for 48 hours; ask for hour or day")
    if resolution == "hour" and age_s > HOUR.kept_s:
        raise _bad("resolution", "hours are kept for 31 days; ask for day")


def _one_of(
    query: Mapping[str, str], name: str, known: tuple[Word, ...], default: Word | None
) -> Word | None:
    text = query.get(name)
    if not text:
        return default
    found = next((word for word in known if word == text), None)
    if found is None:
        raise _bad(name, f"should be one of {', '.join(known)}")
    return found


def _groups(query: Mapping[str, str]) -> tuple[Dimension, ...]:
    if "group_by" not in query:
        return ("key",) if query.get("key") else ("endpoint",)
    names = _listed(query["group_by"])
    for name in names:
        if name not in DIMENSIONS:
            raise _bad("group_by", f"'{name[:40]}' is not known; known are {', '.join(DIMENSIONS)}")
    return tuple(dimension for dimension in DIMENSIONS if dimension in names)


def _percentiles(query: Mapping[str, str]) -> tuple[float, ...]:
    if not query.get("percentiles"):
        return DEFAULT_PERCENTILES
    out = [_number("percentiles", text.removeprefix("p")) for text in _listed(query["percentiles"])]
    if len(out) > MAX_PERCENTILES or not all(0 <= value <= 100 for value in out):
        raise _bad("percentiles", f"should be at most {MAX_PERCENTILES} numbers from 0 to 100")
    return tuple(out)


def _stretch(query: Mapping[str, str]) -> float:
    """`window`: 90s, 30m, 6h, 31d, or plain seconds."""
    text = query.get("window", "")
    if not text:
        return DEFAULT_WINDOW_S
    unit = UNITS_S.get(text[-1])
    seconds = _number("window", text[:-1] if unit else text) * (unit or 1.0)
    if not 60 <= seconds <= MAX_STRETCH_S:
        raise _bad("window", "should be from 1m to 31d")
    return seconds


def _moment(query: Mapping[str, str], name: str, default: float) -> float:
    return _number(name, query[name]) if query.get(name) else default


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise _bad(name, f"should be a number that is not negative, got '{text[:40]}'")
    return number


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _order(query: Mapping[str, str], question: Question) -> Order | None:
    """`sort`: a figure, or metric.percentile as in `ttft_ms.p99`, with `-` for descending."""
    name = query.get("sort", "")
    if not name:
        return None
    order = Order(tuple(name.removeprefix("-").split(".")), name.startswith("-"))
    if order.path not in sortable(question):
        raise _bad("sort", f"'{name[:40]}' is no figure of the answer")
    return order


def _limit(query: Mapping[str, str]) -> int:
    limit = int(_number("limit", query["limit"])) if query.get("limit") else MAX_ROWS
    if limit > MAX_ROWS:
        raise _bad("limit", f"should be at most {MAX_ROWS}")
    return limit


def _wants_csv(request: web.Request) -> bool:
    asked = request.query.get("format")
    if asked not in (None, "json", "csv"):
        raise _bad("format", "should be json or csv")
    return asked == "csv" or (asked is None and request.headers.get(hdrs.ACCEPT, "").startswith("text/csv"))


def _bad(param: str, message: str) -> RequestError:
    return RequestError(f"{param}: {message}", param=param)
