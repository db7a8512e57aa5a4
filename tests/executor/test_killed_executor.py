"""CASES 118: ``kill -9`` of an executor: nothing that it started outlives it.

Each time 12 processes in 4 sandboxes, that hide as well as they can; not 50 times, since nothing in
it depends on chance: the kernel kills by what was set when each process was started.
"""

import asyncio
import contextlib
import glob
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract.fixtures import REAL
from tests.contract.kit import command, descendants, living, marker, until
from tests.contract.traits import TRAITS

from stockade.executor import PoolPolicy, open_local
from stockade.port import Tier
from stockade.port.policy import OWN_KERNEL

pytestmark = pytest.mark.plain_user

EXECUTOR = """
import asyncio, sys
from stockade.executor import PoolPolicy, open_local
from stockade.port import Command, ExecutionRequest, PythonSource, SandboxRequest, Tier

HIDE = '''
import os, signal, sys
for n in signal.valid_signals() - {9, 19, 17}: signal.signal(n, signal.SIG_IGN)
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        break
os.write(1, b"up ")
os.execvp("sleep", ["sleep", sys.argv[1]])
'''

async def main():
    heard = b""

    async def hear(stream, data):
        nonlocal heard
        heard += data

    async with open_local(
        pool=PoolPolicy.fixed(2), tiers={Tier(sys.argv[2])}, allow_emulation=True
    ) as environment:
        mark = sys.argv[1]
        program = ExecutionRequest(PythonSource(HIDE, (mark,)))
        running = [await environment.start(program, on_output=hear) for _ in range(2)]
        other = SandboxRequest(tenant="other")
        running.append(await environment.start(program, other, on_output=hear))
        session = await environment.open_session()
        running.append(await session.start(program, on_output=hear))
        idle = await environment.open_session()
        await idle.write_file("f", b"x")
        while heard.count(b"up ") < 12:
            await asyncio.sleep(0.01)
        print("up", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def guests(executor: int) -> set[int]:
    return set(descendants(executor))


def cgroups(executor: int) -> list[str]:
    # Not Path.glob, which fails where another executor removes a directory meanwhile.
    return glob.glob(f"/sys/fs/cgroup/**/stockade-{executor}-*", recursive=True)  # noqa: PTH207


def folders(executor: int) -> list[Path]:
    """Those that it holds for the time that it lives."""
    found = []
    for descriptor in Path(f"/proc/{executor}/fd").iterdir():
        with contextlib.suppress(OSError):
            path = descriptor.readlink()
            if "stockade" in str(path) and "cgroup" not in str(path) and path.is_dir():
                found.append(path)
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("tier", REAL)
async def test_nothing_outlives_it(tier: Tier, number: int) -> None:
    mark = marker()
    mounts = Path("/proc/self/mountinfo").read_text()
    with subprocess.Popen(
        [sys.executable, "-c", EXECUTOR, mark, tier],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as executor:
        assert executor.stdout is not None
        assert await asyncio.to_thread(executor.stdout.readline) == b"up\n"
        if TRAITS[tier].shows_guests:
            await until(lambda: len(living(mark)) >= 12)
        below, held = guests(executor.pid), folders(executor.pid)
        # Of five sandboxes, those parked, and whatever starts them.
        assert len(below) > (16 if tier is not Tier.MICROVM else 10)
        assert len(held) == (1 if tier in OWN_KERNEL else 0)
        executor.send_signal(number)
        executor.wait(5)
        await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))
    assert living(mark) == []
    # Nor one that had left the tree of its processes: their command lines name the folder.
    assert [living(str(folder)) for folder in held] == [[] for _ in held]
    assert Path("/proc/self/mountinfo").read_text() == mounts
    # The directories of its cgroups are empty; the next executor removes them, and its folder.
    async with open_local(warm=False, tiers={tier}, allow_emulation=True) as environment:
        assert (await environment.run(command("true"))).ok
        assert cgroups(executor.pid) == []
        assert not any(folder.exists() for folder in held)


@pytest.mark.tier("namespace")
async def test_a_killed_launcher_takes_its_sandboxes_along() -> None:
    mark = marker()
    async with open_local(pool=PoolPolicy.fixed(1), tiers={Tier.NAMESPACE}) as environment:
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
