"""The processes below this one, as the kernel shows them."""

import os
import re
from collections import defaultdict
from pathlib import Path

_PROC = Path("/proc")


def descendants() -> set[int]:
    """Every process below this one, its zombies included."""
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
    waiting = [os.getpid()]
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
