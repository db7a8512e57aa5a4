"""The few ways in which cgroup files are touched, and the trial by a real process."""

import contextlib
import errno
import mmap
import os
import signal
import warnings
from collections.abc import Callable
from typing import Protocol, TypeVar

_BATCH = 64
T = TypeVar("T")

# What a process on trial touches, so that a memory counter that counts shows it.
TRIAL_BYTES = 4 * 1024 * 1024

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class Host(Protocol):
    """The kernel's part that an imitation of a cgroup file system cannot play as plain files."""

    def mkdir(self, name: str, dir_fd: int) -> None:
        """Make a cgroup."""
        ...

    def rmdir(self, name: str, dir_fd: int) -> None:
        """Remove a cgroup."""
        ...

    def move(self, pid: int, dir_fd: int) -> None:
        """Put a process into a cgroup; 0 is the caller."""
        ...

    def switch(self, controller: str, on: bool, dir_fd: int) -> None:
        """Give a controller to the children of a v2 cgroup, or take it back."""
        ...

    def visit(self, join_fd: int, inspect: Callable[[int, bool], T]) -> T:
        """Put a forked child into a cgroup and call ``inspect`` while it waits inside.

        The child has touched ``TRIAL_BYTES`` and has tried to fork; ``inspect`` is given
        its pid and whether that was refused.
        """
        ...


class LinuxHost:
    """The real one."""

    def mkdir(self, name: str, dir_fd: int) -> None:
        """Make a cgroup."""
        os.mkdir(name, 0o755, dir_fd=dir_fd)

    def rmdir(self, name: str, dir_fd: int) -> None:
        """Remove a cgroup."""
        os.rmdir(name, dir_fd=dir_fd)

    def move(self, pid: int, dir_fd: int) -> None:
        """Put a process into a cgroup; 0 is the caller."""
        write(dir_fd, "cgroup.procs", b"%d" % pid)

    def switch(self, controller: str, on: bool, dir_fd: int) -> None:
        """Give a controller to the children of a v2 cgroup, or take it back."""
        write(dir_fd, "cgroup.subtree_control", (b"+" if on else b"-") + controller.encode())

    def visit(self, join_fd: int, inspect: Callable[[int, bool], T]) -> T:
        """Fork, let the child enter, inspect, let it go."""
        report_read, report_write = os.pipe()
        release_read, release_write = os.pipe()
        with warnings.catch_warnings():
            # Python warns of a fork beside threads; the child makes system calls only.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os.close(release_write)
            _be_on_trial(join_fd, report_write, release_read)
        try:
            os.close(report_write)
            os.close(release_read)
            report = os.read(report_read, 16)
            if report not in (b"refused", b"forked"):
                number = int(report) if report.isdigit() else errno.EIO
                raise OSError(number, f"cannot enter it ({os.strerror(number)})")
            return inspect(pid, report == b"refused")
        finally:
            # A byte, not the end of file alone: a process that another thread forked
            # meanwhile may hold a copy of this end for ever.
            os.write(release_write, b".")
            os.close(release_write)
            os.close(report_read)
            os.waitpid(pid, 0)


def _be_on_trial(join_fd: int, report: int, release: int) -> None:
    try:
        os.write(join_fd, b"0")
        pages = mmap.mmap(-1, TRIAL_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for offset in range(0, TRIAL_BYTES, mmap.PAGESIZE):
            pages[offset] = 1
        try:
            child = os.fork()
        except BlockingIOError:
            os.write(report, b"refused")
        else:
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            os.write(report, b"forked")
        os.read(release, 1)
    except OSError as error:
        os.write(report, b"%d" % (error.errno or errno.EIO))
    finally:
        os._exit(0)


def open_directory(name: str, dir_fd: int | None = None) -> int:
    """Open a directory, not through a link."""
    return os.open(name, _DIRECTORY, dir_fd=dir_fd)


def write(dir_fd: int, name: str, data: bytes) -> None:
    """Write one control file. The error carries the file's name."""
    fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        os.write(fd, data)
    except OSError as error:
        error.filename = name
        raise
    finally:
        os.close(fd)


def read(dir_fd: int, name: str) -> bytes:
    """Read one small control file."""
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        return os.read(fd, 65_536)
    finally:
        os.close(fd)


def present(dir_fd: int, name: str) -> bool:
    """Whether a control file exists."""
    return os.access(name, os.F_OK, dir_fd=dir_fd)


def counter(text: bytes, key: bytes) -> int:
    """One value of a file of ``key value`` lines; 0 where it is not there."""
    start = 0 if text.startswith(key + b" ") else text.find(b"\n" + key + b" ") + 1
    if start == 0 and not text.startswith(key + b" "):
        return 0
    end = text.find(b"\n", start)
    return int(text[start + len(key) + 1 : end if end >= 0 else None])


def processes_in(dir_fd: int) -> list[int]:
    """The pids in a cgroup. A process out of our pid namespace shows as 0."""
    fd = os.open("cgroup.procs", os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        pieces = []
        while piece := os.read(fd, 65_536):
            pieces.append(piece)
    finally:
        os.close(fd)
    return [int(line) for line in b"".join(pieces).split()]


def kill_all(dir_fd: int, signalled: set[int] | None = None) -> None:
    """SIGKILL every process of a cgroup, without waiting for their end.

    ``cgroup.kill`` (v2, Linux 5.14) is one step.  Else: sweep until a sweep meets only
    processes that have been signalled.  That ends, even against a fork bomb, for a
    process with SIGKILL pending cannot fork (copy_process: ERESTARTNOINTR), and what it
    forked before is met by the next sweep.  ``signalled`` are those that need no second
    one; it grows.
    """
    try:
        write(dir_fd, "cgroup.kill", b"1")
    except FileNotFoundError:
        pass
    else:
        return
    signalled = set() if signalled is None else signalled
    while fresh := set(processes_in(dir_fd)) - signalled - {0, os.getpid()}:
        for pids in _batches(sorted(fresh)):
            _kill_members(dir_fd, pids)
        signalled |= fresh


def _batches(pids: list[int]) -> list[list[int]]:
    """Few at a time: each costs a descriptor while it is looked for."""
    return [pids[start : start + _BATCH] for start in range(0, len(pids), _BATCH)]


def _kill_members(dir_fd: int, pids: list[int]) -> None:
    held: dict[int, int] = {}
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                held[pid] = os.pidfd_open(pid)
        # A pid may be another process's by now: it is held by its descriptor, and looked for.
        members = set(processes_in(dir_fd))
        for pid, pidfd in held.items():
            if pid in members:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        for pidfd in held.values():
            os.close(pidfd)
