"""Sends the console: files of this package, and nothing else. Anyone may have them; the API asks for keys.

The page runs no script, style or picture but its own, speaks to no other server, and cannot be framed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import hdrs, web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

FOLDER = Path(__file__).with_name("static")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for anew, and answered with 304 while it is the same
}


def pages() -> list[tuple[str, Handler]]:
    """The paths of the console, each with its handler, all for GET."""
    return [
        ("/", _to_console),
        ("/console", _to_console),
        ("/console/", _page),
        ("/console/{name}", _asset),
    ]


async def _to_console(_request: web.Request) -> web.StreamResponse:
    """Lead there from both paths: relative, so that a proxy may serve it all under a path of its own."""
    return web.Response(status=302, headers={hdrs.LOCATION: "console/"})


async def _page(_request: web.Request) -> web.StreamResponse:
    return _file("index.html")


async def _asset(request: web.Request) -> web.StreamResponse:
    return _file(request.match_info["name"])


def _file(name: str) -> web.StreamResponse:
    """One file of the folder, by its bare name; raises HTTPNotFound for any other."""
    path = FOLDER / name
    if path.suffix not in TYPES or name not in {entry.name for entry in FOLDER.iterdir()}:
        raise web.HTTPNotFound
    return web.FileResponse(path, headers={**HEADERS, hdrs.CONTENT_TYPE: TYPES[path.suffix]})
