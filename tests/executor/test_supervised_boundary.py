"""A supervisor's init is told to stop and to go on: whichever was said last holds."""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

import pytest

from stockade.executor.descendants import awaits
from stockade.executor.supervised_boundary import SupervisedBoundary

pytestmark = pytest.mark.plain_user

_INIT = """
import signal
signal.signal(signal.SIGUSR1, lambda *_: print('stop', flush=True))
signal.signal(signal.SIGUSR2, lambda *_: print('go on', flush=True))
print('ready', flush=True)
while True:
    signal.pause()
"""


class OfAProcess(SupervisedBoundary):
    """Nothing below its init: it obeys as soon as it is told."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.sent: list[signal.Signals] = []

    @property
    def init(self) -> int:
        return self._process.pid

    def signal_init(self, number: signal.Signals) -> None:
        self.sent.append(number)
        self._process.send_signal(number)


@pytest.fixture
async def init() -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec("python3", "-c", _INIT, stdout=PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    yield process
    process.kill()
    await process.wait()


def stop(process: Process) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


async def test_one_that_is_not_taken_yet_is_known(init: Process) -> None:
    stop(init)
    assert not awaits(init.pid, signal.SIGUSR2)
    init.send_signal(signal.SIGUSR2)
    assert awaits(init.pid, signal.SIGUSR2)
    assert not awaits(init.pid, signal.SIGUSR1)
    assert not awaits(-1, signal.SIGUSR1)


async def test_a_pause_comes_after_what_let_it_out_of_the_pool(init: Process) -> None:
    boundary = OfAProcess(init)
    stop(init)  # a host that is busy: it takes no signal for a while
    boundary.resume()
    pausing = asyncio.create_task(boundary.freeze())
    await asyncio.sleep(0.1)
    assert boundary.sent == [signal.SIGUSR2]
    init.send_signal(signal.SIGCONT)
    await pausing
    assert boundary.sent == [signal.SIGUSR2, signal.SIGUSR1]
    assert init.stdout is not None
    assert [await init.stdout.readline() for _ in range(2)] == [b"go on\n", b"stop\n"]
