"""The limits on this machine: real cgroups, real processes."""

import asyncio
import contextlib
import glob
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stockade.executor.cgroups import (
    CgroupTree,
    GuestCeilings,
    GuestCgroup,
    LegacyTree,
    NoTree,
    UnifiedTree,
    find_cgroups,
)
from stockade.executor.cgroups.kernel import LinuxHost
from stockade.executor.cgroups.mounts import read_hierarchies
from stockade.executor.cgroups.probe import MOUNTINFO, SELF_CGROUP
from stockade.port import Enforcement

MIB = 1 << 20
ROOMY = GuestCeilings(256 * MIB, 64, 1)
HIERARCHIES = read_hierarchies(SELF_CGROUP, MOUNTINFO)


@pytest.fixture
def tree() -> Iterator[CgroupTree]:
    found = find_cgroups()
    if isinstance(found, NoTree):
        pytest.skip(found.description)
    yield found
    found.close()


@pytest.fixture
def legacy(tree: CgroupTree) -> LegacyTree:
    if not isinstance(tree, LegacyTree):
        pytest.skip("needs root and cgroup v1: " + tree.description)
    return tree


@pytest.fixture
def unified() -> Iterator[UnifiedTree]:
    if HIERARCHIES.unified is None or os.geteuid() != 0:
        pytest.skip("needs root and a mount of cgroup v2")
    found = UnifiedTree(LinuxHost(), HIERARCHIES.unified.own or HIERARCHIES.unified.mount_point)
    yield found
    found.close()


def need(tree: CgroupTree, *fields: str) -> None:
    kept = tree.enforcement()
    if absent := [field for field in fields if kept[field] is Enforcement.ABSENT]:
        pytest.skip(f"no limit on {', '.join(absent)} here: {tree.description}")


def start(guest: GuestCgroup, body: Callable[[], object]) -> int:
    """Fork a process that enters, closes the doors and runs ``body``; it has entered."""
    fds = guest.join_fds()
    entered_read, entered_write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(entered_write)
        entered = os.read(entered_read, 1)
        os.close(entered_read)
        assert entered
        return pid
    try:
        for fd in fds:
            os.write(fd, b"0")
        guest.close_fds()
        os.write(entered_write, b"!")
        os.close(entered_write)
        body()
        os._exit(0)
    finally:
        os._exit(77)


def wait(pid: int) -> int:
    """The exit code, or a negative signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def until(true: Callable[[], bool], seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def hold(size: int) -> None:
    kept = bytearray(size)
    for offset in range(0, size, 4096):
        kept[offset] = 1
    time.sleep(60)


async def test_a_process_enters_is_counted_and_leaves_nothing(tree: CgroupTree) -> None:
    need(tree, "cpu_seconds")

    def spin() -> None:
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass

    guest = tree.create("one", ROOMY)
    pid = start(guest, spin)
    assert wait(pid) == 0
    usage = guest.usage()
    assert usage.cpu_seconds is not None
    assert 0.19 < usage.cpu_seconds < 1
    assert (usage.oom_kills, usage.pids_refused) == (0, 0)
    assert guest.empty()
    await guest.remove()


async def test_memory_hog_of_several_processes_is_killed_and_reported(tree: CgroupTree) -> None:
    """CASES.md 154: each stays below the ceiling; together they exceed it."""
    need(tree, "memory_bytes")
    guest = tree.create("hog", GuestCeilings(64 * MIB, 64, 2))
    noticed = asyncio.Event()
    guest.watch_oom(asyncio.get_running_loop(), noticed.set)
    pids = [start(guest, lambda: hold(30 * MIB)) for _ in range(4)]
    async with asyncio.timeout(10):
        await noticed.wait()
    until(lambda: guest.usage().oom_kills >= 1)
    usage = guest.usage()
    assert usage.peak_memory_bytes is None or 60 * MIB < usage.peak_memory_bytes <= 64 * MIB
    guest.kill()
    assert {wait(pid) for pid in pids} == {-signal.SIGKILL}
    await guest.remove()


async def test_a_guest_has_no_swap(tree: CgroupTree) -> None:
    need(tree, "memory_bytes")
    guest = tree.create("has-no-swap", ROOMY)
    above = f"/sys/fs/cgroup/**/stockade-{os.getpid()}-*/**/has-no-swap"
    # Not Path.glob, which fails where another executor removes a directory meanwhile.
    found = {
        name: Path(path).read_text().strip()
        for name in ("memory.swap.max", "memory.swappiness")
        for path in glob.glob(f"{above}/{name}", recursive=True)  # noqa: PTH207
    }
    await guest.remove()
    if not found:
        pytest.skip("this kernel does not count swap")
    assert set(found.values()) == {"0"}, found


async def test_a_stop_is_not_taken_for_an_oom(tree: CgroupTree) -> None:
    """CASES.md 154: killing a healthy sandbox, and removing it, reports no OOM."""
    calls: list[None] = []
    guest = tree.create("healthy", ROOMY)
    guest.watch_oom(asyncio.get_running_loop(), lambda: calls.append(None))
    pid = start(guest, lambda: time.sleep(60))
    assert not guest.empty()
    guest.kill()
    assert wait(pid) == -signal.SIGKILL
    assert guest.usage().oom_kills == 0
    await guest.remove()
    await asyncio.sleep(0.05)
    assert calls == []


async def test_processes_over_the_ceiling_are_refused_and_counted(tree: CgroupTree) -> None:
    need(tree, "processes")

    def bomb() -> None:
        started = 1
        try:
            while started < 100:
                if os.fork() == 0:
                    time.sleep(60)
                    os._exit(0)
                started += 1
        except BlockingIOError:
            os._exit(started)

    guest = tree.create("bomb", GuestCeilings(256 * MIB, 10, 1))
    assert wait(start(guest, bomb)) == 10
    usage = guest.usage()
    assert usage.pids_refused >= 1
    assert usage.peak_processes in (None, 10)
    assert not guest.empty()
    guest.kill()
    until(guest.empty)
    await guest.remove()


async def test_cpu_share_is_kept(tree: CgroupTree) -> None:
    need(tree, "cpus", "cpu_seconds")

    def spin() -> None:
        while True:
            pass

    guest = tree.create("spin", GuestCeilings(256 * MIB, 64, 0.2))
    pid = start(guest, spin)
    began = time.monotonic()
    await asyncio.sleep(1)
    guest.kill()
    wait(pid)
    used = guest.usage().cpu_seconds
    assert used is not None
    assert 0.02 < used < 0.45 * max(1.0, time.monotonic() - began)
    await guest.remove()


async def test_ceilings_change_up_and_down(tree: CgroupTree) -> None:
    need(tree, "memory_bytes")
    guest = tree.create("changes", GuestCeilings(64 * MIB, 64, 1))
    for size in (512, 32, 256):
        guest.set_ceilings(GuestCeilings(size * MIB, 64, 1))
    pid = start(guest, lambda: hold(100 * MIB))
    if guest.usage().peak_memory_bytes is None:
        pytest.skip("this kernel does not count the peak")
    until(lambda: (guest.usage().peak_memory_bytes or 0) > 90 * MIB)
    assert guest.usage().oom_kills == 0
    guest.kill()
    wait(pid)
    await guest.remove()


async def test_a_process_without_any_right_enters_by_our_descriptor(tree: CgroupTree) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to drop it")
    guest = tree.create("dropped", ROOMY)
    fds = guest.join_fds()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(65_534, 65_534, 65_534)
            os.setresuid(65_534, 65_534, 65_534)
            for fd in fds:
                os.write(fd, b"0")
            time.sleep(60)
        finally:
            os._exit(1)
    until(lambda: Path(f"/proc/{pid}/cgroup").read_text().count("/dropped\n") == len(fds))
    guest.kill()
    assert wait(pid) == -signal.SIGKILL
    await guest.remove()


async def test_removal_waits_for_what_is_still_dying(tree: CgroupTree) -> None:
    guest = tree.create("dying", ROOMY)
    pids = [start(guest, lambda: hold(10 * MIB)) for _ in range(8)]
    guest.kill()
    await guest.remove()
    assert {wait(pid) for pid in pids} == {-signal.SIGKILL}


async def test_kill_ends_a_fork_bomb(tree: CgroupTree) -> None:
    need(tree, "processes")

    def bomb() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            with contextlib.suppress(OSError):
                os.fork()

    guest = tree.create("bomb", GuestCeilings(256 * MIB, 40, 1))
    pid = start(guest, bomb)
    until(lambda: guest.usage().pids_refused > 0)
    guest.kill()
    until(guest.empty, 10)
    assert wait(pid) == -signal.SIGKILL
    await guest.remove()


async def test_nothing_stays_open(tree: CgroupTree) -> None:
    def fds() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    loop = asyncio.get_running_loop()
    before = fds()
    for number in range(5):
        guest = tree.create(f"g{number}", ROOMY)
        guest.join_fds()
        guest.watch_oom(loop, lambda: None)
        await guest.remove()
    assert fds() == before


def test_two_trees_in_one_process(tree: CgroupTree) -> None:
    again = find_cgroups()
    assert again.enforcement() == tree.enforcement()
    assert again.description != tree.description
    again.close()


def test_closing_kills_and_removes_everything(legacy: LegacyTree) -> None:
    tree = find_cgroups()
    assert isinstance(tree, LegacyTree)
    guest = tree.create("one", ROOMY)
    pid = start(guest, lambda: time.sleep(60))
    assert not guest.empty()
    paths = [Path(directory.path) for directory in tree.directories]
    tree.close()
    assert wait(pid) == -signal.SIGKILL
    assert not any(path.exists() for path in paths)


def test_what_a_killed_executor_left_is_removed(tree: CgroupTree) -> None:
    program = (
        "import time\n"
        "from stockade.executor.cgroups import find_cgroups, GuestCeilings\n"
        "tree = find_cgroups()\n"
        "tree.create('one', GuestCeilings(1 << 28, 64, 1))\n"
        "print(tree.description, flush=True)\n"
        "time.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert child.stdout is not None
    places = child.stdout.readline().decode().split("; no ")[0].split(" in ", 1)[1].strip()
    paths = [Path(text) for text in places.split(", ")]
    assert all((path / "one").is_dir() for path in paths)
    # Alive: another executor leaves it alone.
    find_cgroups().close()
    assert all((path / "one").is_dir() for path in paths)
    child.kill()
    # Dead, though not yet waited for.
    until(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    again = find_cgroups()
    assert again.leftovers == []
    assert not any(path.exists() for path in paths)
    again.close()
    child.communicate()


def test_missing_hierarchy_is_reported_for_its_limit_alone(
    legacy: LegacyTree, tmp_path: Path
) -> None:
    """CASES.md 113: what is missing is named; the rest still holds."""
    mounts = tmp_path / "mountinfo"
    lines = MOUNTINFO.read_text().splitlines(keepends=True)
    mounts.write_text("".join(line for line in lines if "cgroup" in line and "pids" not in line))
    tree = find_cgroups(mountinfo=mounts)
    assert tree.enforcement() == legacy.enforcement() | {"processes": Enforcement.ABSENT}
    assert "no pids: no v1 hierarchy with it is mounted" in tree.description
    assert any("mount -t cgroup -o pids" in text for text in tree.remedies)
    tree.close()


class TestUnified:
    """v2 without controllers where v1 has them: entering, killing and counting still work."""

    async def test_enter_kill_remove(self, unified: UnifiedTree) -> None:
        guest = unified.create("one", ROOMY)
        assert guest.empty()
        pid = start(guest, lambda: time.sleep(60))
        assert not guest.empty()
        guest.kill()
        assert wait(pid) == -signal.SIGKILL
        until(guest.empty)
        cpu = guest.usage().cpu_seconds
        assert cpu is not None
        assert cpu > 0
        await guest.remove()

    def test_what_is_missing_is_named(self, unified: UnifiedTree) -> None:
        kept = unified.enforcement()
        for controller, field in (("memory", "memory_bytes"), ("pids", "processes")):
            assert (controller in unified.missing) == (kept[field] is Enforcement.ABSENT)
