"""What a guest could take of the one kernel that all share, beside memory and processes."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stockade.client import BlockingEnvironment
from stockade.executor import open_local
from stockade.port import (
    MIB,
    Enforcement,
    ExecutionEnvironment,
    ExecutionRequest,
    Limits,
    PythonSource,
    SandboxRequest,
    Tier,
)

pytestmark = [pytest.mark.plain_user]
in_one_loop = pytest.mark.asyncio(loop_scope="module")

SOCKETS = """
import socket, time
held, total = [], 0
listener = socket.create_server(('127.0.0.1', 0))
try:
    for _ in range(100):
        a = socket.create_connection(listener.getsockname()); b, _ = listener.accept()
        for s, option in ((a, socket.SO_SNDBUF), (b, socket.SO_RCVBUF)):
            s.setsockopt(socket.SOL_SOCKET, option, 1 << 30)
        a.setblocking(False); held += [a, b]
        for _ in range(50):
            try: total += a.send(bytes(1 << 20))
            except BlockingIOError: time.sleep(0.001)
except OSError:
    pass
print(total >> 20)
"""
TERMINALS = """
import os
held = []
try:
    while len(held) < 1000: held.append(os.open('/dev/ptmx', os.O_RDWR))
except OSError: pass
print(len(held))
"""
DEVICES = """
import os, errno
for path in ('/dev/null', '/dev/zero', '/dev/full'):
    try: os.utime(path); print('touched', path)
    except OSError as error: print(errno.errorcode[error.errno])
open('/dev/null', 'w').write('it can be written to')
"""
LOOKS = """
import os, signal
open('/proc/self/comm', 'w').write('stockade:exit')
for _ in range(10): os.kill(os.getpid(), signal.SIGSTOP)
print('went on')
"""


async def run(real: ExecutionEnvironment, text: str, **limits: float) -> str:
    sandbox = SandboxRequest(limits=Limits(**limits))  # type: ignore[arg-type]
    execution = await real.run(ExecutionRequest(PythonSource(text)), sandbox)
    return execution.stdout.text()


@in_one_loop
async def test_buffers_of_sockets_are_bounded(real: ExecutionEnvironment) -> None:
    """SECURITY 67: kernel memory of sockets is outside the ceiling, and all of TCP stands still."""
    sandbox = SandboxRequest(limits=Limits(memory_bytes=128 * MIB))
    execution = await real.run(ExecutionRequest(PythonSource(SOCKETS)), sandbox)
    if execution.enforcement["memory_bytes"] is not Enforcement.ENFORCED:
        pytest.skip("no cgroup counts memory here: a known limit")
    told = execution.stdout.text().strip()
    assert not told or int(told) <= 128


@in_one_loop
async def test_terminals_of_the_kernel_are_left_to_others(real: ExecutionEnvironment) -> None:
    """SECURITY 40: one guest takes every pseudo-terminal there is."""
    assert int(await run(real, TERMINALS, open_files=2000)) <= 64


@in_one_loop
async def test_a_device_of_the_host_is_not_touched(real: ExecutionEnvironment) -> None:
    """SECURITY 43: times of the host's own device nodes are changed from inside."""
    assert await run(real, DEVICES) == "EROFS\n" * 3


@in_one_loop
async def test_the_agent_does_not_work_for_a_program_without_end(
    real: ExecutionEnvironment,
) -> None:
    """SECURITY 68: a program has the agent, outside its ceiling, look at it again and again."""
    assert await run(real, LOOKS, wall_seconds=1.0) == ""


@in_one_loop
async def test_a_session_keeps_nothing_of_its_executions(real: ExecutionEnvironment) -> None:
    """CASES 110: memory of the service grows with each run.

    Here what a run leaves on objects that live longer. Memory itself grows by so little each time
    that a test would have to run for hours; what processes, descriptors and files stay behind
    is counted by tests/contract/test_leaves_nothing.py, and over 1,000 runs by ./dev bench.
    """
    async with await real.open_session() as session:
        for _ in range(5):
            await session.run(ExecutionRequest(PythonSource("print(1)")))
        broken = session._sandbox.link.broken  # type: ignore[attr-defined]
        assert not broken._callbacks


@pytest.mark.tier("namespace")
def test_environments_can_be_opened_at_once() -> None:
    """Several threads each open one: none waits for another's forked child."""

    def work(done: list[bool]) -> None:
        with BlockingEnvironment(
            lambda: open_local(warm=False, tiers={Tier.NAMESPACE})
        ) as stockade:
            done.append(stockade.run("print(1)").ok)

    done: list[bool] = []
    threads = [threading.Thread(target=work, args=(done,), daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert done == [True] * 4


@pytest.mark.tier("namespace")
async def test_cancelled_openings_leave_nothing() -> None:
    """A call is given up while the executor is still looking at its host."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for delay in (0.0, 0.005, 0.02, 0.05):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(delay), open_local(warm=False, tiers={Tier.NAMESPACE}):
                await asyncio.sleep(10)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2


@pytest.mark.tier("namespace")
def test_a_strict_umask_is_no_hindrance() -> None:
    """What the launcher makes is for another user to read, whatever the caller's umask."""
    command = [sys.executable, "-m", "stockade.cli.main", "run", "--tier", "namespace"]
    command += ["-c", "print('ran')"]
    ended = subprocess.run(command, umask=0o077, capture_output=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, b"ran\n"), ended.stderr
