"""The engines of this process: one for each distinct settings, loaded in the background, retired when idle.

Knows loading, waiting, failing and who gives memory to whom; knows no endpoints, requests or prompts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import structlog

from ionrouter.engine.download import SourceUnavailable
from ionrouter.engine.ion import LocalEngine
from ionrouter.engine.kv_memory import Neighbours, TooLittleMemory
from ionrouter.engine.loading import EngineSettings, planned_device, weight_bytes
from ionrouter.engine.sources import LocalPath, parse_source
from ionrouter.errors import ConfigError, IonrouterError
from ionrouter.redact import without_places
from ionrouter.schema.load import EngineLoad

_log = structlog.get_logger(__name__)
_FAILED = "failed: "


class NotReady(IonrouterError):
    """The engine is loading, or its load failed; the message says which and why."""


class _Slot:
    """One engine to be. `settled` is set when the first try ended, well or not."""

    def __init__(self) -> None:
        self.engine: LocalEngine | None = None
        self.reason: str | None = "loading"  # None: unloaded, and loaded (or loading) for the next request
        self.fault: str | None = None  # of a load that failed, the reason with places on disk
        self.settled = asyncio.Event()
        self.decided = asyncio.Event()  # unset, too, while neighbours in use leave no memory for it
        self.task: asyncio.Task[None] | None = None
        self.num_users = 0  # leases
        self.used_at = 0.0
        self.load_s: float | None = None
        self.context_length: int | None = None  # kept while it is unloaded, as load_s is

    @property
    def has_failed(self) -> bool:
        return self.engine is None and (self.reason or "").startswith(_FAILED)

    @property
    def is_cold(self) -> bool:
        return self.engine is None and self.reason is None and self.settled.is_set()

    @property
    def is_coming(self) -> bool:
        return self.engine is None and not self.settled.is_set()

    @property
    def is_in_use(self) -> bool:
        return self.num_users > 0 or (self.engine is not None and not self.engine.is_idle)


class EnginePool:
    """Engines by their settings. All calls on one event loop."""

    def __init__(
        self,
        cache: Path,
        *,
        progress: bool = False,
        retry_wait_s: float = 30.0,
        on_loaded: Callable[[EngineSettings], None] = lambda settings: None,
    ) -> None:
        self._cache = cache
        self._progress = progress
        self._on_loaded = on_loaded
        self._retry_wait_s = retry_wait_s  # doubles up to 16 times this
        self._slots: dict[EngineSettings, _Slot] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self._released = asyncio.Event()  # set for a moment when an engine is left idle, or is gone

    def prepare(self, wanted: Iterable[EngineSettings]) -> None:
        """Start loading what is new; let what is no longer wanted end after its last sequence.

        A load that failed for good is tried again.
        """
        wanted = list(dict.fromkeys(wanted))
        for settings in [known for known in self._slots if known not in wanted]:
            self._retire(self._slots.pop(settings))
        for settings in wanted:
            slot = self._slots.get(settings)
            if slot is None or (slot.engine is None and slot.reason and _is_over(slot.task)):
                slot = self._slots[settings] = _Slot()
                slot.task = asyncio.create_task(self._load(settings, slot))

    def load_of(self, settings: EngineSettings) -> EngineLoad:
        """Say how busy an engine is, or why there is none."""
        slot = self._slots.get(settings)
        if slot is None:
            return EngineLoad(ready=False, reason="not loaded")
        if slot.engine is None:
            return EngineLoad(
                ready=False,
                reason=slot.reason,
                fault=slot.fault,
                has_failed=slot.has_failed,
                context_length=slot.context_length,
                load_s=slot.load_s,
            )
        return slot.engine.load()

    async def engine(self, settings: EngineSettings, *, wait_s: float) -> LocalEngine:
        """Return the engine, waiting at most `wait_s` for a load; raises NotReady."""
        async with self.lease(settings, wait_s=wait_s) as engine:
            return engine

    @asynccontextmanager
    async def lease(self, settings: EngineSettings, *, wait_s: float) -> AsyncIterator[LocalEngine]:
        """Give the engine, which stays loaded as long as it is held; as `engine` otherwise."""
        slot = self._slots.get(settings)
        if slot is None:
            raise NotReady("not loaded")
        if slot.is_cold:
            slot.settled, slot.decided = asyncio.Event(), asyncio.Event()
            # Who comes meanwhile waits as well, unless it will be in vain.
            slot.reason = None if slot.load_s is not None and slot.load_s < wait_s else "loading"
            slot.task = asyncio.create_task(self._load(settings, slot))
        slot.num_users += 1
        try:
            yield await _loaded(slot, wait_s)
        finally:
            slot.num_users -= 1
            slot.used_at = time.monotonic()
            if not slot.is_in_use:
                self._tell_released()

    async def wait_ready(self) -> tuple[str, ...]:
        """Wait until every load has succeeded or failed once; returns the failures' reasons."""
        slots = list(self._slots.values())
        for slot in slots:
            await slot.settled.wait()
        failed = (slot.fault or slot.reason for slot in slots if slot.engine is None)
        return tuple(reason for reason in failed if reason is not None)

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

    async def _load(self, settings: EngineSettings, slot: _Slot) -> None:
        """Load, again and again while the cause may pass: a server started offline recovers."""
        wait_s = self._retry_wait_s
        while slot.engine is None:
            try:
                slot.engine = await LocalEngine.open(
                    settings,
                    cache=self._cache,
                    progress=self._progress,
                    neighbours=partial(self._neighbours, settings),
                )
            except Exception as error:
                if isinstance(error, TooLittleMemory) and await self._make_room():
                    continue
                if not isinstance(error, ConfigError):
                    _log.error("engine_crashed", weights=settings.weights, exc_info=True)
                slot.fault = f"{_FAILED}{error}"
                slot.reason = without_places(slot.fault, _places(settings, self._cache))
                _log.error("engine_load_failed", weights=settings.weights, error=str(error))
                slot.settled.set()
                if isinstance(error, TooLittleMemory) and self._may_pass(error):
                    await self._released_within(wait_s)
                else:
                    slot.decided.set()
                    if not self._may_pass(error):
                        return
                    await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, 16 * self._retry_wait_s)
        slot.fault = None
        slot.settled.set()
        slot.decided.set()
        slot.used_at = time.monotonic()
        slot.context_length = slot.engine.context_length
        self._on_loaded(settings)

    def _may_pass(self, error: Exception) -> bool:
        if isinstance(error, TooLittleMemory):  # a model in use now may be idle later
            return any(settings.unload_when_idle for settings in self._slots)
        return isinstance(error, SourceUnavailable)

    def _neighbours(self, settings: EngineSettings) -> Neighbours:
        """Describe the other engines that share the device's memory; called in a loader's thread."""
        device = planned_device(settings)
        others = [
            (other, slot)
            for other, slot in list(self._slots.items())
            if other != settings and planned_device(other) == device
        ]
        sharing = [
            slot
            for other, slot in others
            if other.kv_memory_bytes is None and (slot.engine is not None or slot.is_coming)
        ]
        coming = [other for other, slot in others if slot.is_coming]
        return Neighbours(
            num_sharing=len(sharing),
            kv_bytes=sum(slot.engine.kv_bytes for slot in sharing if slot.engine is not None),
            coming_bytes=sum(
                weight_bytes(other, self._cache) + (other.kv_memory_bytes or 0) for other in coming
            ),
        )

    async def _make_room(self) -> bool:
        """Unload the idle engine unused for longest, of those that may be; False if there is none."""
        idle = [
            (slot.used_at, settings.weights, slot)
            for settings, slot in self._slots.items()
            if settings.unload_when_idle and slot.engine is not None and not slot.is_in_use
        ]
        if not idle:
            return False
        _, weights, slot = min(idle, key=lambda found: found[0])
        engine, slot.engine, slot.reason = slot.engine, None, None
        assert engine is not None
        slot.load_s = engine.load().load_s
        _log.info("engine_unloaded", weights=weights, weight_bytes=engine.weight_bytes)
        await engine.close()
        return True

    async def _released_within(self, wait_s: float) -> None:
        """Wait for memory that a neighbour may leave, and take it before its next request comes."""
        try:
            async with asyncio.timeout(wait_s):
                await self._released.wait()
        except TimeoutError:
            return
        await self._make_room()

    def _tell_released(self) -> None:
        self._released.set()  # wakes those who wait now
        self._released.clear()

    async def _end(self, engine: LocalEngine) -> None:
        try:
            await engine.wait_idle()
        finally:
            await engine.close()
            self._tell_released()

    def _retire(self, slot: _Slot) -> None:
        if slot.task is not None:
            slot.task.cancel()
        slot.reason = "retired"
        slot.settled.set()
        slot.decided.set()
        if slot.engine is not None:
            task = asyncio.create_task(self._end(slot.engine))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)


def _places(settings: EngineSettings, cache: Path) -> Iterator[str]:
    """Paths that messages of a load may hold."""
    yield str(cache)
    if settings.kv_tier_folder:
        yield settings.kv_tier_folder
    if isinstance(source := parse_source(settings.weights), LocalPath):
        yield settings.weights
        yield str(source.path.resolve())


async def _loaded(slot: _Slot, wait_s: float) -> LocalEngine:
    if slot.engine is None:
        with suppress(TimeoutError):
            await asyncio.wait_for(slot.decided.wait(), wait_s)
    if slot.engine is None:
        raise NotReady(slot.reason or "loading")
    return slot.engine


def _is_over(task: asyncio.Task[None] | None) -> bool:
    return task is not None and task.done()
