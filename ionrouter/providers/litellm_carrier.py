"""Carrier: the tables of recipes by which the front sends what litellm would have sent, without litellm.

A call whose signature is unknown goes the worker's way, and the worker is asked for a proof beside it.
Tables lie in the cache folder, one file an endpoint and litellm version; they hold neither keys nor prompts.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import structlog

from ionrouter.providers.litellm_process import WorkerProcess
from ionrouter.providers.litellm_recipe import BARE, KEY, Recipe, recipe_of
from ionrouter.providers.litellm_shape import signature
from ionrouter.schema import json

FORMAT = 2  # of the files and of signatures: any change of litellm_shape or litellm_recipe needs a new one
MAX_RECIPES = 512  # an endpoint; the oldest leave
MAX_WAITING = 32  # proofs asked for and not there yet
PROOF_S = 60.0
_WORDS = ("carried by the front", "translated without acompletion")
_log = structlog.get_logger(__name__)
# Who sends: the front by a Recipe, the worker's bare translation ("bare"), or only acompletion (None).
Way = Recipe | Literal["bare"] | None
_Table = dict[str, Way]


class Carrier:
    """Looks recipes up and has missing ones made. State: the tables, and proofs under way."""

    def __init__(self, worker: WorkerProcess, folder: Path | None) -> None:
        self._worker = worker
        self._folder = folder
        self._tables: dict[str, _Table] = {}
        self._waiting: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()  # a proof takes some 16 ms of the worker: one at a time
        self._version = _litellm_version()

    def way(self, call: Mapping[str, Any]) -> Way:
        """Return the way proved for calls like this one; None sends it through acompletion."""
        if call["kind"] != "chat" or call["api_key"] is None or self._version is None:
            return None
        name, mark = self._identity(call), signature(call)
        if name not in self._tables:
            self._tables[name] = self._read(name)
        table = self._tables[name]
        if mark not in table:
            self._ask(name, mark, call)
        return table.get(mark)

    async def settled(self) -> None:
        """Wait until every proof asked for so far is there."""
        while self._waiting:
            await asyncio.gather(*self._waiting.values())

    async def close(self) -> None:
        """Drop the proofs under way."""
        tasks = list(self._waiting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ask(self, name: str, mark: str, call: Mapping[str, Any]) -> None:
        if (name, mark) in self._waiting or len(self._waiting) >= MAX_WAITING:
            return
        task = asyncio.create_task(self._prove(name, mark, {**call, "api_key": KEY, "prove": True}))
        self._waiting[name, mark] = task
        task.add_done_callback(lambda _: self._waiting.pop((name, mark), None))

    async def _prove(self, name: str, mark: str, call: dict[str, Any]) -> None:
        try:
            async with self._turn:
                told = await self._told(call)
        except (TimeoutError, ConnectionError) as error:
            _log.info("litellm_proof_missing", model=call["model"], why=str(error))
            return  # asked again by the next call of this kind
        if told is None:
            return
        table = self._tables[name]
        way = table[mark] = _way_of(told["recipe"])
        while len(table) > MAX_RECIPES:
            del table[next(iter(table))]
        _log.info("litellm_proof", model=call["model"], why=told.get("why") or _WORDS[way == BARE])
        await asyncio.to_thread(self._write, name, self._content(table))

    async def _told(self, call: dict[str, Any]) -> dict[str, Any] | None:
        link = await self._worker.link(PROOF_S)
        asked = await link.call(call)
        try:
            async with asyncio.timeout(PROOF_S):
                frame = await asked.next()
        finally:
            asked.close()
        return frame["payload"] if frame["op"] == "whole" else None

    def _identity(self, call: Mapping[str, Any]) -> str:
        parts = [call[n] for n in ("model", "api_base", "headers", "connect_s", "total_s")]
        told = json.dumps([FORMAT, self._version, *parts])
        return hashlib.blake2b(told, digest_size=16).hexdigest()

    def _content(self, table: _Table) -> bytes:
        recipes = {mark: r.as_json() if isinstance(r, Recipe) else r for mark, r in table.items()}
        return json.dumps({"format": FORMAT, "litellm": self._version, "recipes": recipes})

    def _read(self, name: str) -> _Table:
        """Read a table; one that is missing, stale or broken is an empty one, which fills again."""
        if self._folder is None:
            return {}
        path = self._folder / f"{name}.json"
        try:
            told = json.loads(path.read_bytes())
            if (told["format"], told["litellm"]) != (FORMAT, self._version):
                return {}
            return {str(m): _way_of(r) for m, r in told["recipes"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("litellm_table_unreadable", path=str(path), why=str(error))
            return {}

    def _write(self, name: str, content: bytes) -> None:
        """Replace the file in one step; a full disk costs proofs after a restart, nothing else."""
        if self._folder is None:
            return
        path = self._folder / f"{name}.json"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}.part")
            part.touch(mode=0o600)
            part.write_bytes(content)
            part.replace(path)
        except OSError as error:
            _log.warning("litellm_table_unwritten", path=str(path), why=str(error))


def _way_of(told: Any) -> Way:
    """Read a way from JSON; raises ValueError when it is none."""
    return BARE if told == BARE else None if told is None else recipe_of(told)


def _litellm_version() -> str | None:
    try:
        return version("litellm")
    except PackageNotFoundError:
        return None
