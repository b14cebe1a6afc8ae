"""An OpenTelemetry collector on loopback: takes OTLP over HTTP in protobuf, in a thread with its own loop.

It knows nothing of ionrouter. `status` is what it answers; `hangs` lets it take a batch and say nothing.
"""

from __future__ import annotations

import asyncio
import gzip
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

GUARD_S = 60.0
KINDS = {2: "server", 3: "client"}
STATUSES = {0: "unset", 1: "ok", 2: "error"}


@dataclass(frozen=True)
class Span:
    """One span as it came; ids in hexadecimal, times in nanoseconds."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    status: str
    message: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    events: Mapping[str, int]  # name -> time
    resource: Mapping[str, Any]


@dataclass
class Collector:
    """`with Collector() as c:` ... `c.wait(lambda spans: len(spans) >= 2)`."""

    status: int = 200
    hangs: bool = False
    spans: list[Span] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)  # of each export
    port: int = 0
    _stop: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Collector:
        listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(listening)), daemon=True)
        self._thread.start()
        assert listening.wait(GUARD_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._thread.join(GUARD_S)

    async def _serve(self, listening: threading.Event) -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stopped.set)
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port)
        await site.start()
        self.port = runner.addresses[0][1]
        listening.set()
        await stopped.wait()
        await runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/x-protobuf", request.content_type
        self.headers.append(dict(request.headers))
        data = await request.read()
        if self.hangs:
            await asyncio.sleep(GUARD_S)
        if self.status == 200:
            self.spans += decoded(data)
        body = ExportTraceServiceResponse().SerializeToString()
        return web.Response(status=self.status, body=body, content_type="application/x-protobuf")

    def wait(self, enough: Callable[[list[Span]], Any]) -> list[Span]:
        """Wait until what came is enough."""
        deadline = time.monotonic() + GUARD_S
        while not enough(self.spans):
            assert time.monotonic() < deadline, self.spans
            time.sleep(0.02)
        return list(self.spans)


def decoded(data: bytes) -> list[Span]:
    """The spans of one export."""
    request = ExportTraceServiceRequest.FromString(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    return [
        Span(
            name=span.name,
            kind=KINDS.get(span.kind, str(span.kind)),
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            status=STATUSES[span.status.code],
            message=span.status.message,
            start_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
            attributes=_plain(span.attributes),
            events={event.name: event.time_unix_nano for event in span.events},
            resource=_plain(group.resource.attributes),
        )
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def _plain(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs if isinstance(pair, KeyValue)}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
