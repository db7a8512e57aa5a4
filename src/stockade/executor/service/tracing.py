"""One span for each execution, below the caller's own."""

import time
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import Scope

from stockade.executor.service.bodies import header
from stockade.port import Execution, Outcome

_OURS: Final = frozenset({Outcome.LOST, Outcome.UNAVAILABLE})


class Tracing:
    """Makes spans where a provider was configured, and costs nothing where none was."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._tracer = None if provider is None else provider.get_tracer("stockade.executor")
        self._propagator = TraceContextTextMapPropagator()

    def parent(self, scope: Scope) -> Context | None:
        """The caller's span, as ``traceparent`` says."""
        if self._tracer is None:
            return None
        value = header(scope, b"traceparent")
        carrier = {} if value is None else {"traceparent": value.decode("latin-1")}
        return self._propagator.extract(carrier, Context())

    def record(
        self,
        parent: Context | None,
        began: float,
        identity: str,
        sandbox: str | None,
        ended: Execution | str,
    ) -> None:
        """``began``: on the monotonic clock. ``ended``: a record, or why there is none."""
        if self._tracer is None:
            return
        now = time.time_ns()
        span = self._tracer.start_span(
            "executor.execution",
            context=parent,
            kind=SpanKind.SERVER,
            start_time=now - int((time.monotonic() - began) * 1e9),
        )
        span.set_attribute("stockade.execution.id", identity)
        if sandbox is not None:
            span.set_attribute("stockade.sandbox.id", sandbox)
        if isinstance(ended, str):
            span.set_status(Status(StatusCode.ERROR, ended))
        else:
            span.set_attributes(
                {
                    "stockade.outcome": str(ended.outcome),
                    "stockade.tier": str(ended.tier or "none"),
                    "stockade.waited": ended.timings.waited,
                    "stockade.set_up": ended.timings.set_up,
                    "stockade.ran": ended.timings.ran,
                }
            )
            if ended.outcome in _OURS:
                span.set_status(Status(StatusCode.ERROR, str(ended.outcome)))
        span.end(end_time=now)
