"""Models that upstreams list themselves (`discover: true`), with a copy on disk for days without a network.

Knows no HTTP: the caller hands in `fetch`. What routes.yaml lists goes before what is found here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ionrouter.routing.atomic_file import replace_file
from ionrouter.routing.document import Catalog
from ionrouter.routing.endpoints import compile_provider
from ionrouter.routing.identity import account_of
from ionrouter.routing.table import Provider
from ionrouter.routing.upstream_list import UpstreamList, parse_models
from ionrouter.schema import json

# Answers the parsed JSON of the provider's GET /models; raises whatever it likes.
Fetch = Callable[[Provider], Awaitable[Any]]

EMPTY = UpstreamList(())


@dataclass(frozen=True, slots=True)
class Listing:
    """What one provider offers. `problem`: why it is old, empty or not kept; `fetched_at` is Unix time."""

    slug: str
    list: UpstreamList = EMPTY
    fetched_at: float | None = None
    is_fresh: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Discovery:
    """The catalog with discovered models, and how each provider's list came about."""

    catalog: Catalog
    listings: tuple[Listing, ...]


def with_cached(catalog: Catalog, folder: Path, known: Mapping[str, Listing] | None = None) -> Discovery:
    """Add the models of `known` lists (by `name_of`), else of the last answers on disk; asks nobody."""
    found = known or {}
    providers = discovering(catalog)
    return _joined(catalog, [found.get(name_of(p)) or _read(p, folder) for p in providers])


async def discover(
    catalog: Catalog, fetch: Fetch, folder: Path, env: Mapping[str, str], now: float
) -> Discovery:
    """Ask every provider with `discover: true`, all at once; on failure use its last answer on disk.

    `folder` is kept for these files; `now` is Unix time. Never raises for an upstream's fault.
    """
    providers = discovering(catalog)
    return _joined(catalog, await asyncio.gather(*(_listing(p, fetch, folder, env, now) for p in providers)))


def discovering(catalog: Catalog) -> list[Provider]:
    """The providers whose lists are read."""
    specs = catalog.spec.providers.items()
    return [compile_provider(slug, spec) for slug, spec in specs if spec.discover]


def _joined(catalog: Catalog, listings: list[Listing]) -> Discovery:
    found = {listing.slug: listing.list.models for listing in listings if listing.list.models}
    return Discovery(replace(catalog, discovered=found), tuple(listings))


async def _listing(
    provider: Provider, fetch: Fetch, folder: Path, env: Mapping[str, str], now: float
) -> Listing:
    unset = [key for key in provider.key_variables if not env.get(key, "").strip()]
    if provider.key_variables and len(unset) == len(provider.key_variables):
        return Listing(provider.slug, problem=f"{unset[0]} is unset")
    try:
        answer = await fetch(provider)
        found = parse_models(answer)
    except Exception as error:  # any upstream's fault; told in `problem`, and the last answer serves on
        stored = _read(provider, folder)
        return replace(stored, problem=f"{type(error).__name__}: {error}")
    problem = None
    try:
        _write(provider, folder, answer, now)
    except OSError as error:  # it serves all the same
        problem = f"the list cannot be kept for days without a network: {error}"
    return Listing(provider.slug, found, now, is_fresh=True, problem=problem)


def name_of(provider: Provider) -> str:
    """Name a provider's list; by its address too, for another server under the same slug has another list."""
    return f"{provider.slug}-{account_of(provider, None)}"


def _file(provider: Provider, folder: Path) -> Path:
    return folder / f"models-{name_of(provider)}.json"


def _write(provider: Provider, folder: Path, answer: Any, now: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stored = {"fetched_at": now, "base_url": provider.base_url, "answer": answer}
    replace_file(_file(provider, folder), json.dumps(stored), mode=0o600)


def _read(provider: Provider, folder: Path) -> Listing:
    path = _file(provider, folder)
    try:
        stored = json.loads(path.read_bytes())
        return Listing(provider.slug, parse_models(stored["answer"]), float(stored["fetched_at"]))
    except FileNotFoundError:
        return Listing(provider.slug, problem="never fetched")
    except (OSError, ValueError, TypeError, KeyError) as error:
        return Listing(provider.slug, problem=f"{path.name} is unreadable: {error}")
