"""OpenAIProvider: a lean relay to any OpenAI-compatible server (vLLM, SGLang, llama.cpp, OpenRouter ...).

One POST an attempt; no retry, no choice, no deadline but the connect timeout. Frames SSE on bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Any

from ionrouter.errors import ConfigError
from ionrouter.providers.base import UpstreamRequest
from ionrouter.providers.chunk_reader import ChunkReader, sample
from ionrouter.providers.connection import Answer
from ionrouter.providers.http_errors import ErrorReader
from ionrouter.providers.http_faults import HttpFault
from ionrouter.providers.normalise import as_chunks, complete
from ionrouter.providers.outgoing import Outgoing, build_headers
from ionrouter.providers.transport_errors import read_transport_error
from ionrouter.providers.upstream_body import build_body
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
MAX_ERROR_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 256 * 1024 * 1024  # a whole answer with images, or a batch of embeddings
DRAIN_S = 0.5  # how long after [DONE] the end of the body may take for its connection to be kept
LIST_S = 10.0  # for the whole list of models
TRAILER_S = 5.0  # how long after the last finish reason usage and [DONE] may take


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
        with _Reading(response, errors):
            return [await self._complete(request, errors, response)]

    def carry(
        self, request: UpstreamRequest, url: str, headers: Mapping[str, str], data: bytes
    ) -> AsyncGenerator[ProviderBatch, None]:
        """Send a request that was built elsewhere to an upstream that answers in OpenAI's shape."""
        errors = ErrorReader(request.endpoint.provider.name, self._redact)
        return self._relayed(request, errors, partial(self._carry, request, errors, url, headers, data))

    async def _carry(
        self, request: UpstreamRequest, errors: ErrorReader, url: str, headers: Mapping[str, str], data: bytes
    ) -> Answer:
        endpoint = request.endpoint
        with _Asking(errors):
            return await self._outgoing.send(
                "POST",
                url,
                headers,
                data,
                allow_http=endpoint.provider.allow_http,
                connect_s=endpoint.timeouts.connect_s,
            )

    async def _relayed(
        self, request: UpstreamRequest, errors: ErrorReader, send: Callable[[], Awaitable[Answer]]
    ) -> AsyncGenerator[ProviderBatch, None]:
        response = await send()
        with _Reading(response, errors):
            if not request.stream or request.kind in WHOLE_KINDS:
                yield [await self._complete(request, errors, response)]
                return
            request.queue.seconds = response.queue_s
            await self._check_status(response, errors)
            if response.content_type == "application/json":
                # Asked to stream, answered whole: some servers ignore `stream` for some models.
                yield list(as_chunks(complete(request.kind, await _json_body(response, errors), errors)))
            elif "html" in response.content_type:
                raise errors.fault("malformed", "the upstream answered with an HTML page")
            else:
                async for batch in ChunkReader(request, errors, self._trailer_s).batches(response):
                    yield batch

    async def _complete(self, request: UpstreamRequest, errors: ErrorReader, response: Answer) -> Complete:
        request.queue.seconds = response.queue_s
        await self._check_status(response, errors)
        return complete(request.kind, await _json_body(response, errors), errors, request.body)

    async def close(self) -> None:
        """Close every connection, also those whose end is still awaited."""
        await self._outgoing.close()

    async def list_models(self, provider: Provider) -> Any:
        """GET the provider's /models with its first key that is set; raises UpstreamError for every fault."""
        errors = ErrorReader(provider.name, self._redact)
        try:
            async with asyncio.timeout(LIST_S):
                response = await self._send("GET", provider, "/models", None, LIST_S, errors)
                try:
                    await self._check_status(response, errors)
                    return await _json_body(response, errors)
                finally:
                    response.close()
        except (HttpFault, OSError) as error:
            raise read_transport_error(error, errors) from error

    async def _post(self, request: UpstreamRequest, errors: ErrorReader) -> Answer:
        endpoint = request.endpoint
        return await self._send(
            "POST",
            endpoint.provider,
            _PATHS[request.kind],
            json.dumps(build_body(request)),
            endpoint.timeouts.connect_s,
            errors,
            variable=endpoint.key_variable,
            is_stream=request.stream,
            traceparent=request.traceparent,
        )

    async def _send(
        self,
        method: str,
        provider: Provider,
        path: str,
        data: bytes | None,
        connect_s: float,
        errors: ErrorReader,
        *,
        variable: str | None = None,
        is_stream: bool = False,
        traceparent: str | None = None,
    ) -> Answer:
        url = (provider.base_url or "").rstrip("/") + path
        with _Asking(errors):
            headers = self._headers(provider, variable, is_stream=is_stream)
            return await self._outgoing.send(
                method,
                url,
                headers,
                data,
                allow_http=provider.allow_http,
                connect_s=connect_s,
                traceparent=traceparent,
            )

    def _headers(self, provider: Provider, variable: str | None, *, is_stream: bool) -> Mapping[str, str]:
        key = self._key(provider, variable)
        accept = "text/event-stream, application/json" if is_stream else "application/json"
        # A compressing upstream would hold events back until its window fills.
        return build_headers(provider.headers, key, accept=accept, extra={"Accept-Encoding": "identity"})

    def _key(self, provider: Provider, variable: str | None) -> str | None:
        names = provider.key_variables if variable is None else (variable,)
        key = next((found for name in names if (found := self._env.get(name, "").strip())), None)
        if variable is not None and key is None:
            raise ConfigError(f"{variable} is unset")
        if key is not None:
            self._redact.register(key)
        return key

    async def _check_status(self, response: Answer, errors: ErrorReader) -> None:
        if not 200 <= response.status < 300:
            body = await response.read(MAX_ERROR_BYTES)
            raise errors.response(response.status, response.headers, body, self._clock())


class _Asking:
    """Tells what goes wrong before an answer's head is there: UpstreamError for all of it."""

    __slots__ = ("_errors",)

    def __init__(self, errors: ErrorReader) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if isinstance(error, ConfigError):
            raise self._errors.refused("config", str(error)) from error
        if isinstance(error, HttpFault | OSError | ValueError):
            raise read_transport_error(error, self._errors) from error


class _Reading:
    """An answer being read: faults are told as UpstreamError; its connection is kept or closed after it."""

    __slots__ = ("_errors", "_response")

    def __init__(self, response: Answer, errors: ErrorReader) -> None:
        self._response, self._errors = response, errors

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if error is None:
            self._response.release(DRAIN_S)
            return
        self._response.close()
        if isinstance(error, HttpFault | OSError):
            raise read_transport_error(error, self._errors) from error
        if isinstance(error, RecursionError):
            raise self._errors.fault("malformed", "the upstream's JSON is nested beyond reason") from error


async def _json_body(response: Answer, errors: ErrorReader) -> Any:
    body = await response.read(MAX_ANSWER_BYTES)
    content_type = response.content_type
    if not body.strip():
        raise errors.fault("empty", f"the upstream answered {response.status} with an empty body")
    if "html" in content_type or "event-stream" in content_type:
        message = f"the upstream answered with {content_type} instead of JSON"
        raise errors.fault("malformed", message, raw=sample(body))
    try:
        return json.loads(body)
    except ValueError as error:
        message = "the upstream's answer is not JSON"
        raise errors.fault("malformed", message, raw=sample(body)) from error
