"""Fresh sandboxes per second, sustained, beside loops of bubblewrap and of bare python."""

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.contestants import BARE, OUTPUT, SOURCE, Absent, Contestant, open_bubblewrap
from bench.report import Promise, Report, Table, absent_row, ratio
from stockade.executor.environment import LocalEnvironment
from stockade.executor.local import open_local
from stockade.port import ExecutionRequest, PythonSource, Tier

SLICES = 5
TARGET = 5.0

Slice = Callable[[float], Awaitable[float]]
"""Works for so many seconds; how many executions per second it did."""


async def measure(seconds: float = 10.0, callers: int = 4) -> Report:
    """``seconds`` for each contestant, in ``SLICES`` slices that take turns."""
    ours = f"stockade, {callers} callers, pool on"
    loop = "bubblewrap, 1 loop"
    absent: list[Absent] = []
    with tempfile.TemporaryDirectory(prefix="stockade-bench-") as folder:
        bubblewrap = open_bubblewrap(Path(folder))
        async with open_local(tiers={Tier.NAMESPACE}) as environment:
            entries: dict[str, Slice] = {ours: lambda s: calls(environment, callers, s)}
            if isinstance(bubblewrap, Absent):
                absent.append(bubblewrap)
            else:
                entries[loop] = loops_of([bubblewrap])
                entries["bubblewrap, 2 loops at once"] = loops_of([bubblewrap] * 2)
                entries["bubblewrap, 4 loops at once"] = loops_of([bubblewrap] * 4)
            entries["bare python3, 2 loops at once"] = loops_of([BARE] * 2)
            rates = await take_turns(entries, seconds)
    return report(
        "throughput",
        "Throughput: executions of print(1), each in a fresh sandbox",
        "fresh sandboxes per second, over a loop of bubblewrap",
        Race(rates, absent, ours, loop, seconds),
        TARGET,
        0,
    )


@dataclass(frozen=True)
class Race:
    """Who took turns for how long, and how they did."""

    rates: Mapping[str, list[float]]
    """Executions per second, for each slice."""
    absent: Sequence[Absent]
    ours: str
    rival: str
    """Whom the promise is about."""
    seconds: float


def report(name: str, title: str, promise: str, race: Race, target: float, digits: int) -> Report:
    """The table of a race, and the promise that is judged by it."""
    rates, ours = race.rates, race.ours
    means = {contestant: statistics.mean(values) for contestant, values in rates.items()}
    rows: list[tuple[str, ...]] = [
        (
            contestant,
            f"{mean:.{digits}f}",
            f"{min(rates[contestant]):.{digits}f}",
            ratio(means[ours], mean) if ours in means else "-",
        )
        for contestant, mean in means.items()
    ]
    rows += [absent_row(4, other.name, other.reason) for other in race.absent]
    promises = []
    if ours in means and race.rival in means:
        over = means[ours] / means[race.rival]
        measured = ratio(means[ours], means[race.rival])
        promises.append(Promise(promise, f">= {target:.2f}", measured, over >= target))
    note = (
        f"{race.seconds:g} s each, in {SLICES} slices that take turns. A slice of Stockade's "
        "ends when its pool is full again: what was parked before costs as much."
    )
    columns = ("what", "per second", "worst slice", "stockade is faster by")
    return Report(
        name,
        (Table(title, columns, tuple(rows), (note,)),),
        tuple(promises),
        {
            contestant: {"per_second": mean, "slices": rates[contestant]}
            for contestant, mean in means.items()
        },
    )


async def take_turns(entries: Mapping[str, Slice], seconds: float) -> dict[str, list[float]]:
    """``seconds`` for each, in ``SLICES`` slices, in a random order; the rate of each slice."""
    rates: dict[str, list[float]] = {name: [] for name in entries}
    for work in entries.values():
        await work(0.1)
    for _ in range(SLICES):
        for name in random.sample(list(entries), len(entries)):
            rates[name].append(await entries[name](seconds / SLICES))
    return rates


async def calls(environment: LocalEnvironment, callers: int, seconds: float) -> float:
    """Executions per second of so many callers; ends when the pool is full again."""
    request = ExecutionRequest(PythonSource(SOURCE))

    async def call_until(deadline: float) -> int:
        done = 0
        while time.perf_counter() < deadline:
            execution = await environment.run(request)
            if not execution.ok or execution.stdout.content != OUTPUT:
                raise RuntimeError(f"{execution.outcome}: {execution.detail}")
            done += 1
        return done

    await environment.warm_up()
    began = time.perf_counter()
    done = await asyncio.gather(*(call_until(began + seconds) for _ in range(callers)))
    await environment.warm_up()
    return sum(done) / (time.perf_counter() - began)


def loops_of(contestants: Sequence[Contestant]) -> Slice:
    """Each of them, one time after the other, in a thread of its own."""

    def run_until(contestant: Contestant, deadline: float) -> int:
        done = 0
        while time.perf_counter() < deadline:
            contestant.run()
            done += 1
        return done

    def work(seconds: float) -> float:
        # A thread per loop: it holds the interpreter's lock for about a millisecond per run.
        with ThreadPoolExecutor(len(contestants)) as threads:
            began = time.perf_counter()
            deadlines = [began + seconds] * len(contestants)
            done = sum(threads.map(run_until, contestants, deadlines))
            return done / (time.perf_counter() - began)

    # In the event loop's own thread: nothing else is to run meanwhile.
    async def work_alone(seconds: float) -> float:
        return work(seconds)

    return work_alone
