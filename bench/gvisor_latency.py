"""One ``print(1)`` behind a kernel of its own, beside runsc by itself and bubblewrap."""

import contextlib
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from bench.contestants import BARE, SOURCE, Absent, Contestant, open_bubblewrap
from bench.report import Report, Summary, Table
from bench.runsc import open_runsc
from bench.turns import COLUMNS, Once, figures, promises, rows, sample, time_call, time_program
from stockade.executor.local import open_local
from stockade.executor.pool import PoolPolicy
from stockade.port import ExecutionRequest, PythonSource, Tier, Unavailable

PARKED = "stockade, gVisor, parked, single use"
MEDIAN_TARGET, P99_TARGET = 0.4, 2.0
ROUNDS = 30


async def measure(rounds: int = ROUNDS, only: Collection[str] = ()) -> Report:
    """``only``: beginnings of names; the others are not even started."""
    entries: dict[str, Once] = {BARE.name: lambda: time_program(BARE)}
    absent: list[Absent] = []
    async with contextlib.AsyncExitStack() as stack:
        request = ExecutionRequest(PythonSource(SOURCE))
        try:
            # One: making the next takes long, and must not go on under another's sample.
            parked = await stack.enter_async_context(
                open_local(pool=PoolPolicy.fixed(1), tiers={Tier.GVISOR})
            )
            entries[PARKED] = lambda: time_call(parked, request)
        except Unavailable as error:
            absent.append(Absent(PARKED, str(error)))
        others: list[Contestant | Absent] = []
        if not only:
            for name, opened in (("runsc", open_runsc), ("bubblewrap", _bubblewrap)):
                folder = stack.enter_context(
                    tempfile.TemporaryDirectory(prefix=f"stockade-bench-{name}-")
                )
                others += stack.enter_context(opened(Path(folder)))
        for other in others:
            if isinstance(other, Absent):
                absent.append(other)
            else:
                entries[other.name] = lambda other=other: time_program(other)  # type: ignore[misc]
        wanted = {n: e for n, e in entries.items() if not only or n.startswith(tuple(only))}
        samples = await sample(wanted, rounds)
    return _report({name: Summary.of(times) for name, times in samples.items()}, absent)


@contextlib.contextmanager
def _bubblewrap(folder: Path) -> Iterator[list[Contestant | Absent]]:
    folder.chmod(0o755)  # the ids of a user namespace pass through
    yield [open_bubblewrap(folder)]


def _report(summaries: dict[str, Summary], absent: list[Absent]) -> Report:
    what = "a parked, single-use gVisor sandbox"
    kept = PARKED in summaries
    return Report(
        "gvisor-latency",
        (
            Table(
                "gVisor: latency of python3 -c 'print(1)', output captured",
                COLUMNS,
                rows(summaries, absent),
                (
                    "In turns, in a random order per round, on an otherwise idle pool of one. "
                    "runsc by itself has the flags, the root and the mounts of the tier, and no "
                    "cgroup; exec starts a process in a kernel that other calls had before.",
                ),
            ),
        ),
        promises(what, summaries, PARKED, MEDIAN_TARGET, P99_TARGET) if kept else (),
        figures(summaries),
    )
