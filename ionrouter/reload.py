"""Takes a changed routes.yaml into a running router: read, check, compile, swap; a bad file changes nothing.

Knows the file, the table and the upstreams' lists; what else follows a swap is the `on_swap` it is given.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from ionrouter.errors import ConfigError, RequestError
from ionrouter.router import Router
from ionrouter.routing import catalog, discovery, graph
from ionrouter.routing.document import Catalog
from ionrouter.routing.table import RoutingTable
from ionrouter.routing.yaml_source import first_bytes

_log = structlog.get_logger(__name__)

POLL_S = 1.0
SETTLE_S = 0.1  # a file is taken when it reads the same twice, so far apart: editors save in pieces
DISCOVER_EVERY_S = 3600.0
MAX_LOGGED = 50  # a first discovery brings hundreds of models


def load_table(path: Path, env: Mapping[str, str], lists: Path) -> RoutingTable:
    """Read and compile routes.yaml with what upstreams listed last; raises ConfigError with all problems."""
    loaded = catalog.load(path, env)
    for warning in loaded.warnings:
        _log.warning("routes_warned", problem=str(warning))
    return graph.compile_table(discovery.with_cached(loaded, lists).catalog, env)


@dataclass(slots=True)
class Reloader:
    """The file's watcher. `problem` is why the newest version of it is not in use."""

    path: Path
    env: Mapping[str, str]
    lists: Path  # folder of what upstreams listed
    router: Router
    fetch: discovery.Fetch
    on_swap: Callable[[RoutingTable], None]
    seen: str | None  # digest of the file as it was just before it was read last
    loaded_at: float = field(default_factory=time.time)
    problem: str | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _is_asked: bool = False  # for a reload that has not begun to read
    _in_use: Catalog | None = None  # the file as the table has it; None: as it was at the start
    _listings: dict[str, discovery.Listing] = field(default_factory=dict)  # what upstreams answered last

    async def reload(self) -> Mapping[str, Any]:
        """Load and swap; raises RequestError 400 with every problem of a bad file, which changes nothing.

        What the file says is in use before upstreams are asked for their lists: one that does not answer
        holds up no change, nor the next reload.
        """
        try:
            return await self._reloaded()
        except ConfigError as error:
            self._keep_old(error)
            raise RequestError(
                f"{self.path.name} has errors; the routes in use stay: {error}",
                metadata={"problems": [str(problem) for problem in error.problems]},
            ) from error
        except Exception as error:
            self.problem = (
                f"{self.path.name} met a fault of ours ({type(error).__name__}), which the log has; "
                "the routes in use stay"
            )
            raise

    async def _reloaded(self) -> Mapping[str, Any]:
        async with self._lock:
            self._is_asked = False  # what is asked for from here on may be of a newer file
            loaded = await self._load()
            if not discovery.discovering(loaded):
                return self._told(await self._take(loaded))
            try:
                changes = await self._take(loaded)
            except ConfigError:  # perhaps a list that is still to come has the model that is missing
                changes = None
        await self._ask(loaded)
        async with self._lock:  # meanwhile the file may have been mended, or another taken
            if changes is None:
                return self._told(await self._take(await self._load()))
            return self._told([*changes, *await self._take(self._in_use or loaded, again=True)])

    async def watch(self) -> None:
        """Reload whenever the file changes and holds still; runs until cancelled."""
        async with asyncio.TaskGroup() as reloads:  # which may wait for upstreams, while we go on
            while True:
                await asyncio.sleep(POLL_S)
                digest = await asyncio.to_thread(digest_of, self.path)
                if digest == self.seen:
                    continue
                await asyncio.sleep(SETTLE_S)
                if await asyncio.to_thread(digest_of, self.path) != digest:
                    continue  # still being written, or between two names
                self.seen = digest
                if digest is None:
                    self._miss()
                else:
                    reloads.create_task(self.try_reload(), name="reload")

    async def try_reload(self) -> None:
        """Reload for nobody in particular: what is wrong is in the log and in /health.

        One that has not read the file yet serves all who ask meanwhile: a hundred signals are two reloads.
        """
        if self._is_asked:
            return
        self._is_asked = True
        try:
            await self.reload()
        except RequestError:
            pass  # told by _keep_old
        except Exception:
            _log.exception("routes_reload_crashed", path=str(self.path))
        finally:
            self._is_asked = False

    async def discover(self) -> None:
        """Ask upstreams for their lists now and every hour; runs until cancelled."""
        while True:
            if any(provider.discover for provider in self.router.table.providers.values()):
                await self.try_reload()
            await asyncio.sleep(DISCOVER_EVERY_S)

    async def _load(self) -> Catalog:
        digest = await asyncio.to_thread(digest_of, self.path)
        if digest is not None:  # that it is gone is the watcher's to tell
            self.seen = digest
        elif await asyncio.to_thread(_is_something_else, self.path):
            raise ConfigError(f"{self.path} is no file")
        return await asyncio.to_thread(catalog.load, self.path, self.env)

    async def _ask(self, loaded: Catalog) -> None:
        """Ask upstreams for their lists, and keep them."""
        found = await discovery.discover(loaded, self.fetch, self.lists, self.env, time.time())
        names = {provider.slug: discovery.name_of(provider) for provider in discovery.discovering(loaded)}
        for listing in found.listings:
            self._listings[names[listing.slug]] = listing
            if listing.problem:
                _log.warning("models_not_listed", provider=listing.slug, problem=listing.problem)

    def _compile(self, loaded: Catalog) -> RoutingTable:
        """Compile with the lists that are known; raises ConfigError."""
        found = discovery.with_cached(loaded, self.lists, self._listings)
        return graph.compile_table(found.catalog, self.env)

    async def _take(self, loaded: Catalog, *, again: bool = False) -> Sequence[str]:
        """Compile it and swap; what is taken again only if lists have changed it. Raises ConfigError."""
        table = await asyncio.to_thread(self._compile, loaded)
        if again and table.version == self.router.table.version:
            return ()
        changes = await asyncio.to_thread(_changes, self.router.table, table)
        self.router.table, self._in_use = table, loaded
        self.loaded_at, self.problem = time.time(), None
        self.on_swap(table)
        _log.info(
            "routes_reloaded", version=table.version, num_changes=len(changes), changes=changes[:MAX_LOGGED]
        )
        return changes

    def _told(self, changes: Sequence[str]) -> Mapping[str, Any]:
        return {"version": self.router.table.version, "changed": bool(changes), "changes": changes}

    def _miss(self) -> None:
        self.problem = f"{self.path.name} is gone or cannot be read; the routes in use stay"
        _log.warning("routes_missing", path=str(self.path))

    def _keep_old(self, error: ConfigError) -> None:
        self.problem = str(error)
        _log.error("routes_refused", path=str(self.path), problems=[str(p) for p in error.problems])


def _changes(old: RoutingTable, new: RoutingTable) -> Sequence[str]:
    return graph.diff(old, new).lines()


def digest_of(path: Path) -> str | None:
    """Hash the file; None while there is none to read: a FIFO would be waited for, and nobody told.

    Taken before the file is read, never after: what changes in between is read once more, not never.
    """
    try:
        return hashlib.sha256(first_bytes(path)).hexdigest() if path.is_file() else None
    except OSError:
        return None


def _is_something_else(path: Path) -> bool:
    return path.exists() and not path.is_file()
