"""All processes below one, found by their parents: with cgroups and without."""

import contextlib
import os
import signal
from pathlib import Path


def process_of(pidfd: int) -> int:
    """The pid behind a pidfd; -1 where it is gone (pidfd_open(2))."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Pid":
            return int(value)
    return -1


def signal_below(init: int, number: signal.Signals) -> None:
    """Send a signal to every process below ``init``, a namespace's pid 1, but not to itself.

    SIGSTOP reaches all of them, even against a fork bomb: a process that has a signal pending does
    not fork (copy_process: ERESTARTNOINTR), what it forked before is met by the next sweep, and
    whoever lost its parent is a child of pid 1. So it ends, when a sweep meets nobody new.
    """
    signalled: set[tuple[int, int]] = set()
    while fresh := _below(init) - signalled:
        for process in fresh:
            _send(process, number)
        signalled |= fresh
        if number is not signal.SIGSTOP:
            return  # who goes on may fork, and what it forks was never stopped


def stand_still(init: int) -> bool:
    """Whether every process below ``init`` is stopped; of none: yes."""
    return all(_state(pid) in b"TtZX" for pid, _ in _below(init))


def go_on(init: int) -> bool:
    """Whether no process below ``init`` is stopped."""
    return all(_state(pid) not in b"T" for pid, _ in _below(init))


def awaits(pid: int, number: signal.Signals) -> bool:
    """Whether a signal was sent to a process that it has not taken yet: proc_pid_status(5)."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return False
    masks = [line for line in status.splitlines() if line.startswith((b"SigPnd:", b"ShdPnd:"))]
    return any(int(mask.split()[1], 16) >> (number - 1) & 1 for mask in masks)


def _state(pid: int) -> bytes:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return b"X"
    return stat[stat.rindex(b")") + 2 :].split()[0]


def _below(init: int) -> set[tuple[int, int]]:
    """Pid and start, by which a pid that is used again is told from it."""
    if init <= 0:
        return set()
    children: dict[int, list[tuple[int, int]]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - of many processes, and often
        if entry.isdigit() and (found := _parent_and_start(int(entry))) is not None:
            children.setdefault(found[0], []).append((int(entry), found[1]))
    below: set[tuple[int, int]] = set()
    above = [init]
    while above:
        for process in children.get(above.pop(), ()):
            if process not in below:
                below.add(process)
                above.append(process[0])
    return below


def _parent_and_start(pid: int) -> tuple[int, int] | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The command's name may hold spaces and parentheses: count from the last one.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else (int(fields[1]), int(fields[19]))


def _send(process: tuple[int, int], number: signal.Signals) -> None:
    pid, start = process
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            # It is held now: if it is still the one that was met, it stays that one.
            found = _parent_and_start(pid)
            if found is not None and found[1] == start:
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)
