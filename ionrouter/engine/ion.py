"""LocalEngine: one loaded model as asyncio sees it. Ids in, events out.

Owns the C++ engine and its wake-up descriptor; every sequence it starts it also ends. Knows no HTTP,
no routes and no OpenAI fields.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from ionrouter.engine.daemon import in_daemon_thread
from ionrouter.engine.grammar import Grammar, GrammarRefused
from ionrouter.engine.grammar_keeper import CANNOT_GO_ON, GrammarKeeper, GrammarVocabulary
from ionrouter.engine.kv_memory import BLOCK_TOKENS, Neighbours
from ionrouter.engine.loading import EngineSettings, LoadedModel
from ionrouter.engine.mailbox import Mailbox, Offer, TokenEvent, event_of
from ionrouter.engine.speed import Speed
from ionrouter.engine.starting import start_engine
from ionrouter.errors import IonrouterError
from ionrouter.schema.load import EngineLoad

_log = structlog.get_logger(__name__)

# Work waits and no step has ended for this long: the engine hangs, and gets no new work. The longest step, a
# prefill of 512 tokens of an 8B model on two cores, stays below.
_MAX_SILENCE_S = 60.0
_MAX_WAIT_S = 90.0  # after so much silence those who wait are told; looked at every eighth of it


class EngineClosed(IonrouterError):
    """The engine is shutting down; what it was asked to do will not happen."""


class EngineStuck(IonrouterError):
    """The engine hangs, or a fault of its own ended it: nothing will come of it."""


class GenerationFailed(IonrouterError):
    """One sequence ended by a fault of ours (NaN logits, a failed step); others are unharmed."""


class GrammarStopped(IonrouterError):
    """A grammar that this model cannot start, or in which nothing can follow or too much."""


class PromptRefused(IonrouterError):
    """The engine says that this prompt with these parameters can never run."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to continue a prompt; names and neutral values as in `_ion.Engine.submit`."""

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    stop: tuple[bytes, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int = -1
    priority: int = 0
    cache_salt: str = ""
    top_a: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: Grammar | None = None
    drops_space: bool = False  # one space at the start of the answer is not text
    prompt_logprobs: int = -1  # from 0 on prompt tokens are reported on, and max_tokens may be 0

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `_ion.Engine.submit`, all but the grammar."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "grammar"}
        return {**named, "logit_bias": dict(self.logit_bias)}


class LocalEngine:
    """A model that runs. Made by `open`, on the event loop that will read from it."""

    def __init__(
        self,
        loaded: LoadedModel,
        engine: Any,
        settings: EngineSettings,
        load_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.tokenizer = loaded.tokenizer
        self.template = loaded.template
        self.vocab_size = int(loaded.config["vocab_size"])
        self.context_length = int(engine.context_length)  # prompt and answer together
        self._settings = settings
        self._engine = engine
        self.weight_bytes = int(loaded.model.weight_bytes)
        self.streamed_bytes = int(loaded.model.streamed_bytes)  # of the weights, that every step reads
        self.kv_token_bytes = int(loaded.config["kv_block_bytes"]) // BLOCK_TOKENS
        self.device = loaded.device.kind
        self._load_s = load_s
        self._clock = clock
        self._speed = Speed(clock)
        self._mailboxes: dict[int, Mailbox] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closed = False
        self._watch: asyncio.TimerHandle | None = None  # set while somebody waits
        self._keeper: asyncio.Task[GrammarKeeper] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(engine.event_fd, self._deliver)

    @classmethod
    async def open(
        cls,
        settings: EngineSettings,
        *,
        cache: Path,
        progress: bool = False,
        neighbours: Callable[[], Neighbours] = Neighbours,
        clock: Callable[[], float] = time.monotonic,
    ) -> LocalEngine:
        """Fetch, load and start beside `neighbours`. Raises ConfigError; TooLittleMemory may pass."""
        started_at = clock()

        loaded, engine = await in_daemon_thread(
            partial(start_engine, settings, cache=cache, progress=progress, neighbours=neighbours), "ion-load"
        )
        load_s = clock() - started_at
        local = cls(loaded, engine, settings, load_s, clock)
        _log.info(
            "engine_started",
            weights=settings.weights,
            numerics=settings.numerics,
            device=loaded.device.kind,
            device_name=loaded.device.name,
            precision=loaded.precision,
            head_precision=loaded.head_precision,
            kv_precision=loaded.kv_precision,
            why_not_cuda=loaded.device.why_not_cuda,
            weight_bytes=loaded.model.weight_bytes,
            context_length=local.context_length,
            blocks=int(engine.stats()["blocks_total"]),
            load_s=round(load_s, 3),
        )
        return local

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, offer: Offer | None = None
    ) -> AsyncIterator[TokenEvent]:
        """Yield the answer's events; the last has `finish` stop or length. Closing it early aborts.

        What `offer` takes while the next one is waited for is not yielded.
        Raises PromptRefused before any work; GrammarStopped, GenerationFailed, EngineStuck or EngineClosed if
        it ends badly.
        """
        sequence = await self._submit(prompt_ids, params)
        mailbox = self._mailboxes[sequence] = Mailbox(offer)
        self._idle.clear()
        self._keep_watch()
        self._speed.start(sequence)
        event = TokenEvent()
        try:
            while event.finish is None:
                event = await mailbox.take()
                self._raise_for(event)
                yield event
        finally:
            self._forget(sequence)
            if event.finish is None:
                self._engine.abort(sequence)

    async def _submit(self, prompt_ids: Sequence[int], params: SamplingParams) -> int:
        following, keeper = None, None
        if params.grammar is not None:
            keeper = await self._grammars()
            try:
                following = await asyncio.to_thread(keeper.vocabulary.start, params.grammar)
            except GrammarRefused as error:
                raise GrammarStopped(str(error)) from error
        if self._is_closed:
            raise EngineClosed("the engine is shutting down")
        try:
            if keeper is not None and following is not None:
                return keeper.submit(prompt_ids, following, **params.arguments())
            sequence: int = self._engine.submit(list(prompt_ids), **params.arguments())
        except ValueError as error:
            raise PromptRefused(str(error)) from error
        except RuntimeError as error:  # it takes no more work
            raise EngineStuck(str(error)) from error
        return sequence

    def _keep_watch(self) -> None:
        if self._watch is None and not self._is_closed:
            self._watch = self._loop.call_later(_MAX_WAIT_S / 8, self._look)

    def _look(self) -> None:
        """See whether the engine moves; who waits for one that hangs is told, and its sequence aborted."""
        self._watch = None
        if not self._mailboxes:
            return
        silent_s = self._engine.stats()["unresponsive_s"]
        if silent_s > _MAX_WAIT_S:
            _log.error(
                "engine_hung",
                weights=self._settings.weights,
                silent_s=round(silent_s, 1),
                requests=len(self._mailboxes),
            )
            for mailbox in self._mailboxes.values():
                mailbox.fail(EngineStuck(f"the engine hangs: no step has ended for {silent_s:.0f} s"))
        self._keep_watch()

    async def _grammars(self) -> GrammarKeeper:
        """Start what keeps the grammars with the first request that has one."""
        if self._keeper is None:

            async def start() -> GrammarKeeper:
                vocabulary = await asyncio.to_thread(GrammarVocabulary, self.tokenizer, self.vocab_size)
                return GrammarKeeper(self._engine, vocabulary)

            self._keeper = asyncio.create_task(start())
        return await asyncio.shield(self._keeper)

    def _forget(self, sequence: int) -> None:
        del self._mailboxes[sequence]
        self._speed.end(sequence)
        if not self._mailboxes:
            self._idle.set()

    def load(self) -> EngineLoad:
        """Say how busy the engine is, for the router's estimate of the wait."""
        stats = self._engine.stats()
        decode = stats.get("decode_rate") or 0.0
        running = int(stats["running"])
        reason = self._why_not_ready(stats)
        return EngineLoad(
            ready=reason is None,
            reason=reason,
            has_failed=bool(stats.get("is_broken")),
            context_length=self.context_length,
            waiting_tokens=int(stats["waiting_tokens"]),
            running=running,
            waiting=int(stats["waiting"]),
            max_running=self._settings.max_running,
            blocks_free=int(stats["blocks_free"]) + int(stats.get("blocks_cached", 0)),
            blocks_total=int(stats["blocks_total"]),
            prefill_rate=stats.get("prefill_rate") or None,
            decode_rate=self._speed.decode_rate or (decode / max(running, 1) or None),
            load_s=self._load_s,
            device=self.device,
            stats=stats,
        )

    def _why_not_ready(self, stats: dict[str, float]) -> str | None:
        if self._is_closed:
            return "closed"
        if stats.get("is_broken"):
            return "broken down; it comes back with a restart"
        silent_s = stats["unresponsive_s"]
        return f"unresponsive for {silent_s:.0f} s" if silent_s > _MAX_SILENCE_S else None

    @property
    def kv_bytes(self) -> int:
        """What the first tier of its KV cache takes."""
        stats = self._engine.stats()
        return int(stats["blocks_total"] * stats["block_bytes"])

    def stats(self) -> dict[str, float]:
        """The C++ engine's own gauges and counters."""
        found: dict[str, float] = self._engine.stats()
        return found

    @property
    def is_idle(self) -> bool:
        """Whether no sequence is being read."""
        return self._idle.is_set()

    async def wait_idle(self) -> None:
        """Wait until no sequence is being read."""
        await self._idle.wait()

    async def close(self) -> None:
        """End every sequence, stop the thread, free the memory. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._watch is not None:
            self._watch.cancel()
        await asyncio.to_thread(self._engine.close)
        if self._keeper is not None:
            keeper = await self._keeper
            await asyncio.to_thread(keeper.close)
        self._deliver()
        self._loop.remove_reader(self._engine.event_fd)

    def _deliver(self) -> None:
        now = self._clock()
        for sequence, *said in self._engine.drain():
            event = event_of(*said)
            self._speed.record(sequence, event, now)
            mailbox = self._mailboxes.get(sequence)
            if mailbox is not None:  # else: its reader has left
                mailbox.put(event)

    def _raise_for(self, event: TokenEvent) -> None:
        if event.finish == "aborted":
            raise EngineClosed("the engine is shutting down")
        if event.finish == "error" and event.error.startswith(CANNOT_GO_ON):
            raise GrammarStopped(event.error)
        if event.finish == "error":
            fault = EngineStuck if self._engine.stats().get("is_broken") else GenerationFailed
            raise fault(event.error or "the engine failed on this sequence")
