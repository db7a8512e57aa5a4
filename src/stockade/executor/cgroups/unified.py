"""Limits by cgroup v2, below a directory that was delegated to us or that root may use."""

import asyncio
import errno
import os
import select
from collections.abc import Callable

from stockade.executor.cgroups.directory import ExecutorDirectory, raise_if_stays
from stockade.executor.cgroups.guest import GuestDirectories
from stockade.executor.cgroups.kernel import (
    TRIAL_BYTES,
    Host,
    counter,
    present,
    processes_in,
    read,
    write,
)
from stockade.executor.cgroups.tree import (
    CPU_PERIOD_MICROSECONDS,
    CgroupError,
    CgroupUsage,
    GuestCeilings,
    check_name,
    cpu_quota,
    enforcement_of,
)
from stockade.port import Enforcement

CONTROLLERS = ("memory", "pids", "cpu")
_FIELD_OF = {"memory": "memory_bytes", "pids": "processes", "cpu": "cpus"}
_TRIAL_LIMIT = 64 * 1024 * 1024
# Files that not every kernel has: pids.events is as old as pids, the peaks came with 5.19
# and 6.1, memory.oom.group with 4.19, memory.swap.max only where swap is counted.
_OPTIONAL = ("memory.swap.max", "memory.oom.group", "memory.peak", "pids.peak", "pids.events")


class UnifiedGuest:
    """The v2 cgroup of one sandbox."""

    __slots__ = ("_directories", "_epoll", "_events_fd", "_loop", "_tree")

    def __init__(self, tree: "UnifiedTree", name: str, limits: GuestCeilings) -> None:
        self._tree = tree
        self._loop: asyncio.AbstractEventLoop | None = None
        self._epoll: select.epoll | None = None
        self._events_fd = -1
        try:
            self._directories = GuestDirectories(name, [tree.directory], "cgroup.procs")
        except OSError as error:
            raise CgroupError(f"cannot make {name}: {error}") from error
        try:
            self.set_ceilings(limits)
        except CgroupError:
            self._directories.discard()
            raise

    @property
    def name(self) -> str:
        """The name it was created under."""
        return self._directories.name

    def join_fds(self) -> list[int]:
        """The one descriptor to write ``0`` to; see ``GuestDirectories``."""
        return self._directories.join_fds()

    def close_fds(self) -> None:
        """Close what ``join_fds`` opened."""
        self._directories.close_fds()

    def set_ceilings(self, limits: GuestCeilings) -> None:
        """Set what the tree can keep; the rest is ``ABSENT`` in its ``enforcement``."""
        try:
            _set(self._directories.fds[0], limits, self._tree.controllers, self._tree.files)
        except OSError as error:
            raise CgroupError(
                f"cannot set {error.filename} of {self.name}: {error.strerror}"
            ) from error

    def open_counters(self) -> None:
        """Open ahead of need what ``usage`` reads."""
        self.usage()

    def usage(self) -> CgroupUsage:
        """Read the counters."""
        controllers, files = self._tree.controllers, self._tree.files

        def read(name: str) -> bytes:
            return self._directories.read(0, name)

        # cpu.stat is there without the controller.
        cpu = counter(read("cpu.stat"), b"usage_usec") / 1e6
        peak_memory = peak_processes = None
        oom_kills = refused = 0
        if "memory" in controllers:
            oom_kills = counter(read("memory.events"), b"oom_kill")
            if "memory.peak" in files:
                peak_memory = int(read("memory.peak"))
        if "pids" in controllers:
            if "pids.events" in files:
                refused = counter(read("pids.events"), b"max")
            if "pids.peak" in files:
                peak_processes = int(read("pids.peak"))
        return CgroupUsage(cpu, peak_memory, peak_processes, oom_kills, refused)

    def watch_oom(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        """``memory.events`` is polled for POLLPRI, which says that it has changed since read.

        Through an epoll of our own, as an event loop would ask for POLLIN, which a file
        always has.
        """
        if "memory" not in self._tree.controllers:
            return
        try:
            fd = os.open(
                "memory.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directories.fds[0]
            )
        except OSError as error:
            raise CgroupError(f"cannot watch memory.events of {self.name}: {error}") from error
        self._stop_watching()
        # Reading arms it. "max" moves at every reclaim; only these two mean an OOM.
        seen = _ooms(fd)
        epoll = select.epoll()
        epoll.register(fd, select.EPOLLPRI)
        self._loop, self._epoll, self._events_fd = loop, epoll, fd

        def notice() -> None:
            nonlocal seen
            epoll.poll(0)
            now = _ooms(fd)
            if now != seen:
                seen = now
                callback()

        loop.add_reader(epoll.fileno(), notice)

    def empty(self) -> bool:
        """Whether no process is in it."""
        return counter(read(self._directories.fds[0], "cgroup.events"), b"populated") == 0

    def kill(self) -> None:
        """SIGKILL everything inside."""
        self._directories.kill()

    async def remove(self, patience: float = 2.0) -> None:
        """Remove it."""
        self._stop_watching()
        try:
            await self._directories.remove(patience)
        except OSError as error:
            raise CgroupError(f"cannot remove {error.filename}: {error.strerror}") from error

    def _stop_watching(self) -> None:
        if self._loop is not None and self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._loop = None
            self._epoll.close()
            os.close(self._events_fd)

    def __repr__(self) -> str:
        return f"<UnifiedGuest {self.name}>"


class UnifiedTree:
    """An executor's directory in the v2 hierarchy.

    A cgroup with processes in it cannot give controllers to its children (the rule of no
    internal processes).  So where we were put into the delegated cgroup itself, this
    process first moves into ``stockade-…/executor``; ``close`` moves it back.
    """

    def __init__(self, host: Host, parent: str) -> None:
        """Open ``parent`` and try every controller with a real process.

        Raises ``OSError`` where no cgroup can be made.  With no controller it still
        serves: it counts cpu time, and kills.
        """
        self._host = host
        self._parent = parent
        self._enabled: list[str] = []
        self._leaf_fd: int | None = None
        self.missing: dict[str, str] = {}
        self.files: frozenset[str] = frozenset()
        self.controllers: tuple[str, ...] = ()
        self.directory = ExecutorDirectory(host, parent)
        self.leftovers = self.directory.leftovers
        try:
            given = [name for name in CONTROLLERS if self._enable(name)]
            self.controllers = tuple(given)
            self._try()
        except (OSError, ValueError) as error:
            why = f"tried it in {parent}: {error}"
            try:
                self.close()
            except CgroupError as stays:
                why += f"; {stays}"
            raise OSError(errno.EIO, why) from error

    @property
    def description(self) -> str:
        """Which controllers, where, what is missing and why."""
        names = ", ".join(self.controllers) or "no controller"
        text = f"cgroup v2: {names} in {self.directory.path}"
        return text + "".join(f"; no {name}: {why}" for name, why in self.missing.items())

    @property
    def remedies(self) -> list[str]:
        """What to type to get what is missing."""
        return remedies_for(self.missing)

    def enforcement(self) -> dict[str, Enforcement]:
        """Each limit whose controller works is kept for all processes together."""
        return enforcement_of([*(_FIELD_OF[name] for name in self.controllers), "cpu_seconds"])

    def create(self, name: str, limits: GuestCeilings, *, everywhere: bool = False) -> UnifiedGuest:
        """Make the cgroup of one sandbox."""
        check_name(name)
        return UnifiedGuest(self, name, limits)

    def close(self) -> None:
        """Kill and remove everything below, and move this process back to where it was.

        It cannot move back while another executor beside this one uses the controllers;
        it then stays in ``executor``, and the next executor to open removes that.
        """
        self.controllers = ()
        stays = self.directory.clear(keep="executor")
        moved = True
        if self._leaf_fd is not None:
            leaf_fd, self._leaf_fd = self._leaf_fd, None
            try:
                self._move_back(leaf_fd)
            except OSError as error:
                moved = False
                if error.errno != errno.EBUSY:
                    stays = stays or f"{self.directory.path}/executor: {error}"
            finally:
                os.close(leaf_fd)
        if stays is None and moved:
            stays = self.directory.remove()
        else:
            self.directory.close()
        raise_if_stays([stays] if stays else [])

    def _move_back(self, leaf_fd: int) -> None:
        for name in self._enabled:
            self._host.switch(name, False, self.directory.fd)
            self._host.switch(name, False, self.directory.parent_fd)
        # Our own children came along when they were started.
        for pid in processes_in(leaf_fd):
            try:
                self._host.move(pid, self.directory.parent_fd)
            except ProcessLookupError:
                pass  # It ended meanwhile.

    def _enable(self, controller: str) -> bool:
        parent_fd = self.directory.parent_fd
        name = controller.encode()
        try:
            if name not in read(parent_fd, "cgroup.controllers").split():
                self.missing[controller] = f"it is not in {self._parent}/cgroup.controllers"
                return False
            if name not in read(parent_fd, "cgroup.subtree_control").split():
                self._enable_for_children(controller)
                self._enabled.append(controller)
            self._host.switch(controller, True, self.directory.fd)
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno == errno.EBUSY:
                others = len(set(processes_in(parent_fd)) - {os.getpid()})
                why += f" ({others} other processes are in {self._parent} itself)"
            self.missing[controller] = f"cannot give it to children of {self._parent}: {why}"
            return False
        return True

    def _enable_for_children(self, controller: str) -> None:
        parent_fd = self.directory.parent_fd
        try:
            self._host.switch(controller, True, parent_fd)
        except OSError as error:
            if error.errno != errno.EBUSY or self._leaf_fd is not None:
                raise
            if os.getpid() not in processes_in(parent_fd):
                raise
            self._leaf_fd = self.directory.mkdir("executor")
            self._host.move(0, self._leaf_fd)
            self._host.switch(controller, True, parent_fd)

    def _try(self) -> None:
        fd = self.directory.mkdir("probe")
        try:
            self.files = frozenset(name for name in _OPTIONAL if present(fd, name))
            usable = []
            for name in self.controllers:
                try:
                    _set(fd, GuestCeilings(_TRIAL_LIMIT, 1, 0.5), (name,), self.files)
                    usable.append(name)
                except OSError as error:
                    self.missing[name] = f"cannot write {error.filename}: {error.strerror}"
            self.controllers = tuple(usable)
            join = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=fd)
            try:
                self._host.visit(join, lambda pid, refused: self._inspect(fd, pid, refused))
            finally:
                os.close(join)
        finally:
            os.close(fd)
            stays = self.directory.clear(keep="executor")
        if stays:
            raise OSError(errno.EBUSY, stays)
        self.controllers = tuple(name for name in usable if name not in self.missing)

    def _inspect(self, fd: int, pid: int, refused: bool) -> None:
        if b"%d" % pid not in read(fd, "cgroup.procs").split():
            raise OSError(errno.EIO, "a process that entered is not in it")
        if "memory" in self.controllers and int(read(fd, "memory.current")) < TRIAL_BYTES // 2:
            self.missing["memory"] = "memory is not counted"
        if "pids" in self.controllers and not refused:
            self.missing["pids"] = "pids.max does not stop a fork"

    def __repr__(self) -> str:
        return f"<UnifiedTree {' '.join(self.controllers) or 'no controller'}>"


def remedies_for(missing: dict[str, str]) -> list[str]:
    """What to type to be given the controllers that are missing."""
    if not missing:
        return []
    names = " ".join(missing)
    remedies = []
    if os.geteuid() != 0:
        remedies.append("systemd-run --user --scope -p Delegate=yes stockade ...")
        if "cpu" in missing:
            remedies.append(
                "to have the cpu controller delegated to users: a file "
                "/etc/systemd/system/user@.service.d/delegate.conf with the lines [Service] and "
                "Delegate=cpu cpuset io memory pids; then log in anew"
            )
    remedies.append(
        "in the executor's systemd unit, below [Service]: Delegate=memory pids cpu "
        "(and no other process in the unit's own cgroup: DelegateSubgroup=supervisor)"
    )
    if "memory" in missing and "cgroup.controllers" in missing["memory"]:
        remedies.append(
            "where /sys/fs/cgroup/cgroup.controllers lacks memory: start Linux with "
            "cgroup_enable=memory; where a v1 hierarchy holds it (grep cgroup /proc/mounts): "
            "with systemd.unified_cgroup_hierarchy=1"
        )
    remedies.append(f"in a container: a writable /sys/fs/cgroup of its own, with {names}")
    return remedies


def _set(
    fd: int, limits: GuestCeilings, controllers: tuple[str, ...], files: frozenset[str]
) -> None:
    if "memory" in controllers:
        write(fd, "memory.max", b"%d" % limits.memory_bytes)
        if "memory.swap.max" in files:
            write(fd, "memory.swap.max", b"0")
        if "memory.oom.group" in files:
            # One of several processes killed at random would leave a sandbox that is
            # neither alive nor dead.
            write(fd, "memory.oom.group", b"1")
    if "pids" in controllers:
        write(fd, "pids.max", b"%d" % limits.processes)
    if "cpu" in controllers:
        # No burst: cpu.max.burst is 0 in a new cgroup.
        write(fd, "cpu.max", b"%d %d" % (cpu_quota(limits.cpus), CPU_PERIOD_MICROSECONDS))


def _ooms(fd: int) -> tuple[int, int]:
    events = os.pread(fd, 4096, 0)
    return counter(events, b"oom"), counter(events, b"oom_kill")
