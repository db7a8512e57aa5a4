"""One ``print(1)`` from the call to the captured output: Stockade's ways, and the others'."""

import contextlib
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

from bench.contestants import BARE, SOURCE, Absent, Contestant, open_contestants
from bench.report import Report, Summary, Table
from bench.turns import COLUMNS, Once, figures, promises, rows, sample, time_call, time_program
from stockade.executor.local import open_local
from stockade.executor.pool import PoolPolicy
from stockade.port import ExecutionRequest, PythonSource, Tier

PARKED = "stockade, parked, single use"
MEDIAN_TARGET, P99_TARGET = 0.15, 0.6


async def measure(rounds: int = 100, only: Collection[str] = ()) -> Report:
    """``only``: beginnings of names; the others are not even started."""

    def wanted(name: str) -> bool:
        return not only or name.startswith(tuple(only))

    entries: dict[str, Once] = {BARE.name: lambda: time_program(BARE)}
    absent: list[Absent] = []
    notes: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        parked = await stack.enter_async_context(open_local(tiers={Tier.NAMESPACE}))
        on_demand = await stack.enter_async_context(
            open_local(pool=PoolPolicy.fixed(0), tiers={Tier.NAMESPACE})
        )
        warm, fresh = (ExecutionRequest(PythonSource(SOURCE, fresh=f)) for f in (False, True))
        entries[PARKED] = lambda: time_call(parked, warm)
        entries["stockade, on demand, empty pool"] = lambda: time_call(on_demand, warm)
        entries["stockade, parked, fresh=True"] = lambda: time_call(parked, fresh)
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
            entries[other.name] = lambda other=other: time_program(other)  # type: ignore[misc]
            if other.note:
                notes.append(f"{other.name}: {other.note}.")
        samples = await sample({n: e for n, e in entries.items() if wanted(n)}, rounds)
    return _report({name: Summary.of(times) for name, times in samples.items()}, absent, notes)


def _report(summaries: dict[str, Summary], absent: list[Absent], notes: list[str]) -> Report:
    return Report(
        "latency",
        (
            Table(
                "Latency of python3 -c 'print(1)', output captured",
                COLUMNS,
                rows(summaries, absent),
                (
                    "In turns, in a random order per round, on an otherwise idle pool. bubblewrap, "
                    "nsjail, crun and runc unshare every namespace, user included, and have the "
                    "same read-only /usr, tmpfs, no capability and our seccomp policy.",
                    *notes,
                ),
            ),
        ),
        promises(
            "a fresh, parked, single-use sandbox", summaries, PARKED, MEDIAN_TARGET, P99_TARGET
        ),
        figures(summaries),
    )
