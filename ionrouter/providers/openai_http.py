"""OpenAIProvider: a lean relay to any OpenAI-compatible server (vLLM, SGLang, llama.cpp, OpenRouter ...).

One POST an attempt; no retry, no choice, no deadline but the connect timeout. Frames SSE on bytes.
"""

from __future__ import annotations

import asyncio
import time
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Any

from ionrouter.errors import ConfigError, UpstreamError
from ionrouter.providers.answer import Answer
from ionrouter.providers.base import UpstreamRequest
from ionrouter.providers.chunk_reader import ChunkReader, sample
from ionrouter.providers.cut_answer import note_cut
from ionrouter.providers.http_errors import ErrorReader
from ionrouter.providers.http_faults import HttpFault
from ionrouter.providers.normalise import TOO_DEEP, as_chunks, complete
from ionrouter.providers.outgoing import Head, Outgoing, build_headers, head_of
from ionrouter.providers.transport_errors import read_transport_error
from ionrouter.providers.upstream_body import build_body
from ionrouter.providers.vector_pieces import VectorReader
from ionrouter.redact import Redactor
from ionrouter.routing.table import Provider
from ionrouter.schema import json
from ionrouter.schema.events import Complete, ProviderBatch, ProviderEvent, flat
from ionrouter.schema.request import WHOLE_KINDS, Kind

_PATHS: dict[Kind, str] = {
    "chat": "/chat/completions",
    "completions": "/completions",
    "embeddings": "/embeddings",
    "rerank": "/rerank",
}
MAX_HEADS = 1024  # that are remembered
MAX_ANSWER_BYTES = 256 * 1024 * 1024  # a whole answer with images, or a batch of embeddings
DRAIN_S = 0.5  # how long after [DONE] the end of the body may take for its connection to be kept
LIST_S = 10.0  # for the whole list of models
TRAILER_S = 5.0  # how long the rest may take of an answer that is decided: by a finish reason, or a refusal
_UNSENT = (ConfigError, HttpFault, OSError, ValueError)  # what may go wrong before an answer's head is there

# Method, base URL, path, whether http:// may be used, configured headers, key, whether a stream is asked for.
_HeadKey = tuple[str, str | None, str, bool, tuple[tuple[str, str], ...], str | None, bool]


class OpenAIProvider:
    """ProviderClient for endpoints of type `openai`. Keys are read from `env` at each request."""

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        redact: Redactor | None = None,
        clock: Callable[[], float] = time.time,
        trailer_s: float = TRAILER_S,
        outgoing: Outgoing | None = None,
    ) -> None:
        self._env = env
        self._redact = redact or Redactor()
        self._clock = clock  # wall clock, for dates in Retry-After
        self._trailer_s = trailer_s
        self._outgoing = Outgoing() if outgoing is None else outgoing
        self._heads: dict[_HeadKey, Head] = {}

    async def stream(self, request: UpstreamRequest) -> AsyncGenerator[ProviderEvent, None]:
        """Send the request once and yield what comes back; closing the iterator closes the connection."""
        async with aclosing(flat(self.batches(request))) as events:  # type: ignore[type-var]
            async for event in events:
                yield event  # type: ignore[misc]

    def batches(self, request: UpstreamRequest) -> AsyncGenerator[ProviderBatch, None]:
        """The same, with all that one read brought together in one batch."""
        errors = ErrorReader(request.endpoint.provider.name, self._redact)
        return self._relayed(request, errors, partial(self._post, request, errors))

    async def whole(self, request: UpstreamRequest) -> ProviderBatch:
        """The same of a request that is not streamed: its one batch, without an iterator around it."""
        errors = ErrorReader(request.endpoint.provider.name, self._redact)
        response = await self._post(request, errors)
        request.queue.seconds = response.queue_s
        try:
            answer = await self._complete(request, errors, response)
        except BaseException as error:
            _give_up(response, error, errors)
            raise
        response.release(DRAIN_S)
        return [answer]

    def carry(
        self, request: UpstreamRequest, url: str, headers: Mapping[str, str], data: bytes
    ) -> AsyncGenerator[ProviderBatch, None]:
        """Send a request that was built elsewhere to an upstream that answers in OpenAI's shape."""
        errors = ErrorReader(request.endpoint.provider.name, self._redact)
        return self._relayed(request, errors, partial(self._carry, request, errors, url, headers, data))

    async def _carry(
        self, request: UpstreamRequest, errors: ErrorReader, url: str, headers: Mapping[str, str], data: bytes
    ) -> Answer:
        if request.sent is not None:
            request.sent.body = self._redact.without_keys(data)
        allow_http, connect_s = request.endpoint.provider.allow_http, request.endpoint.timeouts.connect_s
        try:
            return await self._outgoing.send(
                "POST",
                url,
                headers,
                data,
                allow_http=allow_http,
                connect_s=connect_s,
                held=request.queue.held,
            )
        except _UNSENT as error:
            raise _send_fault(error, errors) from error

    async def _relayed(
        self, request: UpstreamRequest, errors: ErrorReader, send: Callable[[], Awaitable[Answer]]
    ) -> AsyncGenerator[ProviderBatch, None]:
        response = await send()
        request.queue.seconds = response.queue_s
        try:
            if not request.stream or request.kind in WHOLE_KINDS:
                yield [await self._complete(request, errors, response)]
            elif not 200 <= response.status < 300:
                raise await self._refusal(response, errors)
            elif response.content_type == "application/json" and not _begins_events(await response.peek()):
                # Asked to stream, answered whole: some servers ignore `stream` for some models.
                answer = await _json_body(response, errors, request)
                yield list(as_chunks(complete(request.kind, answer, errors, told=request.told)))
            elif "html" in response.content_type:
                raise errors.fault("malformed", "the upstream answered with an HTML page")
            else:
                async for batch in ChunkReader(request, errors, self._trailer_s).batches(response):
                    yield batch
        except BaseException as error:
            _give_up(response, error, errors)
            raise
        response.release(DRAIN_S)

    async def _complete(self, request: UpstreamRequest, errors: ErrorReader, response: Answer) -> Complete:
        if not 200 <= response.status < 300:
            raise await self._refusal(response, errors)
        read = _with_vectors if request.kind == "embeddings" else _json_body
        answer = await read(response, errors, request)
        return complete(request.kind, answer, errors, request.body, request.told)

    @asynccontextmanager
    async def place(self, request: UpstreamRequest) -> AsyncIterator[None]:
        """Count a request that another process of ours sends among our connections; raises UpstreamError."""
        connect_s, held = request.endpoint.timeouts.connect_s, request.queue.held
        async with AsyncExitStack() as stack:
            try:
                place = self._outgoing.place(connect_s, held)
                request.queue.seconds = await stack.enter_async_context(place)
            except HttpFault as error:
                errors = ErrorReader(request.endpoint.provider.name, self._redact)
                raise read_transport_error(error, errors) from error
            yield

    async def close(self) -> None:
        """Close every connection, also those whose end is still awaited."""
        await self._outgoing.close()

    async def list_models(self, provider: Provider) -> Any:
        """GET the provider's /models with its first key that is set; raises UpstreamError for every fault."""
        errors = ErrorReader(provider.name, self._redact)
        try:
            async with asyncio.timeout(LIST_S):
                try:
                    head = self._head("GET", provider, "/models", None, is_stream=False)
                    response = await self._outgoing.ask(head, None, LIST_S)
                except _UNSENT as error:
                    raise _send_fault(error, errors) from error
                try:
                    if not 200 <= response.status < 300:
                        raise await self._refusal(response, errors)
                    # What is listed there is published here.
                    return await _json_body(response, errors, clean=self._redact.without_keys)
                finally:
                    response.close()
        except (HttpFault, OSError) as error:
            raise read_transport_error(error, errors) from error

    async def _post(self, request: UpstreamRequest, errors: ErrorReader) -> Answer:
        endpoint, data = request.endpoint, json.dumps(build_body(request))
        if request.sent is not None:
            request.sent.body = self._redact.without_keys(data)
        try:
            path, variable = _PATHS[request.kind], endpoint.key_variable
            head = self._head("POST", endpoint.provider, path, variable, is_stream=request.stream)
            connect_s, held = endpoint.timeouts.connect_s, request.queue.held
            return await self._outgoing.ask(head, data, connect_s, request.traceparent, held)
        except _UNSENT as error:
            raise _send_fault(error, errors) from error

    def _head(
        self, method: str, provider: Provider, path: str, variable: str | None, *, is_stream: bool
    ) -> Head:
        """Write a request's head, once for all that goes into it."""
        key, configured = self._key(provider, variable), tuple(provider.headers.items())
        known_by = (method, provider.base_url, path, provider.allow_http, configured, key, is_stream)
        head = self._heads.get(known_by)
        if head is None:
            if key is not None:
                self._redact.register(key)
            accept = "text/event-stream, application/json" if is_stream else "application/json"
            # A compressing upstream would hold events back until its window fills.
            plain = {"Accept-Encoding": "identity"}
            headers = build_headers(provider.headers, key, accept=accept, extra=plain)
            url = (provider.base_url or "").rstrip("/") + path
            head = head_of(method, url, headers.items(), allow_http=provider.allow_http)
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            self._heads[known_by] = head
        return head

    def _key(self, provider: Provider, variable: str | None) -> str | None:
        if variable is None:
            found = (self._env.get(name, "").strip() for name in provider.key_variables)
            return next(filter(None, found), None)
        key = self._env.get(variable, "").strip()
        if not key:
            raise ConfigError(f"{variable} is unset")
        return key

    async def _refusal(self, response: Answer, errors: ErrorReader) -> UpstreamError:
        body = await response.read_refusal(self._trailer_s)
        return errors.response(response.status, response.headers, body, self._clock())


def _send_fault(error: Exception, errors: ErrorReader) -> UpstreamError:
    """Tell what went wrong before an answer's head was there."""
    if isinstance(error, ConfigError):
        return errors.refused("config", str(error))
    return read_transport_error(error, errors)


def _give_up(response: Answer, error: BaseException, errors: ErrorReader) -> None:
    """End an answer that is none; raises the fault of the upstream's, if it is one.

    A caller's mistake or a limit leaves the connection; behind a broken one there may be a broken server.
    """
    if 400 <= response.status < 500:
        response.release(0.0)
    else:
        response.close()
    if isinstance(error, HttpFault | OSError):
        raise read_transport_error(error, errors) from error
    if isinstance(error, RecursionError):
        raise errors.fault("malformed", TOO_DEEP) from error


def _begins_events(data: bytes) -> bool:
    """Tell a stream that its server calls JSON: by the first of data, event, id, retry or of a comment."""
    return data.removeprefix(BOM_UTF8).lstrip().startswith((b"d", b"e", b"i", b"r", b":"))


async def _json_body(
    response: Answer,
    errors: ErrorReader,
    request: UpstreamRequest | None = None,
    clean: Callable[[bytes], bytes] = lambda body: body,
) -> Any:
    """Read and parse a whole answer; of one that broke off, `request` is told what it cost."""
    try:
        body = await response.read(MAX_ANSWER_BYTES)
    except BaseException:
        if request is not None:
            note_cut(request, response.unread(), errors)
        raise
    return _parsed(clean(body), response, errors, request)


async def _with_vectors(response: Answer, errors: ErrorReader, request: UpstreamRequest) -> Any:
    """The same of what may be large."""
    if response.is_whole:  # it came with its head, and is not
        return await _json_body(response, errors, request)
    reader = VectorReader()
    try:
        await reader.read(response, MAX_ANSWER_BYTES)
    except BaseException:
        note_cut(request, reader.rest(), errors)
        raise
    payload = reader.payload()
    if payload is not None and not _other_content(response):
        return payload
    return _parsed(reader.body(), response, errors, request)  # what is odd about it is found as in any other


def _other_content(response: Answer) -> bool:
    return "html" in response.content_type or "event-stream" in response.content_type


def _parsed(body: bytes, response: Answer, errors: ErrorReader, request: UpstreamRequest | None) -> Any:
    body = body.removeprefix(BOM_UTF8)  # of servers on Windows
    if not body.strip():
        raise errors.fault("empty", f"the upstream answered {response.status} with an empty body")
    if _other_content(response):
        message = f"the upstream answered with {response.content_type} instead of JSON"
        raise errors.fault("malformed", message, raw=sample(body))
    try:
        return json.loads(body)
    except ValueError as error:
        if request is not None:
            note_cut(request, body, errors)  # one without a length that broke off ends as others do
        message = "the upstream's answer is not JSON"
        raise errors.fault("malformed", message, raw=sample(body)) from error
