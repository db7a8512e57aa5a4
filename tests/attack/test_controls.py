"""A control has no boundary: what it starts must end all the same, whatever becomes of its runner."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stockade.cli.attack.watchdog import marked

pytestmark = pytest.mark.plain_user

_RUNNER = """
import asyncio
from stockade.cli.attack.controls import PlainEnvironment
from stockade.port import Command, ExecutionRequest

async def main():
    async with PlainEnvironment() as plain:
        line = "(setsid sleep 1000 &); (setsid sleep 1000 &); touch $TMPDIR/left; sleep 1000"
        await plain.start(ExecutionRequest(Command(("sh", "-c", line))))
        print(plain._mark, plain._folder, flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


def soon(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_runner_that_is_killed_leaves_nothing(number: signal.Signals) -> None:
    runner = subprocess.Popen([sys.executable, "-c", _RUNNER], stdout=subprocess.PIPE, text=True)
    assert runner.stdout is not None
    mark, folder = runner.stdout.readline().split()
    soon(lambda: len(marked(mark)) >= 4)  # two daemons, a shell, a stand-in
    soon(lambda: any(Path(folder, "tmp").iterdir()))
    runner.send_signal(number)
    runner.wait(30)
    runner.stdout.close()
    soon(lambda: not marked(mark))
    soon(lambda: not Path(folder).exists())
