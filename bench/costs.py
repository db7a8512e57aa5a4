"""What a boundary costs the program behind it: the same small program with and without one."""

import contextlib
import json
import random
import statistics
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from bench.contestants import PYTHON
from bench.report import NOTHING, Report, Table, ratio
from stockade.executor.environment import LocalEnvironment
from stockade.executor.local import open_local
from stockade.executor.pool import PoolPolicy
from stockade.port import ExecutionRequest, PythonScript, Tier, Unavailable

PROGRAM: Final = Path(__file__).parent / "programs" / "costs.py"
TIERS: Final = (Tier.NAMESPACE, Tier.GVISOR)
ROUNDS: Final = 10
BARE: Final = "no sandbox"
COLUMNS: Final = ("what", f"{BARE}, microseconds", *(f"{tier}, times that" for tier in TIERS))
# A key of what the program says, to what it is.
WHAT: Final = {
    "getppid": "a call of the kernel: getppid",
    "stat": "stat of a file of the image",
    "read": "open, read 4 KiB, close, of the image",
    "create": "a file in the workspace: make, write, close, remove",
    "pipe": "a byte into a pipe and out of it",
    "spawn": "a process: start /usr/bin/true, wait",
    "memory": "32 MiB of new memory, each page touched",
    "cpu": "computing, nothing of the kernel's",
}

Seconds = dict[str, float]
Once = Callable[[], Awaitable[Seconds]]
"""Runs the program once; what it said."""


async def measure(rounds: int = ROUNDS) -> Report:
    """In turns, each time in a fresh sandbox."""
    entries: dict[str, Once] = {BARE: _run_bare}
    notes = [
        f"Medians of {rounds} runs of one Python program, in turns, each in a fresh sandbox. "
        "Without one it ran in a folder in memory, as a workspace is."
    ]
    async with contextlib.AsyncExitStack() as stack:
        for tier in TIERS:
            try:
                environment = await stack.enter_async_context(
                    open_local(pool=PoolPolicy.fixed(1), tiers={tier})
                )
            except Unavailable as error:
                notes.append(f"{tier}: not measured: {error}.")
            else:
                entries[tier] = _runner(environment)
        said: dict[str, list[Seconds]] = {name: [] for name in entries}
        for once in entries.values():  # caches, the pool
            await once()
        for _ in range(rounds):
            for name in random.sample(list(entries), len(entries)):
                said[name].append(await entries[name]())
    medians = {
        name: {key: statistics.median(one[key] for one in of_name) for key in WHAT}
        for name, of_name in said.items()
    }

    def times(tier: Tier, key: str) -> str:
        return ratio(medians[tier][key], medians[BARE][key]) if tier in medians else NOTHING

    rows = tuple(
        (what, f"{medians[BARE][key] * 1e6:.1f}", *(times(tier, key) for tier in TIERS))
        for key, what in WHAT.items()
    )
    table = Table("What the boundary costs a program", COLUMNS, rows, tuple(notes))
    return Report("costs", (table,), figures={str(name): m for name, m in medians.items()})


async def _run_bare() -> Seconds:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        ended = subprocess.run(
            [PYTHON, PROGRAM], capture_output=True, check=True, cwd=folder, stdin=subprocess.DEVNULL
        )
    return _read(ended.stdout)


def _runner(environment: LocalEnvironment) -> Once:
    request = ExecutionRequest(PythonScript(PROGRAM.name, PROGRAM.read_bytes()))

    async def run() -> Seconds:
        await environment.warm_up()
        execution = await environment.run(request)
        if not execution.ok:
            raise RuntimeError(f"{execution.outcome}: {execution.detail}")
        return _read(execution.stdout.content)

    return run


def _read(output: bytes) -> Seconds:
    seconds: Seconds = json.loads(output)
    if set(seconds) != set(WHAT):
        raise RuntimeError(f"{PROGRAM.name} measured {sorted(seconds)}")
    return seconds
