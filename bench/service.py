"""What the service adds to a call, and how many calls a second it serves."""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from bench.contestants import BARE, OUTPUT, SOURCE
from bench.report import Promise, Report, Summary, Table, milliseconds
from bench.services import Services
from bench.throughput import take_turns
from bench.turns import COLUMNS, Once, figures, rows, sample, time_program
from stockade.executor.local import open_local
from stockade.port import ExecutionEnvironment, ExecutionRequest, PythonSource, SandboxRequest, Tier

EMBEDDED = "embedded: open_local() in the calling process"
EXECUTOR = "executor over a unix socket"
GATEWAY = "gateway and executor over unix sockets"
ADDED_TARGET = 0.003
CALLERS = (1, 8, 64)
_SETTLE_SECONDS = 0.06
_NAMESPACE = SandboxRequest(tier=Tier.NAMESPACE)
_REQUEST = ExecutionRequest(PythonSource(SOURCE))


async def measure(rounds: int, seconds: float) -> Report:
    """Latency in turns with the embedded executor; then rates of callers at once."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="stockade-bench-"))
        services = await stack.enter_async_context(Services(Path(folder)).running())
        key = services.add_tenant("bench")
        gateway = await stack.enter_async_context(services.open_gateway(key))
        executor = await stack.enter_async_context(services.open_executor("bench"))
        embedded = await stack.enter_async_context(open_local(tiers={Tier.NAMESPACE}))
        entries: dict[str, Once] = {BARE.name: lambda: time_program(BARE)}
        for name, environment in (
            (EMBEDDED, embedded),
            (EXECUTOR, executor),
            (GATEWAY, gateway),
        ):
            entries[name] = _once(environment)
        summaries = {
            name: Summary.of(times) for name, times in (await sample(entries, rounds)).items()
        }
        rates = await take_turns(
            {f"{GATEWAY}, {count} at once": _callers(gateway, count) for count in CALLERS}
            | {f"{EMBEDDED}, 8 at once": _callers(embedded, 8)},
            seconds,
        )
    added = summaries[GATEWAY].median - summaries[EMBEDDED].median
    return Report(
        "service",
        (
            Table(
                "The service: latency of print(1), namespace tier",
                COLUMNS,
                rows(summaries, ()),
                (
                    "In turns, in a random order per round, one call at a time. The gateway checks "
                    "the key, the policy and the budget, and its ledger and audit trail are on disk.",
                ),
            ),
            Table(
                "The service: executions per second",
                ("what", "per second", "worst slice"),
                tuple(
                    (name, f"{sum(values) / len(values):.0f}", f"{min(values):.0f}")
                    for name, values in rates.items()
                ),
                (f"{seconds:g} s each, in slices that take turns.",),
            ),
        ),
        (
            Promise(
                "the service adds to an embedded call, median, one caller",
                f"<= {milliseconds(ADDED_TARGET)} ms",
                f"{milliseconds(added)} ms",
                added <= ADDED_TARGET,
            ),
        ),
        figures(summaries) | {name: {"slices": values} for name, values in rates.items()},
    )


def _once(environment: ExecutionEnvironment) -> Once:
    async def call() -> float:
        began = time.perf_counter()
        await _run(environment)
        took = time.perf_counter() - began
        await asyncio.sleep(_SETTLE_SECONDS)  # the pool is full again
        return took

    return call


def _callers(environment: ExecutionEnvironment, count: int) -> Callable[[float], Awaitable[float]]:
    async def work(seconds: float) -> float:
        began = time.perf_counter()
        done = await asyncio.gather(
            *(_run_until(environment, began + seconds) for _ in range(count))
        )
        return sum(done) / (time.perf_counter() - began)

    return work


async def _run_until(environment: ExecutionEnvironment, end: float) -> int:
    done = 0
    while time.perf_counter() < end:
        await _run(environment)
        done += 1
    return done


async def _run(environment: ExecutionEnvironment) -> None:
    execution = await environment.run(_REQUEST, _NAMESPACE)
    if not execution.ok or execution.stdout.content != OUTPUT:
        raise RuntimeError(f"{execution.outcome}: {execution.detail}")
