"""routes.yaml from the file to checked values: every problem at once, each with its path and line.

Names with a colon: a name that is configured as it stands (model or alias) is that model, so tags in the
style of Ollama (`llama3:8b`) work. Only otherwise is a known suffix (`:nitro`, `:free`, ...) a variant in
OpenRouter's sense; see resolve.py.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ionrouter.errors import ConfigError, Problem
from ionrouter.routing import advice, graph, rules, rules_traffic
from ionrouter.routing.document import Catalog
from ionrouter.routing.prices import PriceBook, read_price_book
from ionrouter.routing.spec import CatalogSpec
from ionrouter.routing.validation import validate
from ionrouter.routing.yaml_source import Source, parse_source, read_source


def load(
    path: Path | str,
    env: Mapping[str, str],
    prices: PriceBook | None = None,
    today: datetime.date | None = None,
) -> Catalog:
    """Read and check routes.yaml; raises ConfigError with all errors. Warnings are in the result.

    `env` tells which keys are set; `prices` defaults to the list in the installed litellm, `today` (which
    models are retired?) to the clock's.
    """
    return _load(read_source(Path(path)), env, prices, today)


def loads(
    text: str,
    path: Path | str,
    env: Mapping[str, str],
    prices: PriceBook | None = None,
    today: datetime.date | None = None,
) -> Catalog:
    """The same for text that would stand in the file `path` (relative paths start in its folder)."""
    return _load(parse_source(text, Path(path)), env, prices, today)


def check(
    path: Path | str,
    env: Mapping[str, str],
    prices: PriceBook | None = None,
    today: datetime.date | None = None,
) -> list[Problem]:
    """All errors and warnings of routes.yaml: errors first, then by line."""
    try:
        source = read_source(Path(path))
    except ConfigError as error:
        return list(error.problems)
    catalog, errors = _checked(source, prices)
    day = today or datetime.datetime.now(datetime.UTC).date()
    advise = advice.find_local_problems if errors else advice.find_problems
    return errors + _in_order(advise(catalog, env, day))


def _load(
    source: Source, env: Mapping[str, str], prices: PriceBook | None, today: datetime.date | None
) -> Catalog:
    catalog, errors = _checked(source, prices)
    if errors:
        raise ConfigError(errors)
    day = today or datetime.datetime.now(datetime.UTC).date()
    return replace(catalog, warnings=tuple(_in_order(advice.find_problems(catalog, env, day))))


def _checked(source: Source, prices: PriceBook | None) -> tuple[Catalog, list[Problem]]:
    """The valid part of a file and all of its errors, in the order of its lines."""
    validated = validate(source)
    catalog = Catalog(validated.spec, source, read_price_book() if prices is None else prices)
    errors = [*validated.problems, *graph.find_problems(source), *rules.find_problems(catalog)]
    errors += rules_traffic.find_problems(catalog)
    return catalog, _in_order(errors)


def _in_order(problems: list[Problem]) -> list[Problem]:
    return sorted(dict.fromkeys(problems), key=lambda problem: problem.line or 0)


__all__ = ["Catalog", "CatalogSpec", "check", "load", "loads"]
