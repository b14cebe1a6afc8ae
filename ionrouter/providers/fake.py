"""A provider that follows a script: for tests and demonstrations without any upstream. Opens no connection.

The script of an endpoint is `provider.options`, then `endpoint.options` over it, then the caller's
`provider.options` for it. `scripts` (a list of such scripts) gives one per call, the last one for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from pydantic import ValidationError

from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.providers.base import UpstreamRequest
from ionrouter.routing.spec_options import FakeOptions
from ionrouter.schema.embeddings import num_inputs
from ionrouter.schema.events import Choice, ChoiceDelta, Chunk, Complete, FinishReason, ProviderEvent
from ionrouter.schema.request import WHOLE_KINDS
from ionrouter.schema.usage import Usage

FOREVER_S = 3600.0
MAX_COUNTED = 16_384  # endpoints whose calls are counted
TICK_S = 0.002  # a loop's timer may ring a millisecond early
# What a status means when the script names no failure class.
_CLASSES = {
    400: FailureClass.REQUEST, 413: FailureClass.REQUEST, 422: FailureClass.REQUEST,
    401: FailureClass.DOMAIN, 402: FailureClass.DOMAIN, 403: FailureClass.DOMAIN, 404: FailureClass.DOMAIN,
    429: FailureClass.CAPACITY,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Script:
    """What a fake endpoint does. Seconds; "token" means one piece of text, one chunk."""

    text: str | None = None  # None: as many words as `tokens` says
    tokens: int = 5
    reasoning: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    finish_reason: FinishReason | None = "stop"
    role_first: bool = True  # a chunk with the role alone, as most upstreams send
    queue_s: float | None = None  # in a queue of its own, before anything else; None: it has none
    delay_s: float = 0.0  # before the first token
    gap_s: float = 0.0  # between tokens
    status: int | None = None  # fail with this status ...
    failure: str | None = None  # ... or this failure class (F1 "transient", F5 "endpoint_request", ...)
    message: str = "scripted failure"
    code: str | None = None
    error_type: str | None = None
    param: str | None = None
    retry_after_s: float | None = None
    cut_after: int | None = None  # fail after that many tokens instead of before the first
    hang_after: int | None = None  # say nothing more after that many tokens
    refuse_connection: bool = False
    raises: str | None = None  # break the contract: a ValueError with this text
    close_raises: bool = False
    usage: Mapping[str, int] | bool = True  # False: report none
    fail_times: int | None = None  # only the first so many calls fail

    @property
    def fails(self) -> bool:
        """Whether it ends in a failure."""
        return self.status is not None or self.failure is not None or self.cut_after is not None

    def pieces(self) -> list[str]:
        """The text, token by token."""
        if self.text is not None:
            words = self.text.split(" ")
            return [word if i == 0 else " " + word for i, word in enumerate(words)] if self.text else []
        return [f"word{i}" if i == 0 else f" word{i}" for i in range(self.tokens)]

    def error(self, provider: str) -> UpstreamError:
        """The scripted failure."""
        named = FailureClass(self.failure) if self.failure else None
        failure = named or _CLASSES.get(self.status or 0, FailureClass.TRANSIENT)
        return UpstreamError(
            failure,
            self.message,
            status=self.status,
            code=self.code,
            error_type=self.error_type,
            param=self.param,
            provider=provider,
            retry_after_s=self.retry_after_s,
        )


_FIELDS = frozenset(f.name for f in fields(Script))


def script_of(options: Mapping[str, Any]) -> Script:
    """Read a script; ValueError names an unknown key."""
    unknown = sorted(set(options) - _FIELDS)
    if unknown:
        raise ValueError(
            f"unknown key {unknown[0]!r} in a fake script, known are {', '.join(sorted(_FIELDS))}"
        )
    given = dict(options)
    if "tool_calls" in given:
        given["tool_calls"] = tuple(given["tool_calls"])
    return Script(**given)


@dataclass(slots=True)
class FakeClient:
    """Plays scripts. `calls` are the requests it got, `num_open` the streams not closed yet.

    A server leaves `keeps_calls` out: it would hold every request that it ever got.
    """

    calls: list[UpstreamRequest] = field(default_factory=list)
    keeps_calls: bool = True
    num_open: int = 0
    _num_calls: dict[str, int] = field(default_factory=dict)  # by endpoint id

    async def stream(self, request: UpstreamRequest) -> AsyncIterator[ProviderEvent]:
        """Play the endpoint's script once."""
        script = self._next_script(request)
        if self.keeps_calls:
            self.calls.append(request)
        self.num_open += 1
        try:
            async for event in _played(script, request):
                yield event
        finally:
            self.num_open -= 1
            if script.close_raises:
                raise OSError("scripted failure to close")

    async def close(self) -> None:
        """Nothing is held."""

    def num_calls(self, endpoint_id: str) -> int:
        """Count the calls an endpoint got."""
        return self._num_calls.get(endpoint_id, 0)

    def _next_script(self, request: UpstreamRequest) -> Script:
        endpoint = request.endpoint
        if request.options:  # those of the file were checked with it
            _require_options(request.options, endpoint.provider.slug)
        options = {**endpoint.provider.options, **endpoint.options, **request.options}
        number = self._num_calls.get(endpoint.id, 0)
        self._num_calls[endpoint.id] = number + 1
        if len(self._num_calls) > MAX_COUNTED:  # patterns let clients invent endpoints
            del self._num_calls[next(iter(self._num_calls))]
        scripts = options.pop("scripts", None)
        if scripts:
            options = {**options, **scripts[min(number, len(scripts) - 1)]}
        script = script_of(options)
        if script.fail_times is not None and number >= script.fail_times:
            return replace(script, status=None, failure=None, cut_after=None, refuse_connection=False)
        return script


def _require_options(given: Mapping[str, Any], slug: str) -> None:
    """Refuse a caller's own script that cannot be played."""
    try:
        FakeOptions.model_validate(given)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        param = ".".join(["provider.options", slug, *map(str, fault["loc"])])
        message = f"{param}: {fault['msg'][:1].lower()}{fault['msg'][1:]}"
        raise UpstreamError(
            FailureClass.ENDPOINT_REQUEST, message, status=400, error_type="invalid_request", param=param
        ) from None


async def _played(script: Script, request: UpstreamRequest) -> AsyncIterator[ProviderEvent]:
    provider = request.endpoint.provider.name
    if script.raises is not None:
        raise ValueError(script.raises)
    if script.refuse_connection:
        raise UpstreamError(
            FailureClass.TRANSIENT, "connection refused", code="connect_error", provider=provider
        )
    if script.queue_s is not None:
        await asyncio.sleep(script.queue_s + TICK_S)
        request.queue.seconds = script.queue_s
    play = _streamed if request.stream else _whole
    async for event in play(script, request):
        yield event


async def _streamed(script: Script, request: UpstreamRequest) -> AsyncIterator[ProviderEvent]:
    if script.fails and not script.cut_after:
        await asyncio.sleep(script.delay_s)
        if script.role_first and script.cut_after == 0:
            yield Chunk((ChoiceDelta(0, {"role": "assistant", "content": ""}),))
        raise script.error(request.endpoint.provider.name)
    if script.role_first and request.kind == "chat":
        yield Chunk((ChoiceDelta(0, {"role": "assistant", "content": ""}),))
    await _wait(script, 0)
    if script.reasoning:
        yield Chunk((ChoiceDelta(0, _thought(script)),))
    pieces = script.pieces()
    for number, piece in enumerate(pieces, 1):
        yield Chunk((ChoiceDelta(0, {_text_key(request): piece}),))
        if script.cut_after == number:
            raise script.error(request.endpoint.provider.name)
        await _wait(script, number)
    if script.tool_calls:
        calls = [{"index": i, **call} for i, call in enumerate(script.tool_calls)]
        yield Chunk((ChoiceDelta(0, {"tool_calls": calls}),))
    if script.finish_reason is not None:
        yield Chunk((ChoiceDelta(0, {}, script.finish_reason, script.finish_reason),))
    usage = _usage(script, request)
    if usage is not None:
        yield Chunk(usage=usage)


async def _whole(script: Script, request: UpstreamRequest) -> AsyncIterator[ProviderEvent]:
    pieces = script.pieces()
    if script.hang_after is not None:
        await asyncio.sleep(FOREVER_S)
    await asyncio.sleep(script.delay_s + script.gap_s * max(len(pieces) - 1, 0))
    if script.fails:
        raise script.error(request.endpoint.provider.name)
    usage = _usage(script, request)
    if request.kind == "rerank":
        documents = request.body.get("documents") or ()
        ranked = ({"index": i, "relevance_score": 1 / (i + 1)} for i in range(len(documents)))
        yield Complete(usage=usage, data=tuple(ranked), search_units=1)
        return
    if request.kind == "embeddings":
        rows, rest = range(num_inputs(request.body.get("input"))), [1.0] * (_num_dimensions(request) - 1)
        data = ({"object": "embedding", "index": i, "embedding": [float(i), *rest]} for i in rows)
        yield Complete(usage=usage, data=tuple(data))
        return
    text = "".join(pieces)
    if not text and not script.tool_calls and script.finish_reason is None:
        yield Complete(usage=usage)
        return
    message: dict[str, Any] = {_text_key(request): text}
    if request.kind == "chat":
        message["role"] = "assistant"
        if script.reasoning:
            message |= _thought(script)
        if script.tool_calls:
            message["tool_calls"] = [dict(call) for call in script.tool_calls]
    yield Complete((Choice(0, message, script.finish_reason, script.finish_reason),), usage)


def _thought(script: Script) -> dict[str, Any]:
    """Both forms of a thought, as every other provider's answers have them."""
    detail = {"type": "reasoning.text", "text": script.reasoning, "format": "unknown", "index": 0}
    return {"reasoning": script.reasoning, "reasoning_details": [detail]}


async def _wait(script: Script, number: int) -> None:
    """Wait after token `number`; 0 is before the first."""
    if script.hang_after == number:
        await asyncio.sleep(FOREVER_S)
    await asyncio.sleep(script.delay_s if number == 0 else script.gap_s)


def _text_key(request: UpstreamRequest) -> str:
    return "content" if request.kind == "chat" else "text"


def _num_dimensions(request: UpstreamRequest) -> int:
    return int(request.body.get("dimensions") or 2)


def _usage(script: Script, request: UpstreamRequest) -> Usage | None:
    if script.usage is False:
        return None
    if script.usage is not True:
        counts: dict[str, Any] = {**script.usage}
        return Usage(**counts)
    num_out = 0 if request.kind in WHOLE_KINDS else len(script.pieces())
    return Usage(prompt_tokens=10, completion_tokens=num_out)
