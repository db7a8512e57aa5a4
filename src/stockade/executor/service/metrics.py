"""What Prometheus sees. Nothing of it names a tenant."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from stockade.executor.pool import PoolMetrics
from stockade.port import Execution

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_BUCKETS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
_NOW: Final = frozenset({"parked", "parked_bytes", "making", "waiting", "alive", "most_alive"})
_HIGHEST: Final = frozenset({"wait_seconds_max", "refill_seconds_max"})


class Metrics:
    """One service's, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.executions = Counter(
            "stockade_executor_executions",
            "Executions that ended in a record",
            ["outcome", "tier"],
            registry=self.registry,
        )
        self.problems = Counter(
            "stockade_executor_problems",
            "Executions that ended in a problem instead",
            ["code"],
            registry=self.registry,
        )
        self.running = Gauge(
            "stockade_executor_running", "Executions that run or wait", registry=self.registry
        )
        self.sessions = Gauge(
            "stockade_executor_sessions", "Sessions that are open", registry=self.registry
        )
        self.leases_ended = Counter(
            "stockade_executor_leases_ended",
            "Sessions that were ended by their lease",
            registry=self.registry,
        )
        self.draining = Gauge(
            "stockade_executor_draining", "1 while no calls are taken", registry=self.registry
        )
        self._phases = {
            phase: Histogram(
                f"stockade_executor_{phase}_seconds",
                words,
                registry=self.registry,
                buckets=_BUCKETS,
            )
            for phase, words in (
                ("waited", "Executions' wait for a sandbox"),
                ("set_up", "Files put in, and the program's start"),
                ("ran", "From the program's start until nothing of it lived"),
            )
        }

    def record(self, execution: Execution) -> None:
        """An execution has ended."""
        tier = str(execution.tier) if execution.tier else "none"
        self.executions.labels(str(execution.outcome), tier).inc()
        timings = execution.timings
        self._phases["waited"].observe(timings.waited)
        self._phases["set_up"].observe(timings.set_up)
        self._phases["ran"].observe(timings.ran)

    def watch_pool(self, read: Callable[[], PoolMetrics]) -> None:
        """Tell the pool's numbers, too."""
        self.registry.register(_Pool(read))

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)


class _Pool(Collector):
    def __init__(self, read: Callable[[], PoolMetrics]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        metrics = self._read()
        for field in fields(metrics):
            value = getattr(metrics, field.name)
            name = f"stockade_pool_{field.name}"
            if not isinstance(value, int | float):
                continue
            if field.name in _NOW or field.name in _HIGHEST:
                yield GaugeMetricFamily(name, f"PoolMetrics.{field.name}", value)
            else:
                yield CounterMetricFamily(name, f"PoolMetrics.{field.name}", value)
