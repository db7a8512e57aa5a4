"""The short form of ``./dev bench soak``: a load, while executor and gateway are killed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone

ROOT = Path(__file__).resolve().parent.parent.parent
_PROGRAM = """
import asyncio, json, sys
from bench.soak import soak
tally, _ = asyncio.run(soak(float(sys.argv[1])))
print(json.dumps({"ends": tally.ends, "kills": tally.kills, "problems": tally.problems}))
"""


@pytest.mark.tier("namespace")
@pytest.mark.timeout(180)
def test_every_call_ends_while_the_services_are_killed() -> None:
    """In a process of its own: it adopts orphans, so that nothing can leave."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "25"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["problems"] == []
    assert found["kills"].get("executor")
    assert found["kills"].get("gateway")
    assert found["ends"]["ok"] > 10
