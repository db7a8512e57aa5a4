"""``kill -9`` of an executor: nothing that it started outlives it."""

import asyncio
import glob
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract.kit import command, descendants, living, marker, until

from stockade.executor import open_local
from stockade.port import Tier

pytestmark = [pytest.mark.plain_user, pytest.mark.tier("namespace")]

EXECUTOR = """
import asyncio, sys
from stockade.executor import open_local
from stockade.port import Command, ExecutionRequest, PythonSource, SandboxRequest, Tier

HIDE = '''
import os, signal, sys
for n in signal.valid_signals() - {9, 19, 17}: signal.signal(n, signal.SIG_IGN)
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        break
os.execvp("sleep", ["sleep", sys.argv[1]])
'''

async def main():
    async with open_local(parked=2, tiers={Tier.NAMESPACE}) as environment:
        mark = sys.argv[1]
        program = ExecutionRequest(PythonSource(HIDE, (mark,)))
        running = [await environment.start(program) for _ in range(2)]
        running.append(await environment.start(program, SandboxRequest(tenant="other")))
        session = await environment.open_session()
        running.append(await session.start(program))
        idle = await environment.open_session()
        await idle.write_file("f", b"x")
        print("up", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def guests(executor: int) -> set[int]:
    return set(descendants(executor))


def cgroups(executor: int) -> list[str]:
    # Not Path.glob, which fails where another executor removes a directory meanwhile.
    return glob.glob(f"/sys/fs/cgroup/**/stockade-{executor}-*", recursive=True)  # noqa: PTH207


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_nothing_outlives_it(number: int) -> None:
    mark = marker()
    mounts = Path("/proc/self/mountinfo").read_text()
    with subprocess.Popen(
        [sys.executable, "-c", EXECUTOR, mark], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as executor:
        assert executor.stdout is not None
        assert await asyncio.to_thread(executor.stdout.readline) == b"up\n"
        await until(lambda: len(living(mark)) >= 12)
        below = guests(executor.pid)
        assert len(below) > 16
        executor.send_signal(number)
        executor.wait(5)
        await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below), 2)
    assert living(mark) == []
    assert Path("/proc/self/mountinfo").read_text() == mounts
    # The directories of its cgroups are empty; the next executor removes them.
    async with open_local(warm=False, tiers={Tier.NAMESPACE}) as environment:
        assert (await environment.run(command("true"))).ok
        assert cgroups(executor.pid) == []


async def test_a_killed_launcher_takes_its_sandboxes_along() -> None:
    mark = marker()
    async with open_local(parked=1, tiers={Tier.NAMESPACE}) as environment:
        before = set(descendants())
        running = [await environment.start(command("sleep", mark)) for _ in range(3)]
        await until(lambda: len(living(mark)) == 3)
        launcher = next(
            pid
            for pid in sorted(set(descendants()) | before)
            if b"stockade-launch" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        os.kill(launcher, signal.SIGKILL)
        for one in running:
            execution = await asyncio.wait_for(one.wait(), 5)
            assert execution.outcome == "lost", execution.detail
        assert living(mark) == []
        # And the next call is served by a new one.
        assert (await asyncio.wait_for(environment.run(command("true")), 10)).ok
