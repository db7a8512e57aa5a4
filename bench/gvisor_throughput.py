"""Fresh gVisor sandboxes per second, sustained, beside a loop of ``runsc run``."""

import contextlib
import statistics
import tempfile
from pathlib import Path

from bench.contestants import Absent, Contestant
from bench.report import Promise, Report, Table, absent_row, ratio
from bench.runsc import open_runsc
from bench.throughput import SLICES, Slice, calls, loops_of, take_turns
from stockade.executor.local import open_local
from stockade.port import Tier, Unavailable

TARGET = 2.0
LOOP = "runsc run, 1 loop"


async def measure(seconds: float = 10.0, callers: int = 4) -> Report:
    """``seconds`` for each contestant, in ``SLICES`` slices that take turns."""
    ours = f"stockade, gVisor, {callers} callers, pool on"
    entries: dict[str, Slice] = {}
    absent: list[Absent] = []
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="stockade-bench-"))
        try:
            environment = await stack.enter_async_context(open_local(tiers={Tier.GVISOR}))
            entries[ours] = lambda s: calls(environment, callers, s)
        except Unavailable as error:
            absent.append(Absent(ours, str(error)))
        found = stack.enter_context(open_runsc(Path(folder), runs=2, execute=False))
        loops = [contestant for contestant in found if isinstance(contestant, Contestant)]
        if len(loops) == len(found):
            entries[LOOP] = loops_of(loops[:1])
            entries["runsc run, 2 loops at once"] = loops_of(loops)
        absent += [other for other in found if isinstance(other, Absent)][:1]
        rates = await take_turns(entries, seconds)
    means = {name: statistics.mean(values) for name, values in rates.items()}
    rows: list[tuple[str, ...]] = [
        (
            name,
            f"{mean:.1f}",
            f"{min(rates[name]):.1f}",
            ratio(means[ours], mean) if ours in means else "-",
        )
        for name, mean in means.items()
    ]
    rows += [absent_row(4, other.name, other.reason) for other in absent]
    promises = []
    if ours in means and LOOP in means:
        promises.append(
            Promise(
                "fresh gVisor sandboxes per second, over a loop of runsc run",
                f">= {TARGET:.2f}",
                ratio(means[ours], means[LOOP]),
                means[ours] / means[LOOP] >= TARGET,
            )
        )
    return Report(
        "gvisor-throughput",
        (
            Table(
                "gVisor: executions of print(1), each in a fresh sandbox",
                ("what", "per second", "worst slice", "stockade is faster by"),
                tuple(rows),
                (
                    f"{seconds:g} s each, in {SLICES} slices that take turns. A slice of Stockade's "
                    "ends when its pool is full again: what was parked before costs as much.",
                ),
            ),
        ),
        tuple(promises),
        {name: {"per_second": mean, "slices": rates[name]} for name, mean in means.items()},
    )
