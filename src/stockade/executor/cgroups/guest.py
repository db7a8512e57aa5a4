"""The directories of one sandbox: made together, entered, removed together."""

import asyncio
import errno
import os
import time
from collections.abc import Sequence

from stockade.executor.cgroups.directory import ExecutorDirectory, raise_if_stays
from stockade.executor.cgroups.kernel import kill_all, processes_in

_FIRST_PAUSE = 0.0005
_LONGEST_PAUSE = 0.02


class GuestDirectories:
    """A directory of the same name in each hierarchy."""

    __slots__ = ("_counters", "_door", "_join_fds", "_parents", "fds", "name")

    def __init__(self, name: str, parents: Sequence[ExecutorDirectory], door: str) -> None:
        """Make all of them, or none. ``door``: the file that a process enters by."""
        self.name = name
        self._door = door
        self._parents: list[ExecutorDirectory] = []
        self.fds: list[int] = []
        self._join_fds: list[int] = []
        self._counters: dict[str, int] = {}
        try:
            for parent in parents:
                self.fds.append(parent.mkdir(name))
                self._parents.append(parent)
        except OSError:
            self.discard()
            raise

    def join_fds(self) -> list[int]:
        """Open the door of each, to be written by a process inside the sandbox.

        In v1 that is ``tasks``: one thread that moves itself takes no lock that stops
        every fork and exit of the machine for milliseconds, as ``cgroup.procs`` does
        (cgroup_procs_write_start in kernel/cgroup/cgroup.c), and a process that is about
        to enter has one thread. v2 moves no single thread between domains.

        The kernel judges the move by the credentials and the cgroup namespace that the
        file was opened with (cgroup_procs_write in kernel/cgroup/cgroup.c:
        ``override_creds(of->file->f_cred)``; v1: __cgroup1_procs_write in cgroup-v1.c).
        So a process that has dropped every right can still enter, by a descriptor of
        ours; ``0`` means the writer, so it needs no pid that is valid in both pid
        namespaces.  Before CVE-2021-4197 was repaired (Linux 5.16, backported) the
        writer's rights counted.
        """
        if not self._join_fds:
            for fd in self.fds:
                self._join_fds.append(os.open(self._door, os.O_WRONLY | os.O_CLOEXEC, dir_fd=fd))
        return list(self._join_fds)

    def close_fds(self) -> None:
        """Close what ``join_fds`` opened."""
        while self._join_fds:
            os.close(self._join_fds.pop())

    def open_counter(self, place: int, name: str) -> None:
        """Open a counter's file ahead of need: what is left for ``read`` is one system call."""
        if name not in self._counters:
            flags = os.O_RDONLY | os.O_CLOEXEC
            self._counters[name] = os.open(name, flags, dir_fd=self.fds[place])

    def read(self, place: int, name: str) -> bytes:
        """Read a counter."""
        self.open_counter(place, name)
        return os.pread(self._counters[name], 65_536, 0)

    def processes(self) -> bool:
        """Whether a process is in any of them."""
        return any(processes_in(fd) for fd in self.fds)

    def kill(self) -> None:
        """SIGKILL what is in any of them."""
        signalled: set[int] = set()
        for fd in self.fds:
            kill_all(fd, signalled)

    def discard(self) -> None:
        """Take back a creation that failed half-way; nothing has entered."""
        self._close()
        for parent in self._parents:
            parent.rmdir(self.name)

    async def remove(self, patience: float) -> None:
        """Remove each, waiting while the kernel says that one is busy."""
        self._close()
        end = time.monotonic() + patience
        pause = _FIRST_PAUSE
        while stays := self._try_removing():
            if time.monotonic() >= end:
                raise_if_stays(stays)
            # A process that was killed holds its cgroup until it has let go of its memory.
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _try_removing(self) -> list[str]:
        stays, busy = [], []
        for parent in self._parents:
            try:
                parent.rmdir(self.name)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    error.filename = f"{parent.path}/{self.name}"
                    raise
                stays.append(f"{parent.path}/{self.name}: {error.strerror}")
                busy.append(parent)
        self._parents = busy
        return stays

    def _close(self) -> None:
        self.close_fds()
        while self._counters:
            os.close(self._counters.popitem()[1])
        while self.fds:
            os.close(self.fds.pop())
