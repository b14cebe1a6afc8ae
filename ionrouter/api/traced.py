"""The outermost middleware of a server that traces: begins and ends the span of each request for a model."""

from __future__ import annotations

from collections.abc import Collection

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from ionrouter.api.doors import Handler
from ionrouter.api.state import GENERATION_ID, TRACE
from ionrouter.tracing.attributes import Arrival
from ionrouter.tracing.service import Tracing

PARENT_HEADERS = ("traceparent", "tracestate")  # W3C Trace Context


def traced(tracing: Tracing, handlers: Collection[Handler]) -> Middleware:
    """Make the middleware; requests to other handlers pass by."""

    @web.middleware
    async def trace(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.match_info.handler not in handlers:
            return await handler(request)
        span = tracing.request(_arrival(request))
        if span is None:
            return await handler(request)
        request[TRACE] = span
        status = None
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            span.end(status, request.get(GENERATION_ID))

    return trace


def _arrival(request: web.Request) -> Arrival:
    resource = request.match_info.route.resource
    found = {name: ",".join(request.headers.getall(name, ())) for name in PARENT_HEADERS}
    return Arrival(
        method=request.method,
        route=resource.canonical if resource is not None else request.path,
        path=request.path,
        scheme=request.scheme,
        host=request.headers.get(hdrs.HOST),
        user_agent=request.headers.get(hdrs.USER_AGENT),
        headers={name: value for name, value in found.items() if value},
    )
