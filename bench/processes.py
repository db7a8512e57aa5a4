"""The processes below this one, as the kernel shows them."""

import ctypes
import os
import platform
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
# kcmp(2): whether two processes share something.
_SYS_KCMP = {"x86_64": 312, "aarch64": 272}[platform.machine()]
_KCMP_VM = 1
_USAGE = ("memory.usage_in_bytes", "memory.current")


def descendants(ancestor: int | None = None) -> set[int]:
    """Every process below that one, by default this one, its zombies included."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status = (entry / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # After the name, which may hold anything: the state, then the parent. proc_pid_stat(5).
        children[int(status.rpartition(")")[2].split()[1])].append(int(entry.name))
    found: set[int] = set()
    waiting = [os.getpid() if ancestor is None else ancestor]
    while waiting:
        below = children[waiting.pop()]
        found.update(below)
        waiting += below
    return found


def innermost_pid_namespaces() -> list[set[int]]:
    """Our descendants by pid namespace; only those namespaces that have no other within.

    With nothing running these are the parked sandboxes: their zygote's holds them.
    """
    members: defaultdict[tuple[int, str], set[int]] = defaultdict(set)
    for pid in descendants():
        try:
            space = str(Path(f"/proc/{pid}/ns/pid").readlink())
            status = Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # One number per namespace that the process is in, ours first.
        numbers = re.search(r"^NSpid:\s+(.*)$", status, re.MULTILINE)
        assert numbers is not None
        members[len(numbers[1].split()), space].add(pid)
    depth = max((depth for depth, _ in members), default=0)
    return [pids for (at, _), pids in members.items() if at == depth > 1]


def memory(pid: int) -> tuple[int, int]:
    """Unshared and proportional bytes of a process. proc_pid_smaps(5)"""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    sizes = {
        name: int(size) * 1024 for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.M)
    }
    return sum(size for name, size in sizes.items() if name.startswith("Private_")), sizes["Pss"]


def supervised() -> list[set[int]]:
    """Our children that watch over runsc, each with all that is below it.

    With nothing running these are the parked gVisor sandboxes.
    """
    tasks = (_PROC / str(os.getpid()) / "task").iterdir()
    children = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return [
        {child, *descendants(child)}
        for child in children
        if _executable(child) == "stockade-supervise"
    ]


def _executable(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "exe").readlink().name
    except FileNotFoundError:  # a zombie has none
        return ""


@dataclass(frozen=True, slots=True)
class Charge:
    """What a memory cgroup holds and could not drop at need: all but the cache of files."""

    total: int
    anonymous: int
    shared: int
    """Of tmpfs and memfds, whether anybody has it mapped or not."""


def charge(pids: set[int]) -> Charge | None:
    """Of the cgroup that those processes have to themselves; None: they have none."""
    places = {_memory_cgroup(pid) for pid in pids}
    if len(places) != 1 or None in places or places == {_memory_cgroup(os.getpid())}:
        return None
    (place,) = places
    assert place is not None
    usage = next(place / n for n in _USAGE if (place / n).exists())
    lines = (line.split() for line in (place / "memory.stat").read_text().splitlines())
    sizes = {name: int(size) for name, size in lines}
    return Charge(
        int(usage.read_text()) - sizes["inactive_file"] - sizes["active_file"],
        sizes["rss"] if "rss" in sizes else sizes["anon"],
        sizes["shmem"],
    )


def address_spaces(pids: set[int]) -> list[int]:
    """One process for each address space: what several run in is not to be counted twice."""
    libc = ctypes.CDLL(None, use_errno=True)
    found: list[int] = []
    for pid in sorted(pids):
        answers = [libc.syscall(_SYS_KCMP, pid, other, _KCMP_VM, 0, 0) for other in found]
        if -1 in answers:
            raise OSError(ctypes.get_errno(), "kcmp")
        if 0 not in answers:
            found.append(pid)
    return found


def _memory_cgroup(pid: int) -> Path | None:
    """cgroups(7): version 1 names controllers, version 2 is the line without any."""
    root = Path("/sys/fs/cgroup")
    unified = None
    for line in (_PROC / str(pid) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return root / "memory" / path[1:]
        if not controllers:
            unified = root / path[1:]
    return unified if unified is not None and (unified / "memory.stat").exists() else None
