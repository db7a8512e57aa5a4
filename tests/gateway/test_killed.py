"""``kill -9`` of a gateway under load: what a caller was told of is there, and nothing twice."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter

import pytest
from tests.gateway.conftest import rows

from stockade.gateway.audit import verify
from stockade.gateway.database import Database
from stockade.gateway.ledger import Ledger
from stockade.gateway.policy import Budgets
from stockade.gateway.schema import audit, executions, records, usage
from stockade.gateway.tenants import Tenants

PROGRAM = """if True:
    import asyncio, os, sys
    from stockade.gateway.database import Database
    from stockade.gateway.keys import Caller
    from stockade.gateway.ledger import Ledger
    from stockade.port import Execution, Outcome, Usage
    from tests.gateway.conftest import facts

    async def main():
        async with Ledger(Database.open(sys.argv[1])) as ledger:
            async def call(who):
                for i in range(100_000):
                    this = f"{sys.argv[2]}-{who}-{i}"
                    await ledger.begin_execution(Caller("acme", "k"), this, facts())
                    os.write(1, f"begun {this}\\n".encode())
                    await ledger.end_execution(
                        this, Execution(Outcome.OK, "", usage=Usage(1.0, 1.0, 2**20))
                    )
                    os.write(1, f"ended {this}\\n".encode())
            await asyncio.gather(*(call(who) for who in range(16)))

    asyncio.run(main())
"""


@pytest.mark.timeout(120)
async def test_what_a_caller_was_told_of_is_there_and_nothing_twice(database_url: str) -> None:
    database = Database.open(database_url)
    database.migrate()
    Tenants(database).create(
        "acme",
        budgets=Budgets(
            concurrency=1000, executions_per_minute=1_000_000, cpu_seconds_per_day=10**8,
            memory_seconds_per_day=10**8,
        ),
    )  # fmt: skip
    begun: set[str] = set()
    ended: set[str] = set()
    for turn in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, database_url, str(turn)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(random.random())
        process.kill()
        said = (first + process.stdout.read()).decode().splitlines()
        process.wait()
        process.stdout.close()
        for line in said:
            (begun if line.startswith("begun") else ended).add(line.split()[1])
    moment = [0.0]
    async with Ledger(database, heartbeat_seconds=3600, monotonic=lambda: moment[0]) as ledger:
        for moment[0] in (0.0, 30.0):
            await ledger.beat()
    assert begun
    assert ended
    found = {str(row["id"]): row for row in rows(database, executions)}
    assert begun <= found.keys()
    assert all(row["ended_at"] is not None for row in found.values())
    assert all(found[this]["outcome"] == "ok" for this in ended)
    assert len(rows(database, records)) == len(found)
    trail = [(str(row["action"]), str(row["subject"])) for row in rows(database, audit)]
    told = Counter(each for each in trail if each[0].startswith("execution."))
    assert set(told.values()) == {1}
    assert {name for action, name in told if action == "execution.begun"} == found.keys()
    assert {name for action, name in told if action == "execution.ended"} == found.keys()
    assert sum(int(str(row["executions"])) for row in rows(database, usage)) == len(found)
    verdict = database.read_at_once(verify)
    assert verdict.sound, json.dumps([flaw.what for flaw in verdict.flaws])
    database.close()
