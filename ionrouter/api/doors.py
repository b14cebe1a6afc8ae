"""Which requests come in at all: Host, Origin, content type, keys, the error envelope around everything.

Without keys any web page a user opens could drive a server on their loopback, either directly (Origin) or
by DNS rebinding (Host); a form or a text/plain POST needs no CORS preflight, hence the content type.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from urllib.parse import urlsplit

import structlog
from aiohttp import hdrs, web

from ionrouter.addresses import address_of, client_address
from ionrouter.api.envelopes import refusal
from ionrouter.api.errors import error_body
from ionrouter.api.guard import Access, WrongKeys, authenticate
from ionrouter.api.readiness import Phase
from ionrouter.api.responses import OWN_HEADERS
from ionrouter.api.state import EDGE, GENERATION_ID, KEY, ROUTED, Edge
from ionrouter.errors import ConfigError, IonrouterError, RequestError
from ionrouter.schema.common import new_generation_id
from ionrouter.schema.errors import INTERNAL_ERROR, ErrorBody, plain_error, retry_after_seconds
from ionrouter.settings import Settings, is_loopback
from ionrouter.store.keys import ApiKey

_log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
WITH_BODY = (hdrs.METH_POST, hdrs.METH_PATCH)
ALWAYS_ALLOWED_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
CORS_HEADERS = {
    "Access-Control-Allow-Methods": "GET, POST, PATCH, DELETE, OPTIONS",
    "Access-Control-Expose-Headers": "X-Generation-Id, X-Ionrouter-Route, X-Ionrouter-Dropped, "
    "X-Ionrouter-Notes, Retry-After, X-OpenRouter-Cache-Status, X-OpenRouter-Cache-TTL, "
    "X-OpenRouter-Cache-Age, X-OpenRouter-Cache-Source-Id",
    "Access-Control-Max-Age": "600",
}
_HEADER_NAMES = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")
MAX_HEADER_NAMES = 4096  # characters


def asks_for_keys(settings: Settings, *, has_inference_key: bool) -> bool:
    """Decide whether callers need keys; raises ConfigError rather than listen unprotected by accident."""
    if settings.require_keys and settings.no_auth:
        raise ConfigError("require_keys and no_auth contradict each other; set one of them")
    if settings.no_auth or (is_loopback(settings.host) and not settings.require_keys):
        return False
    if not has_inference_key:
        raise ConfigError(
            f"refusing to listen on {settings.host} without keys: "
            f"make one with `ionrouter keys create NAME`, or {_without_keys(settings)}"
        )
    return True


def _without_keys(settings: Settings) -> str:
    """What lets these settings serve without a key: nothing that would be refused in its turn."""
    if is_loopback(settings.host):
        return "leave out --require-keys (IONROUTER_REQUIRE_KEYS) to serve everybody on this machine"
    instead = " instead of --require-keys (IONROUTER_REQUIRE_KEYS)" if settings.require_keys else ""
    return f"pass --no-auth{instead} to serve everybody who can reach this address"


def check_host(host_header: str | None, settings: Settings) -> None:
    """Refuse a foreign Host name, as a rebound DNS name would bring; raises RequestError 403."""
    host = _host_name(host_header or "")
    allowed = {name.lower() for name in settings.allowed_hosts}
    if host in ALWAYS_ALLOWED_HOSTS or host in allowed or "*" in allowed:
        return
    # A name can be rebound, a number cannot: with --no-auth on a network address, numbers are fine.
    if not is_loopback(settings.host) and address_of(host) is not None:
        return
    raise RequestError(
        f"this server does not answer to the host name '{host[:100]}'; "
        "add it to IONROUTER_ALLOWED_HOSTS if it should",
        status=403,
        error_type="permission_denied",
    )


def check_origin(request: web.Request, cors_origins: Collection[str]) -> None:
    """Refuse web pages of other sites unless configured; raises RequestError 403."""
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is None or _allows_origin(origin, cors_origins):
        return
    if urlsplit(origin).netloc.lower() == request.headers.get(hdrs.HOST, "").lower() and origin != "null":
        return
    raise RequestError(
        "requests from web pages of other origins are refused; list the origin in IONROUTER_CORS_ORIGINS",
        status=403,
        error_type="permission_denied",
    )


def check_content_type(request: web.Request) -> None:
    if request.method in WITH_BODY and request.content_type != "application/json":
        raise RequestError(
            f"{request.method} needs Content-Type: application/json", status=415, error_type="invalid_request"
        )


def _host_name(host_header: str) -> str:
    """Strip the port: "localhost:8080" -> "localhost", "[::1]:8080" -> "::1"."""
    if host_header.startswith("["):
        return host_header[1:].partition("]")[0].lower()
    return host_header.partition(":")[0].lower().rstrip(".")


def _allows_origin(origin: str, cors_origins: Collection[str]) -> bool:
    return origin in cors_origins or "*" in cors_origins


class Doors:
    """The middlewares, outermost first: `envelope`, then `admit`."""

    def __init__(self, edge: Edge, access: Mapping[Handler, Access]) -> None:
        self._edge, self._access = edge, access
        self._wrong_keys = WrongKeys(edge.settings.max_wrong_keys)

    @web.middleware
    async def envelope(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn every error into the envelope with a status; nothing else leaves as an error."""
        request[GENERATION_ID] = new_generation_id(time.time())
        in_flight = self._edge.in_flight
        in_flight.enter()  # here, where its body may be arriving still: a stopping server waits for that too
        try:
            response = await handler(request)
        except web.HTTPException as error:
            response = _refused(request, _framework_error(request, error))
        except IonrouterError as error:
            response = _refused(request, error_body(error))
        except Exception:
            _log.exception("request_crashed", path=request.path, request=request[GENERATION_ID])
            response = refusal(request, INTERNAL_ERROR)
        except asyncio.CancelledError:  # the client left, or the server stops
            ended = in_flight.end_of_current()
            if ended is None or request.writer.output_size > 0:  # an answer has begun
                raise
            response = _refused(request, error_body(ended))
        finally:
            in_flight.leave()
        if self._edge.readiness.phase is Phase.DRAINING and not response.prepared:
            response.force_close()  # the next request of this connection belongs to another server
        return response

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the caller, then call the handler."""
        edge, settings = self._edge, self._edge.settings
        if not edge.asks_for_keys:
            check_host(request.headers.get(hdrs.HOST), settings)
            check_origin(request, settings.cors_origins)
        if request.method == hdrs.METH_OPTIONS and settings.cors_origins:
            return web.Response(status=204)
        access = self._access.get(handler, Access.OPEN)  # innermost of the middlewares: the route's own
        key = self._authenticate(request, access)
        if key is not None:
            request[KEY] = key
        check_content_type(request)
        return await handler(request)

    def _authenticate(self, request: web.Request, access: Access) -> ApiKey | None:
        edge = self._edge
        try:
            return authenticate(request, access, edge.keys, asks_for_keys=edge.asks_for_keys)
        except RequestError as error:
            is_wrong = error.status == 401
            wait_s = self._wrong_keys.add(_address(request), time.monotonic()) if is_wrong else None
            if wait_s is None:
                raise
            raise RequestError(
                "too many requests with a wrong API key from this address",
                status=429,
                error_type="rate_limit_exceeded",
                headers={"Retry-After": str(retry_after_seconds(wait_s))},
            ) from None


def _address(request: web.Request) -> str:
    """Whom the request is from. Other headers than this one most proxies hand on as anybody wrote them."""
    forwarded = request.headers.getall("X-Forwarded-For", ())
    return client_address(request.remote or "", forwarded, request.app[EDGE].settings.trusted_proxies)


def _asked_headers(request: web.Request) -> dict[str, str]:
    """Allow an allowed page all the headers that it asks for: SDKs send a dozen that nobody reads here.

    `*` would not do: it leaves out Authorization.
    """
    asked = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "")
    is_fine = len(asked) <= MAX_HEADER_NAMES and _HEADER_NAMES.fullmatch(asked)
    return {hdrs.ACCESS_CONTROL_ALLOW_HEADERS: asked} if is_fine else {}


def _refused(request: web.Request, body: ErrorBody) -> web.Response:
    """Answer an error. What never reached the router is counted and logged here, without its words."""
    if ROUTED not in request:
        request.app[EDGE].metrics.refuse(body.status)
        # Wrong keys and unknown paths come from scanners, by the thousand.
        log = _log.debug if body.status in (401, 404) else _log.info
        log(
            "request_refused",
            request=request[GENERATION_ID],
            address=_address(request),
            path=request.path[:200],
            status=body.status,
            param=body.param,
        )
    response = refusal(request, body)
    if hdrs.EXPECT in request.headers and not request.content.is_eof():
        response.force_close()  # its body may come or not: what follows here is nobody's request
    return response


def _framework_error(request: web.Request, error: web.HTTPException) -> ErrorBody:
    """404, 405, 413 and their like, as aiohttp raises them."""
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    message = {
        404: f"no such route: {request.method} {request.path}",
        405: f"{request.method} is not allowed on {request.path}; allowed: {headers.get('Allow', '')}",
    }.get(error.status, f"{error.status}: {error.reason}")
    return plain_error(error.status, message, headers=headers)


async def expect(request: web.Request) -> web.StreamResponse | None:
    """Look at `Expect: 100-continue`, which curl sends with large bodies; runs before every middleware.

    Whoever reads the body asks for it (ionrouter.api.body), so that nobody uploads for a refusal.
    """
    if request.headers.get(hdrs.EXPECT, "").lower() != "100-continue":
        return refusal(request, plain_error(417, "the only expectation met here is 100-continue"))
    return None


async def decorate(request: web.Request, response: web.StreamResponse) -> None:
    """Add what every response carries, streams included, just before its headers go out."""
    headers = response.headers
    if request.method == hdrs.METH_POST and (request_id := request.get(GENERATION_ID)) is not None:
        headers.setdefault("X-Generation-Id", request_id)
    headers.update(OWN_HEADERS)
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None and _allows_origin(origin, request.app[EDGE].settings.cors_origins):
        headers.update({"Access-Control-Allow-Origin": origin, "Vary": "Origin", **CORS_HEADERS})
        if request.method == hdrs.METH_OPTIONS:
            headers.update({"Vary": "Origin, Access-Control-Request-Headers", **_asked_headers(request)})
