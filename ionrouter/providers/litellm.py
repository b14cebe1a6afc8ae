"""LiteLLMProvider: the front's door to every provider litellm reaches. Never imports litellm.

litellm takes 8-16 s to import and 300 MB, so it lives in a worker process (litellm_worker.py). What comes
back over the socket is the upstream's JSON and goes through the same normaliser as everything else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from msgspec import structs

from ionrouter.errors import ConfigError, FailureClass, UpstreamError
from ionrouter.providers.base import UpstreamRequest
from ionrouter.providers.batches import in_batches
from ionrouter.providers.chunk_reader import Trailer, limit_of_trailer
from ionrouter.providers.cut_answer import note_cut
from ionrouter.providers.http_errors import ErrorReader
from ionrouter.providers.litellm_body import build_call
from ionrouter.providers.litellm_carrier import Carrier
from ionrouter.providers.litellm_errors import NOT_FETCHED, read_litellm_error
from ionrouter.providers.litellm_link import Call
from ionrouter.providers.litellm_process import WorkerProcess
from ionrouter.providers.litellm_recipe import BARE, Recipe
from ionrouter.providers.media import MediaFetcher, MediaRefused
from ionrouter.providers.normalise import StreamNormaliser, complete
from ionrouter.providers.openai_http import TRAILER_S, OpenAIProvider
from ionrouter.providers.outgoing import name_problem, url_problem
from ionrouter.providers.upstream_body import count_choices
from ionrouter.redact import Redactor
from ionrouter.routing.table import Provider
from ionrouter.schema import json
from ionrouter.schema.events import Chunk, ProviderBatch, ProviderEvent, flat
from ionrouter.schema.request import WHOLE_KINDS

COUNT_S = 5.0  # for a count, which is estimated where it takes longer
_log = structlog.get_logger(__name__)
_OF_TRAILERS = frozenset(("cut", "disconnected", "malformed", "timeout"))  # faults that spoil no whole answer


class LiteLLMProvider:
    """ProviderClient for endpoints of type `litellm`. Call `start` at server start: the import is slow."""

    def __init__(
        self,
        env: Mapping[str, str],
        state_dir: Path | None = None,
        *,
        redact: Redactor | None = None,
        clock: Callable[[], float] = time.time,
        relay: OpenAIProvider | None = None,
        tables: Path | None = None,
        media: MediaFetcher | None = None,
        trailer_s: float = TRAILER_S,
    ) -> None:
        """`relay` carries what has a proved recipe, kept in the folder `tables`; without it nothing is.

        `media` fetches what a request names by address, for providers that take bytes alone.
        """
        self._env = env
        self._redact = redact or Redactor()
        self._clock = clock  # wall clock, for dates in Retry-After
        self.worker = WorkerProcess(env, state_dir)
        self._relay = relay
        self.carrier = Carrier(self.worker, tables)
        self._media = media
        self._trailer_s = trailer_s

    async def start(self) -> None:
        """Begin starting the worker; does not wait for litellm's import."""
        self.worker.start()

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until litellm is imported; raises TimeoutError."""
        await self.worker.link(timeout_s)

    async def close(self) -> None:
        """End the worker; open calls end with an UpstreamError."""
        await self.carrier.close()
        await self.worker.close()
        if self._media is not None:
            await self._media.close()

    async def stream(self, request: UpstreamRequest) -> AsyncGenerator[ProviderEvent, None]:
        """Send the request once; closing the iterator cancels it upstream."""
        async with aclosing(flat(self.batches(request))) as events:  # type: ignore[type-var]
            async for event in events:
                yield event  # type: ignore[misc]

    async def batches(self, request: UpstreamRequest) -> AsyncGenerator[ProviderBatch, None]:
        """The same in batches: carried by the front where a recipe is proved, else by the worker."""
        errors = ErrorReader(request.endpoint.provider.name, self._redact)
        try:
            async with aclosing(self._sent(request, self._content(request, errors), errors)) as batches:
                async for batch in batches:
                    yield batch
        except UpstreamError as error:
            if error.code != NOT_FETCHED or self._media is None:
                raise
        else:
            return
        # Nothing was sent: litellm met an address that it would have had to fetch.
        request = await _with_media(request, self._media)
        async with aclosing(self._sent(request, self._content(request, errors), errors)) as batches:
            async for batch in batches:
                yield batch

    async def count(self, request: UpstreamRequest) -> int | None:
        """Count a prompt's tokens as Anthropic does, by asking it; None of others and where that fails."""
        provider = request.endpoint.provider
        if provider.litellm_name != "anthropic":
            return None
        errors = ErrorReader(provider.name, self._redact)
        try:
            async with asyncio.timeout(COUNT_S):
                told = await self._counted(request, errors)
        except (TimeoutError, UpstreamError) as error:
            told = {"why": str(error) or "it took too long"}
        if (tokens := told.get("input_tokens")) is None:
            _log.info("prompt_not_counted", endpoint=request.endpoint.id, why=told.get("why"))
        return tokens

    async def _counted(self, request: UpstreamRequest, errors: ErrorReader) -> dict[str, Any]:
        content = {**self._content(request, errors), "count": True}
        async with nullcontext() if self._relay is None else self._relay.place(request):
            call = await self._call(request, content, errors)
            try:
                frame = await call.next()
            finally:
                call.close()
        if frame["op"] != "whole":
            raise self._failure(frame, errors)
        told: dict[str, Any] = frame["payload"]
        return told

    def _content(self, request: UpstreamRequest, errors: ErrorReader) -> dict[str, Any]:
        try:
            return build_call(request, self._key(request))
        except ConfigError as error:
            raise errors.refused("config", str(error)) from error

    def _sent(
        self, request: UpstreamRequest, content: dict[str, Any], errors: ErrorReader
    ) -> AsyncGenerator[ProviderBatch, None]:
        if self._relay is None or not _may_be_carried(request):
            return self._worked(request, content, errors)
        way = self.carrier.way(content)
        if not isinstance(way, Recipe):
            return self._worked(request, {**content, "bare": way == BARE}, errors)
        headers = way.headers_with(content["api_key"])
        return self._relay.carry(request, way.url, headers, json.dumps(way.body(content)))

    async def _worked(
        self, request: UpstreamRequest, content: dict[str, Any], errors: ErrorReader
    ) -> AsyncGenerator[ProviderBatch, None]:
        place = nullcontext() if self._relay is None else self._relay.place(request)
        async with place, aclosing(self._answered(request, content, errors)) as batches:
            async for batch in batches:
                yield batch

    async def _answered(
        self, request: UpstreamRequest, content: dict[str, Any], errors: ErrorReader
    ) -> AsyncGenerator[ProviderBatch, None]:
        if request.sent is not None:  # in OpenAI's words: the worker translates, and keeps that to itself
            body = {"model": content["model"], **content["arguments"], **content["extra_body"]}
            request.sent.body = self._redact.without_keys(json.dumps({**body, "stream": content["stream"]}))
        call = await self._call(request, content, errors)
        try:
            if not request.stream or request.kind in WHOLE_KINDS:
                frame = await call.next()
                if frame["op"] != "whole":
                    note_cut(request, frame.get("came", "").encode(), errors)
                    raise self._failure(frame, errors)
                yield [complete(request.kind, frame["payload"], errors, request.body, request.told)]
                return
            async for batch in self._chunks(call, request, errors):
                yield batch
        finally:
            call.close()

    async def _call(self, request: UpstreamRequest, content: dict[str, Any], errors: ErrorReader) -> Call:
        try:
            await _check_address(request.endpoint.provider)
        except ConfigError as error:
            raise errors.refused("config", str(error)) from error
        try:
            link = await self.worker.link(request.endpoint.timeouts.connect_s)
        except (TimeoutError, ConnectionError) as error:
            words = self.worker.last_words().rpartition("\n")[2]  # the rest is a traceback
            words = errors.redact(words[-2000:])[-300:]  # half a key would be known to nobody
            message = f"the litellm worker is not ready yet{': ' + words if words else ''}"
            raise errors.fault("connect_error", message, status=504) from error
        return await link.call(content)

    def _chunks(
        self, call: Call, request: UpstreamRequest, errors: ErrorReader
    ) -> AsyncGenerator[list[Chunk], None]:
        """Yield what came at once; raises UpstreamError after what came before the fault."""
        stream = StreamNormaliser(request.kind, errors, count_choices(request.body), request.told)
        trailer = Trailer(limit_of_trailer(self._trailer_s, request))

        async def read() -> list[dict[str, Any]]:
            if not stream.is_finished:
                return await call.ready()
            with suppress(TimeoutError):
                async with trailer.limit():
                    return await call.ready()
            return [{"op": "end", "done": False}]  # the answer is whole; only its trailer is missing

        return in_batches(read, partial(self._take_in, stream, errors, trailer))

    def _take_in(
        self,
        stream: StreamNormaliser,
        errors: ErrorReader,
        trailer: Trailer,
        frames: list[dict[str, Any]],
        batch: list[Chunk],
    ) -> bool:
        """Add the frames' chunks to the batch; true at the end."""
        for frame in frames:
            if frame["op"] == "end":
                batch += stream.end(is_done=bool(frame["done"]))
                return True
            try:
                if frame["op"] != "chunk":
                    raise self._failure(frame, errors)
                chunk = stream.chunk(frame["payload"])
            except UpstreamError as error:
                if not stream.is_finished or error.code not in _OF_TRAILERS:
                    raise
                if frame["op"] == "chunk":
                    continue  # a part of the trailer, which is missing then
                batch += stream.end(is_done=False)
                return True
            if chunk is not None:
                batch.append(chunk)
                trailer.has_gone_on()
        return False

    def _failure(self, frame: dict[str, Any], errors: ErrorReader) -> UpstreamError:
        if frame["op"] == "error":
            return read_litellm_error(frame["told"], errors, self._clock())
        return errors.fault("disconnected", "the litellm worker ended in the middle of the request")

    def _key(self, request: UpstreamRequest) -> str | None:
        variable = request.endpoint.key_variable
        if variable is None:
            # litellm wants some key for servers that need none.
            return "none" if request.endpoint.provider.base_url else None
        key = self._env.get(variable, "").strip()
        if not key:
            raise ConfigError(f"{variable} is unset")
        if any(c in key for c in "\r\n\0"):
            raise ConfigError(f"{variable} holds a line break or NUL")
        self._redact.register(key)
        return key


async def _with_media(request: UpstreamRequest, media: MediaFetcher) -> UpstreamRequest:
    """Put what the request names by address into it; an endpoint that fetches for itself may do without."""
    try:
        return structs.replace(request, body=await media.inlined(request.body))
    except MediaRefused as refused:
        raise UpstreamError(
            FailureClass.ENDPOINT_REQUEST,
            str(refused),
            status=400,
            error_type="image_download_failed",
            param=refused.path,
            provider=request.endpoint.provider.name,
        ) from refused


def _may_be_carried(request: UpstreamRequest) -> bool:
    return request.endpoint.option("carrier") not in ("off", False)  # YAML reads a bare off as false


async def _check_address(provider: Provider) -> None:
    if provider.base_url is None:
        return
    problem = url_problem(provider.base_url, allow_http=provider.allow_http)
    if problem is None and not provider.allow_http:
        problem = await name_problem(provider.base_url)
    if problem is not None:
        raise ConfigError(problem)
