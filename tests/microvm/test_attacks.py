"""Machines that are killed, stopped, or flood their console in the middle of a call.

And a host that is in the way of the next one: its copy's files are damaged, or its disk is full.
What programs attempt from within, `stockade attack --tier microvm` and tests/attack know.
"""

import asyncio
import contextlib
import errno
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.contract.kit import (
    Heard,
    Watch,
    descendants,
    descriptors,
    explain,
    settled,
    small,
    soon,
    source,
    stdout_of,
    until,
)

from stockade.cli.attack.host_checks import Traces
from stockade.executor import PoolPolicy, files, open_local, snapshot_tier
from stockade.executor.environment import LocalEnvironment
from stockade.executor.microvm.snapshot import Template
from stockade.executor.microvm.tier import MicrovmTier
from stockade.port import (
    Outcome,
    RunningExecution,
    SandboxLost,
    SandboxRequest,
    StockadeError,
    Tier,
    Unavailable,
)

pytestmark = [
    pytest.mark.alone,
    pytest.mark.tier("microvm"),
    pytest.mark.asyncio(loop_scope="module"),
]

BUSY = source("print('up', flush=True)\nwhile True: pass")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def environment() -> AsyncIterator[LocalEnvironment]:
    """One for all; when it is closed, nothing is left of whatever was done to its machines."""
    traces, files_open = Traces.now(), descriptors()
    async with open_local(
        pool=PoolPolicy.fixed(0), tiers={Tier.MICROVM}, allow_emulation=True
    ) as opened:
        folder = tier_of(opened)._state.path
        await served(opened)
        yield opened
    assert Traces.now().added(traces) == []
    assert list(descriptors().items() - files_open.items()) == []
    assert not folder.exists()


def tier_of(environment: LocalEnvironment) -> MicrovmTier:
    driver = environment._tiers.opened(Tier.MICROVM)
    assert isinstance(driver, MicrovmTier)
    return driver


async def template_of(environment: LocalEnvironment) -> Template:
    """That of the profile which is there by default."""
    (kept,) = tier_of(environment)._templates._kept.values()
    return await kept.making


async def served(environment: LocalEnvironment) -> None:
    """Whatever befell the machines before, the next call gets one that works."""
    assert stdout_of(await environment.run(source("print(6 * 7)"))) == "42\n"


async def busy(
    environment: LocalEnvironment, request: SandboxRequest | None = None
) -> tuple[RunningExecution, Watch]:
    """A program that computes without end, and its machine in the host's eyes."""
    heard = Heard()
    running = await environment.start(BUSY, request, on_output=heard)
    await heard.until(b"up")
    return running, Watch(running)


def monitors() -> set[int]:
    """The VMMs below this process. Their supervisors are no machines."""
    found = set()
    for pid in descendants():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"-nodefaults" in words and b"--parent" not in words and b"--" not in words:
                found.add(pid)
    return found


async def test_a_monitor_that_is_killed_in_the_middle_of_a_call(
    environment: LocalEnvironment,
) -> None:
    running, watch = await busy(environment)
    (monitor,) = monitors()
    os.kill(monitor, signal.SIGKILL)
    record = await soon(running.wait())
    assert record.outcome is Outcome.LOST, explain(record)
    assert record.stdout.content == b"up\n"
    assert watch.living() == []
    await served(environment)


async def test_a_monitor_that_is_killed_while_a_machine_is_restored(
    environment: LocalEnvironment,
) -> None:
    """The call is served by another, or refused; it neither hangs nor is half a machine's."""
    before = await settled()
    starting = asyncio.create_task(environment.run(source("print(1)")))
    await until(monitors)
    os.kill(monitors().pop(), signal.SIGKILL)
    try:
        record = await soon(starting, 30)
        assert stdout_of(record) == "1\n"
    except (Unavailable, SandboxLost) as error:
        assert "QEMU" in str(error) or "ended" in str(error)  # noqa: PT017
    await until(lambda: set(descendants()) <= before)
    await served(environment)


async def test_a_monitor_that_stands_still_does_not_outlive_its_wall_clock(
    environment: LocalEnvironment,
) -> None:
    running, watch = await busy(environment, small(wall_seconds=4))
    watch.stand_still()
    began = time.monotonic()
    record = await soon(running.wait(), 10)
    assert record.outcome is Outcome.WALL_CLOCK, explain(record)
    assert time.monotonic() - began < 9
    assert watch.living() == []
    await served(environment)


async def test_a_monitor_that_stands_still_can_be_cancelled(environment: LocalEnvironment) -> None:
    running, watch = await busy(environment)
    watch.stand_still()
    await running.cancel()
    record = await soon(running.wait(), 3)
    assert record.outcome is Outcome.CANCELLED, explain(record)
    assert watch.living() == []


async def test_a_machine_that_never_answers_is_no_session_for_ever(
    environment: LocalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PATIENCE_SECONDS", 0.5)
    session = await environment.open_session()
    await session.write_file("f", b"x")
    watch = Watch(session)
    watch.stand_still()
    with pytest.raises(SandboxLost, match="silent for"):
        await soon(session.write_file("g", b"x"), 3)
    with pytest.raises(SandboxLost):
        await soon(session.list_files(), 3)
    await soon(session.close(), 3)
    assert watch.living() == []


async def test_a_machine_that_never_says_hello(
    environment: LocalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent was not sent on: nothing that it could say is waited for without end."""
    before = await settled()
    monkeypatch.setattr(snapshot_tier, "HELLO_SECONDS", 0.5)
    monkeypatch.setattr(MicrovmTier, "_send_on", lambda *_: None)
    with pytest.raises((Unavailable, SandboxLost), match=r"said nothing in 0\.5 s"):
        await soon(environment.run(source("pass")), 20)
    await until(lambda: set(descendants()) <= before)
    monkeypatch.undo()
    await served(environment)


async def test_a_guest_whose_kernel_has_much_to_say(environment: LocalEnvironment) -> None:
    """Programs that crash are worth a line of its log each; none of it reaches a caller."""
    crash = source(
        "import ctypes, os\n"
        "for _ in range(100):\n"
        "    if os.fork() == 0: ctypes.string_at(0)\n"
        "    assert os.WTERMSIG(os.wait()[1]) == 11\n"
        "print('done')"
    )
    record = await environment.run(crash)
    assert stdout_of(record) == "done\n"
    assert record.stderr.content == b""


async def test_copies_at_once_have_nothing_random_in_common(environment: LocalEnvironment) -> None:
    """Asked of the kernel itself, and at once: they were one machine a moment ago."""
    text = source(
        "import os\n"
        "print(os.urandom(16).hex(), os.getrandom(16).hex(), os.getrandom(16, os.GRND_RANDOM).hex())\n"
        "for name in ('random', 'urandom'): print(open('/dev/' + name, 'rb').read(16).hex())\n"
        "import ctypes\n"
        "kernel = ctypes.CDLL(None).getauxval; kernel.restype = ctypes.c_ulong\n"
        "print(ctypes.string_at(kernel(25), 16).hex(), kernel(33), hash('stockade'))",  # AT_RANDOM
        fresh=True,
    )
    rows = [
        stdout_of(record).split()
        for record in await asyncio.gather(*(environment.run(text) for _ in range(3)))
    ]
    assert len(rows[0]) == 8
    for column in zip(*rows, strict=True):
        assert len(set(column)) == 3, rows


async def test_a_saved_machine_that_was_changed_is_refused_and_made_anew(
    environment: LocalEnvironment,
) -> None:
    """Cut short, or another VMM's, it is as little one to start from: test_vmm.py."""
    template = await template_of(environment)
    state = template._folder / "state"
    content = state.read_bytes()
    state.write_bytes(content[:1000] + bytes([content[1000] ^ 1]) + content[1001:])
    with pytest.raises(StockadeError, match="is not what was saved"):
        await environment.run(source("pass"))
    await served(environment)
    assert await template_of(environment) is not template
    assert not state.exists()


async def test_a_disk_that_is_full_when_a_machine_is_copied(
    environment: LocalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await settled(), len(descriptors())

    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", full)
        with pytest.raises(Unavailable, match="No space left"):
            await environment.run(source("pass"))
    assert await settled() <= before[0]
    assert len(descriptors()) <= before[1]
    await served(environment)
