"""A record is made only when nothing of the execution lives; nothing is left behind.

Nothing is parked here, so what lives below this process is the launcher, the warm
interpreter, and what an execution left.
"""

import asyncio
import glob
import os
from pathlib import Path

import pytest

from stockade.port import ExecutionEnvironment, ExecutionRequest, Outcome, TerminalSize

from .kit import (
    command,
    descendants,
    descriptors,
    explain,
    living,
    marker,
    shell,
    small,
    soon,
    source,
    until,
    zombies,
)

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio(loop_scope="module")]

ALWAYS = 2


def cgroups() -> set[str]:
    """Directories of sandboxes in every hierarchy."""
    # Not Path.glob, which fails where another executor removes a directory meanwhile.
    return set(glob.glob(f"/sys/fs/cgroup/**/stockade-{os.getpid()}-*/sandbox-*", recursive=True))  # noqa: PTH207


@pytest.mark.parametrize(
    ("request_", "limits"),
    [
        (command("true"), {}),
        (shell("exit 3"), {}),
        (shell("sleep 60 & setsid sleep 60 & nohup sleep 60 >/dev/null & echo"), {}),
        (shell("(setsid sh -c '(sleep 60 &)' &); echo"), {}),
        (command("sleep", "60"), {"wall_seconds": 0.2}),
        (command("yes"), {"output_bytes": 1000}),
        (source("import os\nwhile True: os.fork()"), {"wall_seconds": 0.5, "processes": 30}),
        (command("nope"), {}),
        (source("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"), {"wall_seconds": 0.3}),
        (command("sleep", "60", terminal=TerminalSize(24, 80)), {"wall_seconds": 0.2}),
    ],
)
async def test_nothing_lives_when_the_record_is_made(
    bare: ExecutionEnvironment, request_: ExecutionRequest, limits: dict[str, float]
) -> None:
    execution = await bare.run(request_, small(**limits))
    # No pause here: it must hold at this very moment. A zombie holds nothing.
    alive = [pid for pid, state in descendants().items() if state != "Z"]
    assert len(alive) == ALWAYS, explain(execution)
    await until(lambda: len(descendants()) == ALWAYS, 2)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 10, 40])
async def test_cancelling_the_waiter_at_any_time(bare: ExecutionEnvironment, turns: int) -> None:
    """From before a sandbox was taken until long after."""
    assert (await bare.run(command("true"))).ok
    mark = marker()
    for _ in range(5):
        task = asyncio.ensure_future(bare.run(command("sleep", mark)))
        for _ in range(turns):
            await asyncio.sleep(0 if turns < 40 else 0.0005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(task)
        assert living(mark) == []
    assert (await bare.run(command("true"))).ok
    await until(lambda: len(descendants()) == ALWAYS, 5)


async def test_cancelling_while_a_sandbox_is_made(bare: ExecutionEnvironment) -> None:
    """The request to stop is not lost, whatever is waited for at that moment."""
    assert (await bare.run(command("true"))).ok
    mark = marker()
    for step in range(60):
        task = asyncio.ensure_future(bare.run(command("sleep", mark)))
        await asyncio.sleep(step % 30 * 0.0002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(task, 3)
        assert living(mark) == []
    await until(lambda: len(descendants()) == ALWAYS, 5)


async def test_cancelling_a_session_that_is_being_opened(bare: ExecutionEnvironment) -> None:
    for turns in (0, 1, 2, 3, 5, 8):
        task = asyncio.ensure_future(bare.open_session())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(task)
    await until(lambda: len(descendants()) == ALWAYS, 5)


async def test_two_hundred_executions_leave_nothing(bare: ExecutionEnvironment) -> None:
    """No process, descriptor, cgroup or temporary file."""
    assert (await bare.run(command("true"))).ok
    await until(lambda: len(descendants()) == ALWAYS and not cgroups())
    before = descriptors(), set(Path("/tmp").iterdir())
    for number in range(200):
        if number % 4 == 3:
            execution = await bare.run(shell("sleep 60 & exit 3"))
            assert execution.outcome is Outcome.NONZERO_EXIT, explain(execution)
        else:
            assert (await bare.run(command("true"))).ok
    await until(lambda: len(descendants()) == ALWAYS and not cgroups(), 5)
    await until(lambda: len(descriptors()) <= len(before[0]), 5)
    assert zombies() == []
    assert set(Path("/tmp").iterdir()) - before[1] == set()
