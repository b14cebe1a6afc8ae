"""The engines of this process: one for each distinct settings, loaded in the background, retired when idle.

Knows loading, waiting and failing; knows no endpoints, requests or prompts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import structlog

from ionrouter.engine.download import SourceUnavailable
from ionrouter.engine.ion import LocalEngine
from ionrouter.engine.loading import EngineSettings
from ionrouter.errors import ConfigError, IonrouterError
from ionrouter.schema.load import EngineLoad

_log = structlog.get_logger(__name__)


class NotReady(IonrouterError):
    """The engine is loading, or its load failed; the message says which and why."""


class _Slot:
    """One engine to be. `settled` is set when the first try ended, well or not."""

    def __init__(self) -> None:
        self.engine: LocalEngine | None = None
        self.reason = "loading"
        self.settled = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class EnginePool:
    """Engines by their settings. All calls on one event loop."""

    def __init__(self, cache: Path, *, progress: bool = False, retry_wait_s: float = 30.0) -> None:
        self._cache = cache
        self._progress = progress
        self._retry_wait_s = retry_wait_s  # doubles up to 16 times this
        self._slots: dict[EngineSettings, _Slot] = {}
        self._retiring: set[asyncio.Task[None]] = set()

    def prepare(self, wanted: Iterable[EngineSettings]) -> None:
        """Start loading what is new; let what is no longer wanted end after its last sequence.

        A load that failed for good is tried again.
        """
        wanted = list(dict.fromkeys(wanted))
        for settings in [known for known in self._slots if known not in wanted]:
            self._retire(self._slots.pop(settings))
        for settings in wanted:
            slot = self._slots.get(settings)
            if slot is None or (slot.engine is None and slot.task is not None and slot.task.done()):
                slot = self._slots[settings] = _Slot()
                slot.task = asyncio.create_task(self._load(settings, slot, len(wanted)))

    def load_of(self, settings: EngineSettings) -> EngineLoad:
        """Say how busy an engine is, or why there is none."""
        slot = self._slots.get(settings)
        if slot is None:
            return EngineLoad(ready=False, reason="not loaded")
        if slot.engine is None:
            return EngineLoad(ready=False, reason=slot.reason)
        return slot.engine.load()

    async def engine(self, settings: EngineSettings, *, wait_s: float) -> LocalEngine:
        """Return the engine, waiting at most `wait_s` for a first load; raises NotReady."""
        slot = self._slots.get(settings)
        if slot is None:
            raise NotReady("not loaded")
        if slot.engine is None and not slot.settled.is_set():
            try:
                await asyncio.wait_for(slot.settled.wait(), wait_s)
            except TimeoutError:
                raise NotReady(slot.reason) from None
        if slot.engine is None:
            raise NotReady(slot.reason)
        return slot.engine

    async def wait_ready(self) -> tuple[str, ...]:
        """Wait until every load has succeeded or failed once; returns the failures' reasons."""
        slots = list(self._slots.values())
        for slot in slots:
            await slot.settled.wait()
        return tuple(slot.reason for slot in slots if slot.engine is None)

    async def close(self) -> None:
        """End every engine; sequences still running end with an error."""
        slots, self._slots = list(self._slots.values()), {}
        tasks = [slot.task for slot in slots if slot.task is not None] + list(self._retiring)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for slot in slots:
            if slot.engine is not None:
                await slot.engine.close()

    async def _load(self, settings: EngineSettings, slot: _Slot, num_engines: int) -> None:
        """Load, again and again while the source cannot be reached: a server started offline recovers."""
        wait_s = self._retry_wait_s
        while slot.engine is None:
            try:
                slot.engine = await LocalEngine.open(
                    settings, cache=self._cache, progress=self._progress, num_engines=num_engines
                )
            except Exception as error:
                if not isinstance(error, ConfigError):
                    _log.error("engine_crashed", weights=settings.weights, exc_info=True)
                slot.reason = f"failed: {error}"
                _log.error("engine_load_failed", weights=settings.weights, error=str(error))
                slot.settled.set()
                if not isinstance(error, SourceUnavailable):
                    return
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, 16 * self._retry_wait_s)
        slot.settled.set()

    def _retire(self, slot: _Slot) -> None:
        if slot.task is not None:
            slot.task.cancel()
        slot.reason = "retired"
        slot.settled.set()
        if slot.engine is not None:
            task = asyncio.create_task(_close_when_idle(slot.engine))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)


async def _close_when_idle(engine: LocalEngine) -> None:
    try:
        await engine.wait_idle()
    finally:
        await engine.close()
