"""A record is made only when nothing of the execution lives; nothing is left behind.

Nothing is parked here, so what lives below this process is what the tier always has, and
what an execution left.
"""

import asyncio
import glob
import os
from pathlib import Path

import pytest

from stockade.port import ExecutionEnvironment, ExecutionRequest, Outcome, TerminalSize

from .kit import (
    command,
    dead_or_dying,
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
    watched,
    zombies,
)
from .traits import Traits

pytestmark = [pytest.mark.plain_user, pytest.mark.asyncio(loop_scope="module")]


def cgroups() -> set[str]:
    """Directories of sandboxes in every hierarchy."""
    # Not Path.glob, which fails where another executor removes a directory meanwhile.
    above = f"/sys/fs/cgroup/**/stockade-{os.getpid()}-*"
    found = glob.glob(f"{above}/sandbox-*", recursive=True)  # noqa: PTH207
    return {*found, *glob.glob(f"{above}/gvisor-*", recursive=True)}  # noqa: PTH207


def files() -> set[Path]:
    """Temporary ones, and those in the folders that this executor holds."""
    held = [Path(path) for path in descriptors().values() if "/stockade" in path]
    folders = [
        folder for folder in held if folder.is_dir() and not folder.match("/sys/fs/cgroup/*")
    ]
    temporary = (
        path for kind in ("stockade", "runsc", "tmp") for path in Path("/tmp").glob(f"{kind}*")
    )
    return {*temporary, *(path for folder in folders for path in folder.rglob("*"))}


def name_of(pid: int) -> str:
    """Of the program; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def living_below(traits: Traits) -> list[int]:
    """A zombie holds nothing. Where the kernel may still clear away, what can run no more.

    There, a supervisor of ours may be about to say that all it watched is gone.
    """
    if traits.clears_away_later:
        # First the names: one that ends in between has none any more.
        found = [pid for pid in descendants() if name_of(pid) != "stockade-superv"]
        return [pid for pid in found if not dead_or_dying(pid)]
    return [pid for pid, state in descendants().items() if state != "Z"]


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
    bare: ExecutionEnvironment,
    traits: Traits,
    request_: ExecutionRequest,
    limits: dict[str, float],
) -> None:
    execution = await bare.run(request_, small(**limits))
    # No pause here: it must hold at this very moment.
    alive = [(pid, name_of(pid)) for pid in living_below(traits)]
    assert len(alive) == traits.always_alive, (alive, explain(execution))
    await until(lambda: len(descendants()) == traits.always_alive, 2)


async def test_the_check_would_notice(bare: ExecutionEnvironment, traits: Traits) -> None:
    """What lives is found: else the test above says nothing."""
    running = await bare.start(command("sleep", "60"))
    watch = await watched(running)
    assert len(living_below(traits)) >= traits.always_alive + traits.alive_per_sandbox
    assert len(watch.living()) >= 2
    await running.cancel()
    await running.wait()


async def test_no_cpu_time_passes_after_the_record(bare: ExecutionEnvironment) -> None:
    """Of a program that left loops behind: whatever is still being freed computes nothing."""
    running = await bare.start(
        shell("for n in 1 2 3; do setsid sh -c 'while :; do :; done' & done; sleep 0.2")
    )
    watch = await watched(running)
    assert (await running.wait()).ok
    before = watch.cpu_seconds()
    await asyncio.sleep(0.2)
    assert sum(after - before[pid] for pid, after in watch.cpu_seconds().items()) < 0.05


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 10, 40])
async def test_cancelling_the_waiter_at_any_time(
    bare: ExecutionEnvironment, traits: Traits, turns: int
) -> None:
    """From before a sandbox was taken until long after."""
    assert (await bare.run(command("true"))).ok
    mark = marker()
    for _ in range(traits.rounds(5)):
        task = asyncio.ensure_future(bare.run(command("sleep", mark)))
        for _ in range(turns):
            await asyncio.sleep(0 if turns < 40 else 0.0005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(task)
        assert living(mark) == []
    assert (await bare.run(command("true"))).ok
    await until(lambda: len(descendants()) == traits.always_alive, 5)


async def test_cancelling_while_a_sandbox_is_made(
    bare: ExecutionEnvironment, traits: Traits
) -> None:
    """The request to stop is not lost, whatever is waited for at that moment."""
    assert (await bare.run(command("true"))).ok
    mark = marker()
    rounds = traits.rounds(60)
    for step in range(rounds):
        task = asyncio.ensure_future(bare.run(command("sleep", mark)))
        # Twice over the time that one takes to be made.
        await asyncio.sleep(step * 2 % rounds / rounds * 0.006 * traits.cost**2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(task, 3)
        assert living(mark) == []
    await until(lambda: len(descendants()) == traits.always_alive, 5)


async def test_cancelling_a_session_that_is_being_opened(
    bare: ExecutionEnvironment, traits: Traits
) -> None:
    for turns in (0, 1, 2, 3, 5, 8):
        task = asyncio.ensure_future(bare.open_session())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(task)
    await until(lambda: len(descendants()) == traits.always_alive, 5)


async def test_two_hundred_executions_leave_nothing(
    bare: ExecutionEnvironment, traits: Traits
) -> None:
    """No process, descriptor, cgroup or temporary file."""
    assert (await bare.run(command("true"))).ok
    await until(lambda: len(descendants()) == traits.always_alive and not cgroups())
    before = descriptors(), files()
    for number in range(traits.rounds(200)):
        if number % 4 == 3:
            execution = await bare.run(shell("sleep 60 & exit 3"))
            assert execution.outcome is Outcome.NONZERO_EXIT, explain(execution)
        else:
            assert (await bare.run(command("true"))).ok
    await until(lambda: len(descendants()) == traits.always_alive and not cgroups(), 5)
    await until(lambda: len(descriptors()) <= len(before[0]), 5)
    assert zombies() == []
    await until(lambda: not files() - before[1], 5)
