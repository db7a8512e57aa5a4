"""Prometheus metrics. Labels are of closed sets: never a path, a tenant or anything a caller wrote."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from stockade.port import Outcome, Tier

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """What is counted, in a registry of its own."""

    media_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "stockade_gateway_requests_total",
            "HTTP requests that were answered.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self.request_seconds = Histogram(
            "stockade_gateway_request_seconds",
            "From a request's headers to the end of its answer.",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.executions = Counter(
            "stockade_gateway_executions_total",
            "Executions that ended.",
            ("outcome", "tier"),
            registry=self._registry,
        )
        self.waited = Histogram(
            "stockade_gateway_turn_seconds",
            "From an execution's begin until it had a place on an executor.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.refused = Counter(
            "stockade_gateway_refused_total",
            "Problems that were answered.",
            ("code",),
            registry=self._registry,
        )
        self.slow_watchers = Counter(
            "stockade_gateway_slow_watchers_total",
            "Watchers that were left because they did not keep up.",
            registry=self._registry,
        )
        self.executor_up = Gauge(
            "stockade_gateway_executor_up",
            "Whether an executor takes calls.",
            ("executor",),
            registry=self._registry,
        )

    def watch(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """A gauge that is read when somebody asks."""
        Gauge(f"stockade_gateway_{name}", meaning, registry=self._registry).set_function(value)

    def ended(self, outcome: Outcome, tier: Tier | None) -> None:
        """Count an execution."""
        self.executions.labels(outcome.value, tier.value if tier else "none").inc()

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self._registry)
