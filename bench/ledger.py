"""What the gateway's ledger costs: an execution begun and ended, by so many callers at once.

python -m bench.ledger [URL]

URL names an empty database (see docs/tenants.md); without it, SQLite in a folder of its own. Each pair
is two commits, which wait for the disk: the CPU time beside it says what is the ledger's own.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from stockade.gateway.database import Database
from stockade.gateway.executions import RequestFacts
from stockade.gateway.keys import Caller
from stockade.gateway.ledger import Ledger
from stockade.gateway.policy import Budgets
from stockade.gateway.tenants import Tenants
from stockade.port import (
    Captured,
    Execution,
    ExecutionRequest,
    Outcome,
    PythonSource,
    SandboxRequest,
    Usage,
)

CALLERS = ((1, 500), (8, 2000), (64, 4000))
_ENDLESS = Budgets(
    concurrency=100_000,
    executions_per_minute=10_000_000,
    cpu_seconds_per_day=10**9,
    memory_seconds_per_day=10**9,
)
_FACTS = RequestFacts.of(ExecutionRequest(PythonSource("print(42)")), SandboxRequest())
_ENDED = Execution(
    Outcome.OK,
    "it ran",
    exit_code=0,
    stdout=Captured(b"42\n", b"", 3),
    usage=Usage(wall_seconds=0.01, cpu_seconds=0.01, peak_memory_bytes=2**24),
)


async def pairs(url: str, callers: int, count: int) -> str:
    """One row: how long a pair took, and how many a second there were."""
    database, caller, took = Database.open(url), Caller("bench", "key"), list[float]()

    async def call(who: int) -> None:
        for i in range(count // callers):
            start = time.perf_counter()
            this = f"{callers}-{who}-{i}"
            await ledger.begin_execution(caller, this, _FACTS)
            await ledger.end_execution(this, _ENDED)
            took.append(time.perf_counter() - start)

    async with Ledger(database) as ledger:
        await call(callers)  # statements are compiled, pages are read
        took.clear()
        start, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(call(who) for who in range(callers)))
        whole, used = time.perf_counter() - start, time.process_time() - cpu
    database.close()
    took.sort()
    cells = [took[len(took) * share // 100] * 1000 for share in (10, 50, 99)]
    return (
        f"| {database.engine.dialect.name} | {callers} | "
        + " | ".join(f"{cell:.2f}" for cell in cells)
        + f" | {used / len(took) * 1000:.2f} | {len(took) / whole:.0f} |"
    )


def main() -> None:
    """Print a table."""
    with tempfile.TemporaryDirectory() as folder:
        url = sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{Path(folder)}/gateway.db"
        database = Database.open(url)
        database.migrate()
        Tenants(database).create("bench", budgets=_ENDLESS)
        database.close()
        print("| database | callers | p10 ms | median ms | p99 ms | CPU ms | pairs a second |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for callers, count in CALLERS:
            print(uvloop.run(pairs(url, callers, count)), flush=True)


if __name__ == "__main__":
    main()
