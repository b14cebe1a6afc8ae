"""Ion as a provider: chat and completions requests to the engine in this process, answers as chunks.

Turns bodies into prompts and sampling parameters and events into chunks; decides no routes, and every
sequence it starts ends with the iterator that started it.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import structlog

from ionrouter.engine.ion import (
    EngineClosed,
    EngineStuck,
    GenerationFailed,
    GrammarStopped,
    LocalEngine,
    PromptRefused,
    SamplingParams,
)
from ionrouter.engine.loading import EngineSettings
from ionrouter.engine.mailbox import TokenEvent
from ionrouter.engine.pool import EnginePool, NotReady
from ionrouter.engine.tool_format import Thought
from ionrouter.engine.weights import default_cache
from ionrouter.errors import FailureClass, IonrouterError, UpstreamError
from ionrouter.providers.base import UpstreamRequest
from ionrouter.providers.interleave import interleave
from ionrouter.providers.ion_answer import Answer, ChatAnswer, CompletionAnswer
from ionrouter.providers.ion_grammar import FORM_FIELDS, unfollowed
from ionrouter.providers.ion_parameters import (
    MAX_CHOICES,
    Limits,
    Plan,
    invalid,
    parse_parameters,
    require_length,
    unsupported,
)
from ionrouter.providers.ion_prompt import Prompt, prompts_of
from ionrouter.providers.ion_scores import PromptScores, Shared
from ionrouter.providers.ion_sections import Sections
from ionrouter.providers.ion_taken import Taken
from ionrouter.providers.ion_tools import grammar_with_tools, may_think
from ionrouter.routing.table import Endpoint, LocalModel
from ionrouter.schema.events import Chunk, ProviderBatch, flat
from ionrouter.schema.json import dumps
from ionrouter.schema.load import EngineLoad
from ionrouter.schema.usage import Usage

_log = structlog.get_logger(__name__)

# Longer requests are rendered and tokenized in a worker thread (about 1 ms for 16 K characters).
_INLINE_CHARACTERS = 16_384
# So are requests with longer forms of an answer, whose grammars are compiled (2 K characters: 10 ms).
_INLINE_FORM_CHARACTERS = 2_048
# So are the scores of more prompt tokens (up to 20 alternatives of each).
_INLINE_SCORES = 256
# Of the connect deadline: the caller's own timer must not fire first.
_WAIT_SHARE = 0.9
_PROMPTS: Mapping[str, str] = {"chat": "messages", "completions": "prompt"}
_FORMS = ("tools", *FORM_FIELDS)
_PRIORITIES: Mapping[object, int] = {"priority": 1, "fast": 1, "flex": -1}
_FAILURES: Mapping[type[IonrouterError], tuple[FailureClass, int, str | None]] = {
    EngineClosed: (FailureClass.TRANSIENT, 503, None),
    EngineStuck: (FailureClass.TRANSIENT, 503, None),
    NotReady: (FailureClass.TRANSIENT, 503, None),
    GenerationFailed: (FailureClass.TRANSIENT, 500, "numerical_error"),
    PromptRefused: (FailureClass.ENDPOINT_REQUEST, 400, None),
}


class IonProvider:
    """ProviderClient of type `ion`."""

    def __init__(
        self, cache: Path | None = None, *, progress: bool = False, rng: random.Random | None = None
    ) -> None:
        self._pool = EnginePool(
            cache or default_cache(), progress=progress, on_loaded=lambda _settings: self._tell_of_lengths()
        )
        self._rng = rng or random.SystemRandom()
        self._endpoints: tuple[Endpoint, ...] = ()
        self._told: set[tuple[str, int, int]] = set()

    def prepare(self, endpoints: Iterable[Endpoint]) -> None:
        """Start loading the local models of these endpoints in the background; others are retired."""
        self._endpoints = tuple(endpoints)
        self._pool.prepare(_settings(e.local) for e in self._endpoints if e.local is not None)
        self._tell_of_lengths()  # of an engine that stays, the file may now say more

    def _tell_of_lengths(self) -> None:
        """Warn, once, of each endpoint for which routes.yaml promises more than its engine has room for."""
        for endpoint in self._endpoints:
            stated, engines = endpoint.context_length, self.load_of(endpoint).context_length
            if stated is None or engines is None or stated <= engines:
                continue
            if (said := (endpoint.id, stated, engines)) not in self._told:
                self._told.add(said)
                _log.warning(
                    "context_length_capped", endpoint=endpoint.id, stated=stated, context_length=engines
                )

    def load_of(self, endpoint: Endpoint) -> EngineLoad:
        """Say how busy the endpoint's engine is; not ready: "loading" or "failed: ..."."""
        if endpoint.local is None:
            return EngineLoad(ready=False, reason="not a local endpoint")
        return self._pool.load_of(_settings(endpoint.local))

    async def wait_ready(self) -> tuple[str, ...]:
        """Wait until every prepared model has loaded or failed; returns the failures' reasons."""
        return await self._pool.wait_ready()

    async def close(self) -> None:
        await self._pool.close()

    async def stream(self, request: UpstreamRequest) -> AsyncGenerator[Chunk]:
        """Answer one request: role, content, finish, usage. Raises UpstreamError for every fault."""
        async with aclosing(flat(self.batches(request))) as events:  # type: ignore[type-var]
            async for event in events:
                yield cast(Chunk, event)

    async def batches(self, request: UpstreamRequest) -> AsyncGenerator[ProviderBatch]:
        """The same; what the engine said at once comes at once, text alone as runs."""
        try:
            async with self._lease(request.endpoint) as engine:
                prompts, plan = await self._in_thread_if_long(request, engine)
                if request.sent is not None:
                    request.sent.body = _rendered(request, engine, prompts)
                async with aclosing(_answer(engine, prompts, plan, request)) as batches:
                    async for batch in batches:
                        yield batch
        except GrammarStopped as error:
            raise unfollowed(request.body, str(error)) from error
        except tuple(_FAILURES) as error:
            raise _failure(error) from error

    async def count(self, request: UpstreamRequest) -> int:
        """Count the tokens of a request's prompts, by the model's own template and tokenizer."""
        now = datetime.now()
        try:
            async with self._lease(request.endpoint) as engine:
                prompts = await asyncio.to_thread(prompts_of, request.body, request.kind, engine, now)
        except tuple(_FAILURES) as error:
            raise _failure(error) from error
        return sum(len(prompt.ids) for prompt in prompts)

    def _lease(self, endpoint: Endpoint) -> AbstractAsyncContextManager[LocalEngine]:
        if endpoint.local is None:
            raise NotReady(f"endpoint {endpoint.id} names no weights")
        wait_s = endpoint.timeouts.connect_s * _WAIT_SHARE
        return self._pool.lease(_settings(endpoint.local), wait_s=wait_s)

    async def _in_thread_if_long(
        self, request: UpstreamRequest, engine: LocalEngine
    ) -> tuple[list[Prompt], Plan]:
        field = _PROMPTS.get(request.kind)
        if field is None:
            raise unsupported("model", request.kind)
        now = datetime.now()  # what templates print as today's date is the server's local date
        if _is_long(request.body, field):
            return await asyncio.to_thread(self._prepared, request, engine, field, now)
        return self._prepared(request, engine, field, now)

    def _prepared(
        self, request: UpstreamRequest, engine: LocalEngine, field: str, now: datetime
    ) -> tuple[list[Prompt], Plan]:
        limits = _limits(request.endpoint, engine)
        prompts = prompts_of(request.body, request.kind, engine, now)
        for prompt in prompts:
            require_length(len(prompt.ids), limits, field)
        return prompts, _with_form(self._plan(request, prompts, limits), request, engine, prompts)

    def _plan(self, request: UpstreamRequest, prompts: list[Prompt], limits: Limits) -> Plan:
        longest = max(len(prompt.ids) for prompt in prompts)
        plan = parse_parameters(
            request.body, request.kind, limits, num_prompt=longest, random_seed=self._rng.getrandbits(64)
        )
        if len(prompts) * plan.num_choices > MAX_CHOICES:
            raise invalid(
                "n", f"{len(prompts)} prompts with {plan.num_choices} choices are over {MAX_CHOICES}"
            )
        priority = request.priority or _PRIORITIES.get(request.body.get("service_tier"), 0)
        return replace(plan, sampling=replace(plan.sampling, priority=priority, cache_salt=_salt(request)))


def _failure(error: Exception) -> UpstreamError:
    failure, status, code = _FAILURES[type(error)]  # type: ignore[index]
    return UpstreamError(failure, str(error), status=status, code=code)


def _rendered(request: UpstreamRequest, engine: LocalEngine, prompts: list[Prompt]) -> bytes:
    """What the model continues, in the place of the messages that it was made of, and the other fields."""
    rest = {name: value for name, value in request.body.items() if name not in _PROMPTS.values()}
    (text,) = (engine.tokenizer.text_of(prompt.ids) for prompt in prompts)  # of a chat there is one
    return dumps({"model": request.endpoint.model_id, "prompt": text, **rest})


def _with_form(plan: Plan, request: UpstreamRequest, engine: LocalEngine, prompts: list[Prompt]) -> Plan:
    """Let the grammar of a chat know of tools, and of thoughts that come before the answer."""
    if request.kind != "chat" or engine.template is None:
        return plan
    template, may = engine.template, may_think(request.body) is not False
    prompt, own = prompts[0], plan.sampling.grammar  # of a chat there is one
    thought: Thought = "begun" if prompt.is_thinking else "may" if template.thinks and may else "none"
    grammar = grammar_with_tools(request.body, prompt.tools, template.tool_format, own, thought)
    return replace(plan, sampling=replace(plan.sampling, grammar=grammar))


def _settings(local: LocalModel) -> EngineSettings:
    return EngineSettings(
        weights=local.weights,
        sha256=local.sha256,
        numerics=local.numerics,
        device=local.device,
        precision=local.precision,
        head_precision=local.head_precision,
        kv_precision=local.kv_precision,
        kv_memory_bytes=local.kv_memory_bytes,
        max_running=local.max_running,
        max_mixed_step_ratio=local.max_mixed_step_ratio,
        threads=local.threads,
        kv_tier_bytes=local.kv_tier_bytes,
        kv_tier_folder=local.kv_tier_folder,
        unload_when_idle=local.unload == "idle",
        place=local.place,
    )


def _salt(request: UpstreamRequest) -> str:
    """Tell whose cached prefixes this request may see: its own key's, or everybody's, of the same salt."""
    local, salt = request.endpoint.local, request.body.get("cache_salt")
    owner = "" if local is not None and local.prefix_cache == "shared" else request.tenant
    if salt is None:
        return owner
    if not isinstance(salt, str) or not salt:
        raise invalid("cache_salt", "expected a text that is not empty")
    return f"{owner}\0{hashlib.sha256(salt.encode()).hexdigest()}"  # of one length: no other owner's


def _limits(endpoint: Endpoint, engine: LocalEngine) -> Limits:
    length = min(engine.context_length, endpoint.context_length or engine.context_length)
    return Limits(length, engine.vocab_size, endpoint.max_completion_tokens)


def _is_long(body: Mapping[str, Any], field: str) -> bool:
    forms = sum(len(str(body[name])) for name in _FORMS if body.get(name) is not None)
    return forms > _INLINE_FORM_CHARACTERS or len(str(body.get(field))) > _INLINE_CHARACTERS


async def _answer(
    engine: LocalEngine, prompts: list[Prompt], plan: Plan, request: UpstreamRequest
) -> AsyncGenerator[ProviderBatch]:
    """Run every choice of every prompt side by side; choice index = prompt * n + choice."""
    jobs = [(prompt, choice) for prompt in prompts for choice in range(plan.num_choices)]
    answers = [
        answer
        for k, prompt in enumerate(prompts)
        for answer in _writers(request, engine, plan, prompt, k * plan.num_choices)
    ]
    if begun := [chunk for answer in answers for chunk in answer.begin()]:
        yield begun
    completion = cached = 0
    # Several choices take turns; one alone may be read where it is said.
    taken = Taken(answers[0], request.taker) if request.taker is not None and len(jobs) == 1 else None

    def used() -> Usage:
        num_prompt = sum(len(prompt.ids) for prompt in prompts)
        reasoning = sum(answer.num_reasoning_tokens for answer in answers)
        num_out = completion + (taken.num_tokens if taken is not None else 0)
        return Usage(num_prompt, num_out, cached_tokens=cached, reasoning_tokens=reasoning)

    try:
        if plan.sampling.max_tokens > 0 or plan.scores_prompt:
            async with aclosing(_events(engine, jobs, plan, taken)) as events:
                async for i, event in events:
                    request.queue.note(event.queue_s)
                    completion += event.num_tokens
                    cached += event.cached_tokens if jobs[i][1] == 0 else 0
                    if (run := answers[i].run_of(event)) is not None:
                        yield [run]
                    elif len(event.prompt_logprobs) > _INLINE_SCORES:
                        yield await asyncio.to_thread(list, answers[i].continue_with(event))
                    elif chunks := list(answers[i].continue_with(event)):
                        yield chunks
        else:
            end = TokenEvent(finish="length")
            yield [chunk for answer in answers for chunk in answer.continue_with(end)]
    except BaseException:
        if (cut := used()).completion_tokens:  # nothing was said: nothing is owed
            request.told.usage = cut
        raise
    yield [Chunk(usage=used())]


def _events(
    engine: LocalEngine, jobs: list[tuple[Prompt, int]], plan: Plan, taken: Taken | None
) -> AsyncGenerator[tuple[int, TokenEvent]]:
    """Generate for every job; (job, event) as they come. A prompt is scored once, for all of its choices."""
    is_scored_only = plan.sampling.max_tokens == 0
    running = [i for i, (_, choice) in enumerate(jobs) if choice == 0 or not is_scored_only]
    offer = None if taken is None else taken.offer
    streams = [engine.generate(jobs[i][0].ids, _sampling(plan, *jobs[i]), offer) for i in running]
    if not plan.scores_prompt:
        return interleave(streams)
    return _released(interleave(streams), running, Shared(plan.num_choices, is_scored_only))


async def _released(
    coming: AsyncGenerator[tuple[int, TokenEvent]], running: list[int], shared: Shared
) -> AsyncGenerator[tuple[int, TokenEvent]]:
    """Let scored choices wait for the one that their prompt's scores come with."""
    async with aclosing(coming) as events:
        async for i, event in events:
            for released in shared.release(running[i], event):
                yield released


def _sampling(plan: Plan, prompt: Prompt, choice: int) -> SamplingParams:
    sampling = plan.sampling_of(choice)
    return replace(sampling, drops_space=True) if prompt.drops_space else sampling


def _writers(
    request: UpstreamRequest, engine: LocalEngine, plan: Plan, prompt: Prompt, first: int
) -> Iterator[Answer]:
    """Make the answers of one prompt's choices, numbered from `first`."""
    template, tokenizer = engine.template, engine.tokenizer
    scores = PromptScores(tokenizer, prompt, plan) if plan.scores_prompt else None
    for index in range(first, first + plan.num_choices):
        if request.kind == "chat" and template is not None:
            form = template.tool_format if prompt.tools is not None else None
            sections = Sections(form, thinks=template.thinks, is_thinking=prompt.is_thinking)
            yield ChatAnswer(index, tokenizer, plan.wants_logprobs, sections, request.request_id, scores)
        else:
            echo = prompt.text if plan.echo else ""
            yield CompletionAnswer(index, tokenizer, plan.wants_logprobs, echo, scores)
