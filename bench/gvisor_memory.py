"""What a parked gVisor sandbox holds of the host's memory: runsc, its kernel, the guest."""

import asyncio
import statistics
import subprocess
from dataclasses import dataclass
from typing import Any, Final

from bench.compatibility.trial import lacks_module
from bench.contestants import BARE, PYTHON, Absent
from bench.processes import Charge, address_spaces, charge, memory, supervised
from bench.report import NOTHING, Promise, Report, Table, absent_row, mebibytes
from stockade.executor.local import open_local
from stockade.executor.namespace.zygote import PRELOADED
from stockade.executor.pool import PoolPolicy
from stockade.port import GIB, Tier, Unavailable

PARKED: Final = 4
_POLICY: Final = PoolPolicy(floor=PARKED, ceiling=PARKED, memory_budget_bytes=4 * GIB)
_SETTLE_SECONDS: Final = 1.0
_COLUMNS: Final = ("what", "median MiB", "largest MiB")


@dataclass(frozen=True, slots=True)
class _Case:
    """What the warm interpreter has loaded, and what a sandbox may hold with it."""

    name: str
    modules: tuple[str, ...] = ()
    target: int | None = None


_CASES: Final = (
    _Case("the ordinary modules loaded", target=30 << 20),
    _Case("numpy loaded as well", ("numpy",)),
    _Case("numpy and pandas loaded as well", ("numpy", "pandas"), 45 << 20),
)
_ANONYMOUS: Final = """
import re
text = open("/proc/self/smaps_rollup").read()
print(int(re.search(r"^Anonymous:\\s+(\\d+) kB$", text, re.M)[1]) * 1024)
"""


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Of one parked sandbox."""

    charge: Charge
    proportional: int
    processes: int


async def measure() -> Report:
    """Park some, touch none, read what the kernel says of them."""
    rows: list[tuple[str, ...]] = []
    promises: list[Promise] = []
    figures: dict[str, Any] = {}
    most = 0
    for case in _CASES:
        sizes = await _park(case)
        if isinstance(sizes, Absent):
            rows.append(absent_row(len(_COLUMNS), sizes.name, sizes.reason))
            continue
        total = [size.charge.total for size in sizes]
        columns = {
            "in all": total,
            "of it runsc and its kernel": [size.charge.anonymous for size in sizes],
            "of it the guest's memory": [size.charge.shared for size in sizes],
            "proportional (Pss), for comparison": [size.proportional for size in sizes],
        }
        for what, values in columns.items():
            median, largest = mebibytes(statistics.median(values)), mebibytes(max(values))
            rows.append((f"{case.name}: {what}", median, largest))
        bare = _bare(case)
        rows.append((f"{case.name}: {BARE.name}, anonymous", mebibytes(bare), NOTHING))
        if case.target is not None:
            promises.append(
                Promise(
                    f"memory of a parked gVisor sandbox, {case.name}",
                    f"<= {mebibytes(case.target)} MiB",
                    f"{mebibytes(max(total))} MiB",
                    max(total) <= case.target,
                )
            )
        most = max(most, *(size.processes for size in sizes))
        figures[case.name] = {**columns, "bare": bare}
    return Report(
        "gvisor-memory",
        (
            Table(
                "gVisor: memory of an idle parked sandbox, all its processes together",
                _COLUMNS,
                tuple(rows),
                (
                    f"{PARKED} parked; processes in each: {most}. What is promised is what its "
                    "memory cgroup is charged for without the cache of files: anonymous memory, "
                    "the memfd that is the guest's memory, and what the host's kernel needs for "
                    "both. That is all that its end gives back. Pss also has a part of runsc's "
                    "text, which they share, and misses what of the memfd nobody has mapped.",
                ),
            ),
        ),
        tuple(promises),
        figures,
    )


async def _park(case: _Case) -> list[_Sizes] | Absent:
    for module in case.modules:
        if lacks_module(module):
            return Absent(case.name, f"{module} is not installed here")
    modules = (*PRELOADED, *case.modules)
    try:
        async with open_local(pool=_POLICY, tiers={Tier.GVISOR}, preloaded=modules) as environment:
            await environment.warm_up()
            await asyncio.sleep(_SETTLE_SECONDS)
            trees = supervised()
            if len(trees) != PARKED:
                raise RuntimeError(f"{PARKED} sandboxes are parked, {len(trees)} were found")
            sizes = [size for size in map(_sizes, trees) if size is not None]
            if len(sizes) != PARKED:
                return Absent(case.name, "the sandboxes have no memory cgroups here")
            return sizes
    except Unavailable as error:
        return Absent(case.name, str(error))


def _bare(case: _Case) -> int:
    """What python3 itself has of anonymous memory with those modules, in bytes."""
    source = f"import {', '.join((*PRELOADED, *case.modules))}\n{_ANONYMOUS}"
    command = [PYTHON, "-I", "-c", source]
    return int(subprocess.run(command, check=True, capture_output=True).stdout)


def _sizes(pids: set[int]) -> _Sizes | None:
    charged = charge(pids)
    if charged is None:
        return None
    proportional = sum(memory(pid)[1] for pid in address_spaces(pids))
    return _Sizes(charged, proportional, len(pids))
