"""The HTTP client of the bare translation: litellm's handlers call it, our own connections carry it.

It stands where litellm's AsyncHTTPHandler would be, fails as that fails, and never follows a redirect or
tries again. Runs in the worker; never imports litellm.
"""

from __future__ import annotations

import asyncio
import json
import math
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import httpx

from ionrouter.providers.answer import Answer
from ionrouter.providers.http_faults import (
    ConnectTooLong,
    HttpFault,
    Malformed,
    NoFileLeft,
    NoPlaceLeft,
    NotConnected,
    NotResolved,
)
from ionrouter.providers.litellm_capture import CAPTURED, keep_instead, note_body
from ionrouter.providers.outgoing import Outgoing, checked_headers

# What httpx's client adds where a handler does not say otherwise. Identity: gzip would hold events back.
_DEFAULTS = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "httpx"}
MAX_ANSWER_BYTES = 256 * 1024 * 1024  # a whole answer, with images
DRAIN_S = 0.5  # how long the end of a body may take for its connection to be kept


class _Body(httpx.AsyncByteStream):
    """An answer's body as it comes; its connection is kept when the end was read."""

    def __init__(self, answer: Answer, read_s: float | None, max_bytes: float) -> None:
        self._answer = answer
        self._read_s = read_s
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_read = 0
        while True:
            with _as_httpx():
                async with asyncio.timeout(self._read_s):
                    data = await self._answer.readany()
                num_read += len(data)
                if num_read > self._max_bytes:
                    raise Malformed("the answer is too long")
            if not data:
                self._answer.release(DRAIN_S)
                return
            yield data

    async def aclose(self) -> None:
        self._answer.close()


@cache
def client_class(litellm: Any) -> type:
    """Return the class, a subclass of litellm's: handlers ask for one."""
    http_handler = litellm.llms.custom_httpx.http_handler

    class BareClient(http_handler.AsyncHTTPHandler):  # type: ignore[misc, name-defined]
        """Serves one call. `connect_s` and `allow_http` are its endpoint's."""

        def __init__(self, outgoing: Outgoing, **limits: Any) -> None:
            self._send = partial(_send, outgoing, limits)

        def __del__(self) -> None: ...  # nothing of its own to close

        async def post(self, url: str, *, stream: bool = False, **request: Any) -> httpx.Response:
            started_at = time.time()
            try:
                response = await self._send(url, stream, **request)
                response.raise_for_status()
                return response
            except httpx.TimeoutException as error:
                http_handler._raise_timeout(error, started_at)
            except httpx.HTTPStatusError as error:
                await http_handler._raise_masked_async_error(error, stream)
            raise AssertionError("both raise")

    return BareClient


async def _send(
    outgoing: Outgoing,
    limits: dict[str, Any],
    url: str,
    stream: bool,
    *,
    headers: dict[str, str],
    data: str | None = None,
    json: Any = None,
    timeout: Any = None,  # noqa: ASYNC109 (litellm's name)
    logging_obj: Any = None,
) -> httpx.Response:
    """Send one request with litellm's arguments and wait for the head, without `stream` for the whole."""
    text = _json(json) if data is None else data
    sent = checked_headers(_headers(headers, is_json=data is None))
    if CAPTURED.get() is not None:
        keep_instead(httpx.Request("POST", url, headers=sent, content=text))
    request = httpx.Request("POST", url)  # for errors: nothing is sent of it
    read_s = timeout.read if isinstance(timeout, httpx.Timeout) else timeout
    with _as_httpx():
        async with asyncio.timeout(read_s):
            answer = await outgoing.send("POST", str(request.url), sent, text.encode(), **limits)
    # Compressed all the same: it was inflated on the way.
    told = {name: value for name, value in answer.headers.items() if name != "content-encoding"}
    if answer.status >= 300:
        why = await _read_refusal(answer)
        return httpx.Response(answer.status, headers=told, content=why, request=request)
    body = _Body(answer, read_s, math.inf if stream else MAX_ANSWER_BYTES)
    response = httpx.Response(answer.status, headers=told, stream=body, request=request)
    if not stream:
        note_body(response)
        try:
            await response.aread()
        except BaseException:
            answer.close()
            raise
    return response


async def _read_refusal(answer: Answer) -> bytes:
    try:
        return await answer.read_refusal()
    finally:
        answer.release(0.0)


def _headers(given: dict[str, str], *, is_json: bool) -> dict[str, str]:
    names = {name.lower() for name in given}
    defaults = {**_DEFAULTS, "Content-Type": "application/json"} if is_json else _DEFAULTS
    return {**{name: value for name, value in defaults.items() if name.lower() not in names}, **given}


def _json(value: Any) -> str:
    """As httpx writes the JSON of a request."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


@contextmanager
def _as_httpx() -> Iterator[None]:
    """Raise what litellm's client would have raised."""
    try:
        yield
    except TimeoutError as error:
        raise httpx.ReadTimeout("the upstream took too long") from error
    except ConnectTooLong as error:
        raise httpx.ConnectTimeout("connecting took too long") from error
    except NoPlaceLeft as error:
        raise httpx.PoolTimeout("no connection came free") from error
    except (NotConnected, NotResolved, NoFileLeft, ssl.SSLError) as error:
        raise httpx.ConnectError("cannot connect") from error
    except (HttpFault, OSError) as error:
        raise httpx.ReadError("the connection broke") from error
