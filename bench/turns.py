"""Things timed in turns, so that a ratio holds although the machine's speed changes."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from bench.contestants import BARE, OUTPUT, Absent, Contestant
from bench.report import Promise, Summary, absent_row, milliseconds, ratio
from stockade.executor.environment import LocalEnvironment
from stockade.port import ExecutionRequest

COLUMNS = ("what", "median ms", "p99 ms", "median / bare", "p99 / bare median", "runs")

# After a call of ours: its sandbox is destroyed, the next one parked. No sample pays for another.
_SETTLE_SECONDS = 0.03

Once = Callable[[], Awaitable[float]]
"""Runs it once, with nothing else going on; how long that took."""


async def sample(entries: Mapping[str, Once], rounds: int) -> dict[str, list[float]]:
    """All of them ``rounds`` times, in a random order per round."""
    samples: dict[str, list[float]] = {name: [] for name in entries}
    for once in entries.values():  # caches, the pool
        await once()
    for _ in range(rounds):
        for name in random.sample(list(entries), len(entries)):
            samples[name].append(await entries[name]())
    return samples


async def time_program(program: Contestant) -> float:
    """Until its output is there and nothing of it lives."""
    began = time.perf_counter()
    program.run()
    return time.perf_counter() - began


async def time_call(environment: LocalEnvironment, request: ExecutionRequest) -> float:
    """Until its record is there; the pool is full again when this returns."""
    began = time.perf_counter()
    execution = await environment.run(request)
    took = time.perf_counter() - began
    if not execution.ok or execution.stdout.content != OUTPUT:
        raise RuntimeError(f"{execution.outcome}: {execution.detail}")
    await asyncio.sleep(_SETTLE_SECONDS)
    await environment.warm_up()
    await asyncio.sleep(_SETTLE_SECONDS / 3)
    return took


def rows(summaries: Mapping[str, Summary], absent: Sequence[Absent]) -> tuple[tuple[str, ...], ...]:
    """Below ``COLUMNS``."""
    bare = summaries[BARE.name].median
    measured = [
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
    return (*measured, *(absent_row(len(COLUMNS), other.name, other.reason) for other in absent))


def promises(
    what: str, summaries: Mapping[str, Summary], name: str, median: float, p99: float
) -> tuple[Promise, ...]:
    """Of the one of that name, over the median of bare python: at the most so much."""
    bare = summaries[BARE.name].median
    return tuple(
        Promise(
            f"{what}: {word} over the median of bare python3",
            f"<= {target:.2f}",
            ratio(value, bare),
            value / bare <= target,
        )
        for word, value, target in (
            ("median", summaries[name].median, median),
            ("p99", summaries[name].p99, p99),
        )
    )


def figures(summaries: Mapping[str, Summary]) -> dict[str, Any]:
    """The same for programs."""
    return {
        name: {"median_seconds": s.median, "p99_seconds": s.p99, "runs": s.count}
        for name, s in summaries.items()
    }
