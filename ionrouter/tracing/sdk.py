"""The one door to the OpenTelemetry SDK: a tracer of our own, its batch thread, and what became of the spans.

Only a server that traces imports this, and after listening: 0.1 s and 8 MB. The SDK reads its OTEL_*
variables itself. Nothing global is set: other libraries in this process stay untraced.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ionrouter import __version__
from ionrouter.tracing.attributes import Attributes
from ionrouter.tracing.wishes import Wishes

log = structlog.get_logger(__name__)

Count = Callable[[str, int], None]  # outcome (exported, failed, dropped) and number of spans
MAX_QUEUE = 2048  # the specification's default
EXPORTER_LOG = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_WIRE = TraceContextTextMapPropagator()


class Span:
    """A span that has begun. Times are nanoseconds since the epoch."""

    __slots__ = ("_span", "context")

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self.context: Context = trace.set_span_in_context(span, Context())

    @property
    def is_recording(self) -> bool:
        """False: the sampler left it out."""
        return self._span.is_recording()

    @property
    def traceparent(self) -> str:
        carrier: dict[str, str] = {}
        _WIRE.inject(carrier, self.context)
        return carrier["traceparent"]

    def event(self, name: str, at_ns: int) -> None:
        self._span.add_event(name, timestamp=at_ns)

    def end(self, attributes: Attributes, at_ns: int, *, is_error: bool = False) -> None:
        self._span.set_attributes(attributes)
        if is_error:  # no description: an upstream's words may quote a prompt
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(at_ns)


class Sdk:
    """Tracer, processor and exporter. Spans begin and end on one thread; only exporting has its own."""

    def __init__(self, count: Count) -> None:
        self._exporter = _Exporter(count)
        self._ids = _GivenIds()
        self._provider = TracerProvider(
            resource=_resource(), shutdown_on_exit=False, id_generator=self._ids
        )  # the sampler, limits and OTEL_SDK_DISABLED come from the environment
        self._provider.add_span_processor(_Processor(self._exporter, count))
        self._tracer = self._provider.get_tracer("ionrouter", __version__)

    def serve(
        self, name: str, attributes: Attributes, at_ns: int, headers: Mapping[str, str], wishes: Wishes
    ) -> Span:
        """Begin a request's span: below the caller's `traceparent`, else where its `trace` object says."""
        context = _WIRE.extract(headers, Context())
        if trace.get_current_span(context).get_span_context().is_valid or wishes.trace_id is None:
            return self._start(name, context, SpanKind.SERVER, attributes, at_ns)
        if wishes.span_id is not None:
            parent = SpanContext(wishes.trace_id, wishes.span_id, True, TraceFlags(TraceFlags.SAMPLED))
            context = trace.set_span_in_context(NonRecordingSpan(parent), Context())
        self._ids.given = wishes.trace_id
        try:
            return self._start(name, context, SpanKind.SERVER, attributes, at_ns)
        finally:
            self._ids.given = None

    def call(self, name: str, attributes: Attributes, at_ns: int, parent: Span) -> Span:
        """Begin an attempt's span."""
        return self._start(name, parent.context, SpanKind.CLIENT, attributes, at_ns)

    def _start(self, name: str, context: Context, kind: SpanKind, attributes: Attributes, at_ns: int) -> Span:
        return Span(self._tracer.start_span(name, context, kind, attributes, start_time=at_ns))

    def shut_down(self) -> None:
        """Send what waits and stop; blocks until that is done."""
        self._provider.shutdown()

    def abandon(self) -> None:
        """Give up what is still to be sent: called while `shut_down` takes too long."""
        self._exporter.abandon()


def _resource() -> Resource:
    """Who we are, where the environment does not say it."""
    ours = {"service.name": "ionrouter", "service.version": __version__}
    theirs = OTELResourceDetector().detect().attributes
    return Resource.create({name: value for name, value in ours.items() if name not in theirs})


class _GivenIds(RandomIdGenerator):
    """Random ids, but for a trace that its caller has named."""

    given: int | None = None

    def generate_trace_id(self) -> int:
        return super().generate_trace_id() if self.given is None else self.given

    def is_trace_id_random(self) -> bool:
        return self.given is None


class _Processor(BatchSpanProcessor):
    """The SDK's batches with one difference: a span that finds the queue full is counted."""

    def __init__(self, exporter: _Exporter, count: Count) -> None:
        self._max_waiting = _max_queue()
        super().__init__(exporter, max_queue_size=self._max_waiting)
        self._taker, self._count, self._num_given = exporter, count, 0

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        # Each counter has one writing thread; what is being sent no longer waits.
        if self._num_given - self._taker.num_taken >= self._max_waiting:
            self._count("dropped", 1)
            return
        self._num_given += 1
        super().on_end(span)


def _max_queue() -> int:
    try:
        return int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE", MAX_QUEUE))
    except ValueError:
        return MAX_QUEUE  # as the SDK decides


class _Exporter(SpanExporter):
    """The OTLP exporter, counted; that the collector is away is logged once, not for every batch."""

    def __init__(self, count: Count) -> None:
        self.num_taken = 0
        self._count, self._is_away, self._is_abandoned = count, False, False
        self._words = _FirstWords()
        self._inner = OTLPSpanExporter()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.num_taken += len(spans)
        if self._is_abandoned:
            self._count("dropped", len(spans))
            return SpanExportResult.FAILURE
        self._words.clear()
        result = self._inner.export(spans)
        is_sent = result is SpanExportResult.SUCCESS
        self._count("exported" if is_sent else "failed", len(spans))
        if is_sent == self._is_away:
            self._tell(is_sent)
        return result

    def _tell(self, is_sent: bool) -> None:
        self._is_away = not is_sent
        if is_sent:
            log.info("traces_recovered")
        else:
            log.warning("traces_failed", error=self._words.text[:300])

    def abandon(self) -> None:
        """Interrupt what is being tried, and take no more."""
        self._is_abandoned = True
        self._inner.shutdown()  # type: ignore[no-untyped-call]

    def shutdown(self) -> None:
        if not self._is_abandoned:
            self._inner.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True  # nothing waits here


class _FirstWords(logging.Handler):
    """Keeps the first thing that the SDK's exporter says of a batch, instead of logging every try."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        logger = logging.getLogger(EXPORTER_LOG)
        logger.handlers, logger.propagate = [self], False

    def clear(self) -> None:
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or record.getMessage()
