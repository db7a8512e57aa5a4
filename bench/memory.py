"""What a parked sandbox holds of the host's memory while it waits."""

import asyncio
import statistics

from bench.processes import innermost_pid_namespaces, memory
from bench.report import Promise, Report, Table, mebibytes
from stockade.executor.local import open_local
from stockade.executor.pool import PoolPolicy
from stockade.port import Tier

TARGET = 8 << 20
PARKED = 8
_SETTLE_SECONDS = 0.5


async def measure() -> Report:
    """Park some, touch none, read what the kernel says of their processes."""
    async with open_local(pool=PoolPolicy.fixed(PARKED), tiers={Tier.NAMESPACE}) as environment:
        await environment.warm_up()
        await asyncio.sleep(_SETTLE_SECONDS)
        sandboxes = innermost_pid_namespaces()
        if len(sandboxes) != PARKED:
            raise RuntimeError(f"{PARKED} sandboxes are parked, {len(sandboxes)} were found")
        sizes = [[memory(pid) for pid in pids] for pids in sandboxes]
    private = [sum(size for size, _ in processes) for processes in sizes]
    proportional = [sum(size for _, size in processes) for processes in sizes]
    counts = [len(processes) for processes in sizes]
    rows = tuple(
        (what, mebibytes(statistics.median(values)), mebibytes(max(values)))
        for what, values in (
            ("unshared (Private_* of smaps_rollup)", private),
            ("proportional (Pss: what it shares, divided by the sharers)", proportional),
        )
    )
    return Report(
        "memory",
        (
            Table(
                "Memory of an idle parked sandbox, all its processes together",
                ("what", "median MiB", "largest MiB"),
                rows,
                (f"{PARKED} parked; processes in each: {max(counts)}.",),
            ),
        ),
        (
            Promise(
                "unshared memory of a parked sandbox",
                f"<= {mebibytes(TARGET)} MiB",
                f"{mebibytes(max(private))} MiB",
                max(private) <= TARGET,
            ),
        ),
        {"private_bytes": private, "pss_bytes": proportional, "processes": counts},
    )
