"""The HTTP server around the application: every answer it makes on its own is an envelope too.

aiohttp answers malformed HTTP with text/plain before any middleware runs; this is the place that does not.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, cast

import structlog
from aiohttp import StreamReader, web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler, RequestPayloadError, _ErrInfo

from ionrouter.api.responses import OWN_HEADERS, error_response
from ionrouter.schema.errors import INTERNAL_ERROR, ErrorBody, plain_error

_log = structlog.get_logger(__name__)

HEAD_TIMEOUT_S = 60.0  # from a connection's begin to its first request's head; aiohttp would wait for ever
KEEPALIVE_S = 120.0  # idle between two requests
UNSENT_BYTES = 32 * 1024  # from there on a client that reads slowly is waited for; the kernel has more


class EnvelopeHandler(RequestHandler):
    """A connection whose own errors (bad request line, oversized header) are JSON."""

    __slots__ = ("_body", "_head_timeout_s", "_head_timer")

    def __init__(self, *args: Any, head_timeout_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_timeout_s = head_timeout_s
        self._head_timer: asyncio.TimerHandle | None = None
        self._body: StreamReader | None = None  # of the last request whose head came

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; who asks nothing, or never ends its head, must not hold one of the process's files."""
        super().connection_made(transport)
        cast(asyncio.Transport, transport).set_write_buffer_limits(high=UNSENT_BYTES)
        self._head_timer = self._loop.call_later(self._head_timeout_s, self._end_if_silent)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End; nothing is kept of it."""
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read; whoever waits for a body hears at once that what came is none.

        aiohttp's parser forgets the body it was in, and keeps its error for when that request has its answer.
        """
        super().data_received(data)
        if not self._messages:
            return
        message, body = self._messages[-1]
        if not isinstance(message, _ErrInfo):
            self._body = body
        elif self._body is not None and not self._body.is_eof() and self._body.exception() is None:
            fault = RequestPayloadError(_reason(message.message))
            self._body.set_exception(fault)  # ends the connection, too

    def _end_if_silent(self) -> None:
        self._head_timer = None
        if self._request_count == 0:
            self.force_close()

    def log_exception(self, *args: Any, **options: Any) -> None:
        """Log a fault; a body that was found out as broken behind its answer is the client's, and none."""
        if isinstance(options.get("exc_info"), RequestPayloadError):
            _log.debug("request_malformed", status=400, error="RequestPayloadError")
        else:
            super().log_exception(*args, **options)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer in the envelope and close the connection; a client's bad HTTP is no error of ours to log."""
        if status >= 500:
            super().handle_error(request, status, exc, message)  # logs, and raises if bytes are out already
        elif request.writer.output_size > 0:
            raise ConnectionError("the response has begun, no error can follow it")
        else:
            _log.debug("request_malformed", status=status, error=type(exc).__name__)
        body = INTERNAL_ERROR if status == 500 else _malformed(status, exc, message)
        response = error_response(body)
        response.headers.update(OWN_HEADERS)  # no application sees it, to add them
        response.force_close()
        return response


def _malformed(status: int, exc: BaseException | None, message: str | None) -> ErrorBody:
    """Say what of a request is no HTTP, without what was sent."""
    if isinstance(exc, LineTooLong):
        return plain_error(431, f"the request line or a header is longer than {exc.args[1]} bytes")
    return plain_error(status, f"malformed HTTP request: {_reason(message) or HTTPStatus(status).phrase}")


def _reason(message: str | None) -> str:
    """Cut off what was sent."""
    return (message or "").partition("\n")[0].partition(": b'")[0].rstrip(" :")[:200]


class EnvelopeServer(web.Server):
    def __init__(self, *args: Any, handler_options: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._handler_options = handler_options

    def __call__(self) -> RequestHandler:
        return EnvelopeHandler(self, loop=self._loop, **self._handler_options)


class EnvelopeRunner(web.AppRunner):
    """An AppRunner that makes EnvelopeServers. A client that leaves cancels its handler."""

    __slots__ = ("_handler_options",)

    def __init__(
        self,
        app: web.Application,
        *,
        shutdown_timeout: float = 5.0,
        head_timeout_s: float = HEAD_TIMEOUT_S,
        keepalive_s: float = KEEPALIVE_S,
    ) -> None:
        super().__init__(app, shutdown_timeout=shutdown_timeout)
        self._handler_options = {
            "access_log": None,
            "head_timeout_s": head_timeout_s,
            "auto_decompress": False,  # ionrouter.api.body does it, within bounds
            "keepalive_timeout": keepalive_s,  # aiohttp's own is an hour, and each connection holds a file
        }

    async def _make_server(self) -> web.Server:
        plain = await super()._make_server()
        return EnvelopeServer(
            plain.request_handler,
            request_factory=plain.request_factory,
            handler_cancellation=True,
            handler_options=self._handler_options,
        )
