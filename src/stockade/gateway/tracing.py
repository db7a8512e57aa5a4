"""OpenTelemetry: spans from a request through the executor to the execution.

``traceparent`` is taken in and handed on (W3C Trace Context). Spans are exported only where an
endpoint is configured; without one they are not even made.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    INVALID_SPAN,
    NoOpTracerProvider,
    Span,
    SpanKind,
    Status,
    StatusCode,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import stockade

_CARRIER = TraceContextTextMapPropagator()


class Tracing:
    """Makes spans. ``processor``: what becomes of them; ``None``: nothing."""

    def __init__(self, processor: SpanProcessor | None = None, sampled: float = 1.0) -> None:
        self._provider: TracerProvider | None = None
        provider: trace.TracerProvider = NoOpTracerProvider()
        if processor is not None:
            self._provider = TracerProvider(
                resource=Resource.create(
                    {"service.name": "stockade-gateway", "service.version": stockade.__version__}
                ),
                sampler=ParentBased(TraceIdRatioBased(sampled)),
                shutdown_on_exit=False,
            )
            self._provider.add_span_processor(processor)
            provider = self._provider
        self._tracer = provider.get_tracer("stockade.gateway", stockade.__version__)

    @classmethod
    def to(cls, endpoint: str | None, sampled: float = 1.0) -> "Tracing":
        """Export to an OTLP endpoint over HTTP, like ``http://collector:4318/v1/traces``."""
        if endpoint is None:
            return cls()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        # A collector that is down costs a bounded queue, and no call waits for it.
        exporter = OTLPSpanExporter(endpoint, timeout=5)
        return cls(BatchSpanProcessor(exporter, max_queue_size=2048), sampled)

    @contextmanager
    def span(
        self,
        name: str,
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        parent: Context | None = None,
        attributes: Mapping[str, str | int | float] | None = None,
    ) -> Iterator[Span]:
        """A span around what happens inside; what raises marks it, in its type's name alone."""
        if self._provider is None and parent is None:
            yield INVALID_SPAN
            return
        with self._tracer.start_as_current_span(
            name,
            parent,
            kind=kind,
            attributes=dict(attributes or {}),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                # Not its words: they may be a guest's.
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
                raise

    @staticmethod
    def incoming(headers: Mapping[str, str]) -> Context | None:
        """What a caller's headers say; whatever is no ``traceparent`` counts as none."""
        if "traceparent" not in headers:
            return None
        return _CARRIER.extract(headers, Context())

    @staticmethod
    def outgoing() -> dict[str, str]:
        """The headers that tell the next service whose child it works for."""
        headers: dict[str, str] = {}
        _CARRIER.inject(headers)
        return headers

    def close(self) -> None:
        """Export what is left, within the exporter's deadline."""
        if self._provider is not None:
            self._provider.shutdown()
