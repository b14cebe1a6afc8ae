"""The HTTP server around the application: every answer it makes on its own is an envelope too.

aiohttp answers malformed HTTP with text/plain before any middleware runs; this is the place that does not.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import structlog
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from ionrouter.api.responses import error_response
from ionrouter.schema.errors import INTERNAL_ERROR, plain_error

_log = structlog.get_logger(__name__)


class EnvelopeHandler(RequestHandler):
    """A connection whose own errors (bad request line, oversized header) are JSON."""

    __slots__ = ()

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
        phrase = HTTPStatus(status).phrase
        body = INTERNAL_ERROR if status == 500 else plain_error(status, f"malformed HTTP request: {phrase}")
        response = error_response(body)
        response.force_close()
        return response


class EnvelopeServer(web.Server):
    def __init__(self, *args: Any, handler_options: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._handler_options = handler_options

    def __call__(self) -> RequestHandler:
        return EnvelopeHandler(self, loop=self._loop, **self._handler_options)


class EnvelopeRunner(web.AppRunner):
    """An AppRunner that makes EnvelopeServers. A client that leaves cancels its handler."""

    __slots__ = ("_handler_options",)

    def __init__(self, app: web.Application, *, shutdown_timeout: float = 5.0) -> None:
        super().__init__(app, shutdown_timeout=shutdown_timeout)
        self._handler_options = {"access_log": None}

    async def _make_server(self) -> web.Server:
        plain = await super()._make_server()
        return EnvelopeServer(
            plain.request_handler,
            request_factory=plain.request_factory,
            handler_cancellation=True,
            handler_options=self._handler_options,
        )
