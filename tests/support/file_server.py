"""A file server on loopback that goes wrong on purpose: cuts, ignored ranges, refusals, slow bodies."""

from __future__ import annotations

import ssl
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


@dataclass
class Served:
    """One path's behaviour. `cuts` are body lengths after which successive answers break off."""

    body: bytes = b""
    content_type: str = "application/octet-stream"
    etag: str | None = '"1"'
    honours_range: bool = True
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)  # successive refusals before it works
    claims_bytes: int | None = None  # Content-Length, if not the truth
    stall: threading.Event | None = None  # after half the body, wait for it
    redirect: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]


class FileServer:
    """`with FileServer() as server: server.files["/a"] = Served(b"...")`; `server.seen` is in order."""

    def __init__(self, *, authorization: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.files: dict[str, Served] = {}
        self.seen: list[Seen] = []
        self.authorization = authorization
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        self._server.daemon_threads = True
        self._scheme = "http"
        if tls is not None:
            self._scheme = "https"
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def netloc(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self.netloc}"

    def seen_of(self, path: str, method: str = "GET") -> list[Seen]:
        return [seen for seen in self.seen if seen.path == path and seen.method == method]

    def __enter__(self) -> FileServer:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for served in self.files.values():
            if served.stall is not None:
                served.stall.set()
        self._server.shutdown()
        self._server.server_close()


def _handler_for(server: FileServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            server.seen.append(Seen(self.command, path, dict(self.headers)))
            served = server.files.get(path)
            if server.authorization is not None and self.headers.get("Authorization") != server.authorization:
                self._refuse(401)
            elif served is None:
                self._refuse(404)
            elif served.statuses:
                self._refuse(served.statuses.pop(0), served.headers)
            elif served.redirect is not None:
                self._refuse(302, {"Location": served.redirect})
            else:
                self._serve(served)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _refuse(self, status: int, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _serve(self, served: Served) -> None:
            start = self._start(served)
            if start is not None and start >= len(served.body):
                self._refuse(416, {"Content-Range": f"bytes */{len(served.body)}"})
                return
            body = served.body[start or 0 :]
            self.send_response(200 if start is None else 206)
            if start is not None:
                total = len(served.body)
                self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
            self.send_header("Content-Type", served.content_type)
            self.send_header("Content-Length", str(served.claims_bytes or len(body)))
            for name, value in served.headers.items():
                self.send_header(name, value)
            if served.etag is not None:
                self.send_header("ETag", served.etag)
            self.end_headers()
            if self.command != "HEAD":
                self._write(served, body)

        def _start(self, served: Served) -> int | None:
            wanted = self.headers.get("Range")
            condition = self.headers.get("If-Range")
            if not served.honours_range or wanted is None or condition not in (None, served.etag):
                return None
            return int(wanted.removeprefix("bytes=").rstrip("-").partition("-")[0])

        def _write(self, served: Served, body: bytes) -> None:
            if served.cuts:
                self.wfile.write(body[: served.cuts.pop(0)])
                self.close_connection = True
            elif served.stall is not None:
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                served.stall.wait(60)
                self.close_connection = True
            else:
                self.wfile.write(body)

    return Handler
