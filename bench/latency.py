"""One ``print(1)`` from the call to the captured output: Stockade's ways, and the others'."""

import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from bench.contestants import BARE, OUTPUT, SOURCE, Absent, Contestant, open_contestants
from bench.report import Promise, Report, Summary, Table, absent_row, milliseconds, ratio
from stockade.executor.environment import LocalEnvironment
from stockade.executor.local import open_local
from stockade.port import ExecutionRequest, PythonSource, Tier

COLUMNS = ("what", "median ms", "p99 ms", "median / bare", "p99 / bare median", "runs")
PARKED = "stockade, parked, single use"
MEDIAN_TARGET, P99_TARGET = 0.15, 0.6

# After a call of ours: its sandbox is destroyed, the next one parked. No sample pays for another.
_SETTLE_SECONDS = 0.03

Once = Callable[[], Awaitable[float]]
"""Runs it once, with nothing else going on; how long that took."""


async def measure(rounds: int = 100, only: Collection[str] = ()) -> Report:
    """``only``: beginnings of names; the others are not even started."""

    def wanted(name: str) -> bool:
        return not only or name.startswith(tuple(only))

    entries: dict[str, Once] = {BARE.name: lambda: _time_program(BARE)}
    absent: list[Absent] = []
    notes: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        parked = await stack.enter_async_context(open_local(tiers={Tier.NAMESPACE}))
        on_demand = await stack.enter_async_context(open_local(parked=0, tiers={Tier.NAMESPACE}))
        warm, fresh = (ExecutionRequest(PythonSource(SOURCE, fresh=f)) for f in (False, True))
        entries[PARKED] = lambda: _time_call(parked, warm)
        entries["stockade, on demand, empty pool"] = lambda: _time_call(on_demand, warm)
        entries["stockade, parked, fresh=True"] = lambda: _time_call(parked, fresh)
        others: list[Contestant | Absent] = []
        if wanted(command_line := "stockade run, the whole process"):
            program = Path(sys.executable).parent / "stockade"
            others.append(
                Contestant(
                    command_line, (str(program), "run", "--tier", Tier.NAMESPACE, "-c", SOURCE)
                )
            )
        if not only:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="stockade-bench-"))
            others += stack.enter_context(open_contestants(Path(folder)))
        for other in others:
            if isinstance(other, Absent):
                absent.append(other)
                continue
            entries[other.name] = lambda other=other: _time_program(other)  # type: ignore[misc]
            if other.note:
                notes.append(f"{other.name}: {other.note}.")
        samples = await _sample({n: e for n, e in entries.items() if wanted(n)}, rounds)
    return _report({name: Summary.of(times) for name, times in samples.items()}, absent, notes)


async def _sample(entries: dict[str, Once], rounds: int) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in entries}
    for once in entries.values():  # caches, the pool
        await once()
    for _ in range(rounds):
        for name in random.sample(list(entries), len(entries)):
            samples[name].append(await entries[name]())
    return samples


async def _time_program(program: Contestant) -> float:
    began = time.perf_counter()
    program.run()
    return time.perf_counter() - began


async def _time_call(environment: LocalEnvironment, request: ExecutionRequest) -> float:
    began = time.perf_counter()
    execution = await environment.run(request)
    took = time.perf_counter() - began
    if not execution.ok or execution.stdout.content != OUTPUT:
        raise RuntimeError(f"{execution.outcome}: {execution.detail}")
    await asyncio.sleep(_SETTLE_SECONDS)
    await environment.warm_up()
    await asyncio.sleep(_SETTLE_SECONDS / 3)
    return took


def _report(summaries: dict[str, Summary], absent: list[Absent], notes: list[str]) -> Report:
    bare = summaries[BARE.name].median
    rows: list[tuple[str, ...]] = [
        (
            name,
            milliseconds(summary.median),
            milliseconds(summary.p99),
            ratio(summary.median, bare),
            ratio(summary.p99, bare),
            str(summary.count),
        )
        for name, summary in summaries.items()
    ]
    rows += [absent_row(len(COLUMNS), other.name, other.reason) for other in absent]
    promises = [
        Promise(
            f"a fresh, parked, single-use sandbox: {word} over the median of bare python3",
            f"<= {target:.2f}",
            ratio(value, bare),
            value / bare <= target,
        )
        for word, value, target in (
            ("median", summaries[PARKED].median, MEDIAN_TARGET),
            ("p99", summaries[PARKED].p99, P99_TARGET),
        )
    ]
    return Report(
        "latency",
        (
            Table(
                "Latency of python3 -c 'print(1)', output captured",
                COLUMNS,
                tuple(rows),
                (
                    "In turns, in a random order per round, on an otherwise idle pool. bubblewrap, "
                    "nsjail, crun and runc unshare every namespace, user included, and have the "
                    "same read-only /usr, tmpfs, no capability and our seccomp policy.",
                    *notes,
                ),
            ),
        ),
        tuple(promises),
        {
            name: {"median_seconds": s.median, "p99_seconds": s.p99, "runs": s.count}
            for name, s in summaries.items()
        },
    )
