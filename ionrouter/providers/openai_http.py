"""OpenAIProvider: a lean relay to any OpenAI-compatible server (vLLM, SGLang, llama.cpp, OpenRouter ...).

One POST an attempt; no retry, no choice, no deadline but the connect timeout. Frames SSE on bytes.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any

import aiohttp

from ionrouter.errors import ConfigError
from ionrouter.providers.base import UpstreamRequest
from ionrouter.providers.http_errors import ErrorReader
from ionrouter.providers.normalise import StreamNormaliser, as_chunks, complete
from ionrouter.providers.outgoing import Outgoing, build_headers, connect_timeout
from ionrouter.providers.sse import EventTooLong, SseDecoder, SseEvent
from ionrouter.providers.transport_errors import read_transport_error
from ionrouter.providers.upstream_body import build_body, count_choices
from ionrouter.redact import Redactor
from ionrouter.routing.table import Provider
from ionrouter.schema import json
from ionrouter.schema.events import Chunk, ProviderEvent
from ionrouter.schema.request import Kind

_PATHS: dict[Kind, str] = {
    "chat": "/chat/completions",
    "completions": "/completions",
    "embeddings": "/embeddings",
}
MAX_ERROR_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 256 * 1024 * 1024  # a whole answer with images, or a batch of embeddings
LARGE_BODY_BYTES = 1024 * 1024  # from here on aiohttp wants a file-like body, written piece by piece
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
        self._outgoing = outgoing or Outgoing()
        self._draining: set[asyncio.Task[None]] = set()

    async def stream(self, request: UpstreamRequest) -> AsyncGenerator[ProviderEvent, None]:
        """Send the request once and yield what comes back; closing the iterator closes the connection."""
        errors = ErrorReader(request.endpoint.provider.name, self._redact)
        response = await self._post(request, errors)
        is_whole = False
        try:
            async with aclosing(self._events(response, request, errors)) as events:
                async for event in events:
                    yield event
            is_whole = True
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise read_transport_error(error, errors) from error
        except RecursionError as error:
            raise errors.fault("malformed", "the upstream's JSON is nested beyond reason") from error
        finally:
            self._let_go(response, is_whole=is_whole)

    async def close(self) -> None:
        """Close every connection, also those whose end is still awaited."""
        for task in self._draining:
            task.cancel()
        await asyncio.gather(*self._draining, return_exceptions=True)
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
                    self._let_go(response, is_whole=False)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise read_transport_error(error, errors) from error

    async def _post(self, request: UpstreamRequest, errors: ErrorReader) -> aiohttp.ClientResponse:
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
    ) -> aiohttp.ClientResponse:
        url = (provider.base_url or "").rstrip("/") + path
        try:
            session = self._outgoing.session(url, allow_http=provider.allow_http)
            headers = self._headers(provider, variable, is_stream=is_stream)
        except ConfigError as error:
            raise errors.refused("config", str(error)) from error
        try:
            return await session.request(
                method,
                url,
                data=io.BytesIO(data) if data is not None and len(data) >= LARGE_BODY_BYTES else data,
                headers=headers,
                allow_redirects=False,
                timeout=connect_timeout(connect_s),
            )
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise read_transport_error(error, errors) from error

    def _headers(self, provider: Provider, variable: str | None, *, is_stream: bool) -> dict[str, str]:
        key = self._key(provider, variable)
        if not is_stream:
            return build_headers(provider.headers, key, accept="application/json")
        # A compressing upstream would hold events back until its window fills.
        plain = {"Accept-Encoding": "identity"}
        return build_headers(provider.headers, key, accept="text/event-stream, application/json", extra=plain)

    def _key(self, provider: Provider, variable: str | None) -> str | None:
        names = provider.key_variables if variable is None else (variable,)
        key = next((found for name in names if (found := self._env.get(name, "").strip())), None)
        if variable is not None and key is None:
            raise ConfigError(f"{variable} is unset")
        if key is not None:
            self._redact.register(key)
        return key

    async def _check_status(self, response: aiohttp.ClientResponse, errors: ErrorReader) -> None:
        if not 200 <= response.status < 300:
            body = await _read(response.content, MAX_ERROR_BYTES)
            raise errors.response(response.status, response.headers, body, self._clock())

    async def _events(
        self, response: aiohttp.ClientResponse, request: UpstreamRequest, errors: ErrorReader
    ) -> AsyncGenerator[ProviderEvent, None]:
        await self._check_status(response, errors)
        if not request.stream or request.kind == "embeddings":
            yield complete(request.kind, await _json_body(response, errors), errors)
        elif response.content_type == "application/json":
            # Asked to stream, answered whole: some servers ignore `stream` for some models.
            for chunk in as_chunks(complete(request.kind, await _json_body(response, errors), errors)):
                yield chunk
        elif "html" in response.content_type:
            raise errors.fault("malformed", "the upstream answered with an HTML page")
        else:
            async for chunk in _sse_chunks(response.content, request, errors, self._trailer_s):
                yield chunk

    def _let_go(self, response: aiohttp.ClientResponse, *, is_whole: bool) -> None:
        """Close the connection, unless a whole answer's body ends within a moment: then it is kept."""
        if response.closed:
            return
        if not is_whole:
            response.close()
            return
        task = asyncio.ensure_future(_drain(response))
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)


async def _sse_chunks(
    content: aiohttp.StreamReader, request: UpstreamRequest, errors: ErrorReader, trailer_s: float
) -> AsyncIterator[Chunk]:
    stream = StreamNormaliser(request.kind, errors, count_choices(request.body))
    decoder = SseDecoder()
    is_over = False
    while not is_over:
        data = await _next_bytes(content, trailer_s=trailer_s if stream.is_finished else None)
        for event in _decode(decoder, data, errors):
            for payload in _payloads(event, errors):
                if (chunk := stream.chunk(payload)) is not None:
                    yield chunk
        is_over = decoder.is_done or not data
    for chunk in stream.end(is_done=decoder.is_done):
        yield chunk


async def _next_bytes(content: aiohttp.StreamReader, *, trailer_s: float | None) -> bytes:
    """Read what is there, b"" at the end. After the last finish reason the end may be waited for briefly."""
    if content.exception() is not None and (held := content._read_nowait(-1)):
        # aiohttp would raise first and forget what came before the cut; those events are whole and good.
        return held
    try:
        async with asyncio.timeout(trailer_s):
            return await content.readany()
    except (TimeoutError, aiohttp.ClientPayloadError):
        if trailer_s is None:
            raise
        return b""  # the answer is whole; only its trailer is missing


def _decode(decoder: SseDecoder, data: bytes, errors: ErrorReader) -> list[SseEvent]:
    try:
        return decoder.feed(data) if data else decoder.finish()
    except EventTooLong as error:
        raise errors.fault("malformed", str(error)) from error


def _payloads(event: SseEvent, errors: ErrorReader) -> Iterator[Any]:
    """Parse an event. Lines that are each an object came from a server that ends events with one LF."""
    try:
        payload = json.loads(event.data)
    except ValueError as whole_error:
        lines = [line for line in event.data.split(b"\n") if line.strip() not in (b"", b"[DONE]")]
        if b"\n" not in event.data:
            lines = []
        try:
            yield from [json.loads(line) for line in lines]
        except ValueError:
            lines = []
        if not lines:
            message = "the upstream sent an event that is not JSON"
            raise errors.fault("malformed", message, raw=_sample(event.data)) from whole_error
        return
    is_bare_error = event.name == "error" and not (isinstance(payload, dict) and "error" in payload)
    yield {"error": payload} if is_bare_error else payload


async def _json_body(response: aiohttp.ClientResponse, errors: ErrorReader) -> Any:
    body = await _read(response.content, MAX_ANSWER_BYTES)
    content_type = response.content_type
    if not body.strip():
        raise errors.fault("empty", f"the upstream answered {response.status} with an empty body")
    if "html" in content_type or "event-stream" in content_type:
        message = f"the upstream answered with {content_type} instead of JSON"
        raise errors.fault("malformed", message, raw=_sample(body))
    try:
        return json.loads(body)
    except ValueError as error:
        message = "the upstream's answer is not JSON"
        raise errors.fault("malformed", message, raw=_sample(body)) from error


async def _read(content: aiohttp.StreamReader, max_bytes: int) -> bytes:
    """Read to the end or to `max_bytes`, whichever is first."""
    parts = bytearray()
    while len(parts) < max_bytes and (data := await content.readany()):
        parts += data
    return bytes(parts)


def _sample(data: bytes) -> str:
    return data[: 8 * 1024].decode("utf-8", "replace")


async def _drain(response: aiohttp.ClientResponse) -> None:
    try:
        async with asyncio.timeout(DRAIN_S):
            while await response.content.readany():
                pass
    except (TimeoutError, aiohttp.ClientError, OSError):
        pass  # the answer is whole already; what is wrong with the connection ends with it
    finally:
        response.close()  # after a clean end aiohttp has already taken the connection back
