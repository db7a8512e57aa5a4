"""Fresh gVisor sandboxes per second, sustained, beside a loop of ``runsc run``."""

import contextlib
import tempfile
from pathlib import Path

from bench.contestants import Absent, Contestant
from bench.report import Report
from bench.runsc import open_runsc
from bench.throughput import Race, Slice, calls, loops_of, report, take_turns
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
    return report(
        "gvisor-throughput",
        "gVisor: executions of print(1), each in a fresh sandbox",
        "fresh gVisor sandboxes per second, over a loop of runsc run",
        Race(rates, absent, ours, LOOP, seconds),
        TARGET,
        1,
    )
