"""One ``print(1)`` in a machine of its own, and what such a machine costs.

Where the CPU runs guests it is KVM that is measured, else QEMU's emulation; the tables say which.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from bench.contestants import BARE, SOURCE, Absent
from bench.processes import charge, memory, supervised
from bench.report import NOTHING, Report, Summary, Table, absent_row, mebibytes, milliseconds
from bench.turns import COLUMNS, Once, figures, promises, rows, sample, time_call, time_program
from stockade.executor.environment import LocalEnvironment
from stockade.executor.kvm import why_no_kvm
from stockade.executor.local import open_local
from stockade.executor.pool import PoolPolicy
from stockade.port import GIB, ExecutionRequest, PythonSource, Tier, Unavailable

PARKED: Final = "stockade, microVM, parked, single use"
MEDIAN_TARGET: Final = 1.0
"""In emulation; with KVM it is to be far below."""
ROUNDS: Final = 30
_COPIES: Final = 4
_COLD_BOOTS: Final = 3
_SETTLE_SECONDS: Final = 1.0
_WIDTH: Final = 2


async def measure(rounds: int = ROUNDS, boots: int = _COLD_BOOTS) -> Report:
    """Latency beside bare python3; template, copies and cold boot; memory of what is parked."""
    runs = "in emulation (QEMU's TCG)" if why_no_kvm() else "with KVM"
    entries: dict[str, Once] = {BARE.name: lambda: time_program(BARE)}
    absent: list[Absent] = []
    request = ExecutionRequest(PythonSource(SOURCE))
    async with AsyncExitStack() as stack:
        try:
            parked = await stack.enter_async_context(_open(1))
            entries[PARKED] = lambda: time_call(parked, request)
        except Unavailable as error:
            absent.append(Absent(PARKED, str(error)))
        summaries = {n: Summary.of(t) for n, t in (await sample(entries, rounds)).items()}
    costs: tuple[tuple[str, ...], ...]
    numbers: dict[str, float] = {}
    if absent:
        costs = (absent_row(_WIDTH, absent[0].name, absent[0].reason),)
    else:
        numbers = {**await _measure_copies(), **await _measure_boot(boots)}
        costs = tuple((what, _spell(what, number)) for what, number in numbers.items())
    return Report(
        "microvm",
        (
            Table(
                f"microVM, {runs}: latency of python3 -c 'print(1)', output captured",
                COLUMNS,
                rows(summaries, absent),
                ("In turns, in a random order per round, on an otherwise idle pool of one.",),
            ),
            Table(
                f"microVM, {runs}: what a machine costs",
                ("what", "figure"),
                costs,
                (
                    f"{_COPIES} copies, made two at a time. Memory is what their cgroups are "
                    "charged for without the cache of files; the template's pages, which all "
                    "copies map, are in none of them.",
                ),
            ),
        ),
        ()
        if absent
        else promises(
            f"a parked, single-use microVM {runs}", summaries, PARKED, MEDIAN_TARGET, float("inf")
        )[:1],
        figures(summaries) | numbers,
    )


@asynccontextmanager
async def _open(parked: int, *, warm: bool = True) -> AsyncIterator[LocalEnvironment]:
    policy = PoolPolicy(floor=parked, ceiling=parked, memory_budget_bytes=4 * GIB)
    async with open_local(
        warm=warm, pool=policy, tiers={Tier.MICROVM}, allow_emulation=True
    ) as environment:
        yield environment


async def _measure_copies() -> dict[str, float]:
    began = time.perf_counter()
    async with _open(_COPIES) as environment:
        opened = time.perf_counter() - began
        spent = time.process_time()
        began = time.perf_counter()
        await environment.warm_up()
        took = time.perf_counter() - began
        spent = time.process_time() - spent
        await asyncio.sleep(_SETTLE_SECONDS)
        trees = supervised()
        charges = [charged.total for tree in trees if (charged := charge(tree)) is not None]
        private = [sum(memory(pid)[0] for pid in tree) for tree in trees]
    # The first of them was the proof of the opening.
    made = _COPIES - 1
    return {
        "opening: QEMU and the image checked, a template booted and saved, one copy": opened,
        "a copy, from the template until it is parked, two at a time: wall": 2 * took / made,
        "the executor's own CPU for it": spent / made,
        "copies parked per second": made / took,
        "memory of a parked copy, its cgroup": max(charges, default=0),
        "memory of a parked copy, unshared": max(private, default=0),
    }


async def _measure_boot(boots: int) -> dict[str, float]:
    """A machine that is booted for one call, without a template."""
    times = []
    request = ExecutionRequest(PythonSource(SOURCE))
    async with _open(0, warm=False) as environment:
        await environment.run(request)  # the proof of the opening
        for _ in range(boots):
            began = time.perf_counter()
            await environment.run(request)
            times.append(time.perf_counter() - began)
    return {"cold boot, program and end, without a template": Summary.of(times).median}


def _spell(what: str, number: float) -> str:
    if what.startswith("memory"):
        return f"{mebibytes(number)} MiB" if number else NOTHING
    return f"{number:.2f}" if what.endswith("per second") else f"{milliseconds(number)} ms"
