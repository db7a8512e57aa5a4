"""Limits by cgroup v1: one hierarchy per controller, or some together."""

import asyncio
import errno
import os
from collections.abc import Callable

from stockade.executor.cgroups.directory import ExecutorDirectory, raise_if_stays
from stockade.executor.cgroups.guest import GuestDirectories
from stockade.executor.cgroups.kernel import TRIAL_BYTES, Host, counter, present, read, write
from stockade.executor.cgroups.mounts import Hierarchies, Hierarchy
from stockade.executor.cgroups.tree import (
    CgroupError,
    CgroupUsage,
    GuestCeilings,
    check_name,
    cpu_quota,
    enforcement_of,
)
from stockade.port import Enforcement

_FIELD_OF = {
    "memory": "memory_bytes",
    "pids": "processes",
    "cpu": "cpus",
    "cpuacct": "cpu_seconds",
}
_COUNTERS = (
    ("cpuacct", "cpuacct.usage"),
    ("memory", "memory.max_usage_in_bytes"),
    ("memory", "memory.oom_control"),
)
_SOCKET_BYTES = 16 * 1024 * 1024
_TRIAL_LIMIT = 64 * 1024 * 1024


class LegacyGuest:
    """The v1 cgroups of one sandbox."""

    __slots__ = ("_ceilings", "_directories", "_loop", "_oom_fd", "_places", "_tree")

    def __init__(
        self, tree: "LegacyTree", name: str, limits: GuestCeilings, everywhere: bool
    ) -> None:
        self._tree = tree
        self._loop: asyncio.AbstractEventLoop | None = None
        self._oom_fd = -1
        self._ceilings: GuestCeilings | None = None
        try:
            # Controller to the place of its hierarchy in GuestDirectories.fds.
            directories, self._places = (
                (tree.directories, tree.places) if everywhere else tree.needed(limits)
            )
            self._directories = GuestDirectories(name, directories, "tasks")
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
        """One descriptor per hierarchy, to write ``0`` to; see ``GuestDirectories``."""
        return self._directories.join_fds()

    def close_fds(self) -> None:
        """Close what ``join_fds`` opened."""
        self._directories.close_fds()

    def set_ceilings(self, limits: GuestCeilings) -> None:
        """Set what the tree can keep; the rest is ``ABSENT`` in its ``enforcement``."""
        fds, places = self._directories.fds, self._places
        try:
            if "memory" in places:
                raising = self._ceilings and limits.memory_bytes > self._ceilings.memory_bytes
                _set_memory(
                    fds[places["memory"]], limits.memory_bytes, self._tree.memsw, bool(raising)
                )
            if "pids" in places:
                write(fds[places["pids"]], "pids.max", b"%d" % limits.processes)
            if "cpu" in places:
                _set_cpu(fds[places["cpu"]], limits.cpus)
        except OSError as error:
            raise CgroupError(
                f"cannot set {error.filename} of {self.name}: {error.strerror}"
            ) from error
        self._ceilings = limits

    def open_counters(self) -> None:
        """Open ahead of need what ``usage`` reads."""
        for controller, name in self._tree.counters:
            if controller in self._places:
                self._directories.open_counter(self._places[controller], name)

    def usage(self) -> CgroupUsage:
        """Read the counters."""
        places, tree, read = self._places, self._tree, self._directories.read
        cpu = peak_memory = peak_processes = None
        oom_kills = refused = 0
        if "cpuacct" in places:
            cpu = int(read(places["cpuacct"], "cpuacct.usage")) / 1e9
        if "memory" in places:
            peak_memory = int(read(places["memory"], "memory.max_usage_in_bytes"))
            oom_kills = counter(read(places["memory"], "memory.oom_control"), b"oom_kill")
        if "pids" in places:
            if tree.pids_peak:
                peak_processes = int(read(places["pids"], "pids.peak"))
            if tree.pids_events:
                refused = counter(read(places["pids"], "pids.events"), b"max")
        return CgroupUsage(cpu, peak_memory, peak_processes, oom_kills, refused)

    def watch_oom(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        """The kernel signals an eventfd just before it picks a process to kill."""
        if "memory" not in self._places:
            return
        memory = self._directories.fds[self._places["memory"]]
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            control = os.open("memory.oom_control", os.O_RDONLY | os.O_CLOEXEC, dir_fd=memory)
            try:
                write(memory, "cgroup.event_control", b"%d %d" % (fd, control))
            finally:
                os.close(control)
        except OSError as error:
            os.close(fd)
            raise CgroupError(f"cannot watch memory.oom_control of {self.name}: {error}") from error
        self._stop_watching()
        self._loop, self._oom_fd = loop, fd

        def notice() -> None:
            os.eventfd_read(fd)
            callback()

        loop.add_reader(fd, notice)

    def empty(self) -> bool:
        """Whether no process is in any of its hierarchies."""
        return not self._directories.processes()

    def kill(self) -> None:
        """SIGKILL everything inside."""
        self._directories.kill()

    async def remove(self, patience: float = 2.0) -> None:
        """Remove it from every hierarchy."""
        # First: removing the directory signals the eventfd too, and that is no OOM.
        self._stop_watching()
        try:
            await self._directories.remove(patience)
        except OSError as error:
            raise CgroupError(f"cannot remove {error.filename}: {error.strerror}") from error

    def _stop_watching(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._oom_fd)
            self._loop = None
            os.close(self._oom_fd)

    def __repr__(self) -> str:
        return f"<LegacyGuest {self.name}>"


class LegacyTree:
    """An executor's directories in the v1 hierarchies that it can use."""

    def __init__(self, host: Host, hierarchies: Hierarchies) -> None:
        """Try each hierarchy, and each controller in it, with a real process."""
        self.directories: list[ExecutorDirectory] = []
        self.places: dict[str, int] = {}
        self.memsw = self.pids_peak = self.pids_events = False
        self._cpus = os.cpu_count() or 1
        self.leftovers: list[str] = []
        self.missing: dict[str, str] = {}
        for hierarchy in hierarchies.legacy:
            wanted = [name for name in hierarchy.controllers if name in _FIELD_OF]
            if wanted:
                self._open(host, hierarchy, wanted)
        for name in _FIELD_OF:
            if hierarchies.legacy_with(name) is None:
                self.missing[name] = "no v1 hierarchy with it is mounted"

    @property
    def controllers(self) -> tuple[str, ...]:
        """The controllers that work."""
        return tuple(name for name in _FIELD_OF if name in self.places)

    @property
    def counters(self) -> list[tuple[str, str]]:
        """Controller and file of all that is read of a sandbox."""
        pids = [("pids", "pids.peak")] * self.pids_peak + [
            ("pids", "pids.events")
        ] * self.pids_events
        return [*_COUNTERS, *pids]

    @property
    def description(self) -> str:
        """Which controllers, where, what is missing and why."""
        paths = ", ".join(directory.path for directory in self.directories)
        text = f"cgroup v1: {', '.join(self.controllers) or 'nothing'} in {paths or 'no place'}"
        return text + "".join(f"; no {name}: {why}" for name, why in self.missing.items())

    @property
    def remedies(self) -> list[str]:
        """What to do about the controllers that are missing."""
        if not self.missing:
            return []
        remedies = []
        if os.geteuid() != 0:
            remedies.append(
                "run the executor as root: cgroup v1 cannot be delegated safely; or start "
                "Linux with systemd.unified_cgroup_hierarchy=1 and delegate cgroup v2"
            )
        for name, why in self.missing.items():
            if "mounted" in why:
                remedies.append(
                    f"mkdir -p /sys/fs/cgroup/{name} && mount -t cgroup -o {name} cgroup "
                    f"/sys/fs/cgroup/{name}"
                )
                if name == "memory":
                    remedies.append(
                        "where that fails, start Linux with cgroup_enable=memory "
                        "(off by default on some distributions)"
                    )
        return remedies

    def enforcement(self) -> dict[str, Enforcement]:
        """Each limit whose controller works is kept for all processes together."""
        return enforcement_of([_FIELD_OF[name] for name in self.places])

    def create(self, name: str, limits: GuestCeilings, *, everywhere: bool = False) -> LegacyGuest:
        """Make the cgroups of one sandbox."""
        check_name(name)
        return LegacyGuest(self, name, limits, everywhere)

    def needed(self, limits: GuestCeilings) -> tuple[list[ExecutorDirectory], dict[str, int]]:
        """The hierarchies that such ceilings need, and each controller's place among them.

        A share of all CPUs is no limit: a hierarchy that would keep nothing else is left
        out, for each costs every sandbox its making, entering and removing.
        """
        cpu = self.places.get("cpu")
        shared = sum(place == cpu for place in self.places.values()) > 1
        if cpu is None or shared or limits.cpus < self._cpus:
            return self.directories, self.places
        directories = [each for place, each in enumerate(self.directories) if place != cpu]
        places = {
            name: place - (place > cpu) for name, place in self.places.items() if place != cpu
        }
        return directories, places

    def close(self) -> None:
        """Kill and remove everything below."""
        stays = [stay for directory in self.directories if (stay := directory.remove())]
        self.directories, self.places = [], {}
        raise_if_stays(stays)

    def __repr__(self) -> str:
        return f"<LegacyTree {' '.join(self.controllers) or 'no controller'}>"

    def _open(self, host: Host, hierarchy: Hierarchy, wanted: list[str]) -> None:
        # Below our own cgroup first, so that a limit on the executor's service covers its
        # guests; root may also use the top.
        parents = [hierarchy.own] if hierarchy.own else []
        if os.geteuid() == 0 and hierarchy.mount_point not in parents:
            parents.append(hierarchy.mount_point)
        for name in wanted:
            self.missing[name] = f"our own cgroup is not below {hierarchy.mount_point}"
        for parent in parents:
            try:
                directory = ExecutorDirectory(host, parent)
            except OSError as error:
                for name in wanted:
                    self.missing[name] = f"cannot make a cgroup in {parent}: {error.strerror}"
                continue
            self.leftovers += directory.leftovers
            working = [name for name in wanted if self._works(host, directory, name)]
            if working:
                for name in working:
                    del self.missing[name]
                    self.places[name] = len(self.directories)
                self.directories.append(directory)
                return
            directory.remove()

    def _works(self, host: Host, directory: ExecutorDirectory, controller: str) -> bool:
        try:
            if controller == "memory" and present(directory.fd, "memory.swappiness"):
                # Inherited by every cgroup made below: no guest's memory goes to a disk.
                write(directory.fd, "memory.swappiness", b"0")
            fd = directory.mkdir("probe")
        except OSError as error:
            self.missing[controller] = f"cannot use {directory.path}: {error}"
            return False
        try:
            reason = self._try(host, fd, controller)
        except (OSError, ValueError) as error:
            reason = str(error)
        finally:
            os.close(fd)
            stays = directory.clear()
        if reason or stays:
            self.missing[controller] = f"tried it in {directory.path}: {reason or stays}"
            return False
        return True

    def _try(self, host: Host, fd: int, controller: str) -> str | None:
        if controller == "memory":
            self.memsw = present(fd, "memory.memsw.limit_in_bytes")
            _set_memory(fd, _TRIAL_LIMIT, self.memsw, False)
            if int(read(fd, "memory.limit_in_bytes")) != _TRIAL_LIMIT:
                return "memory.limit_in_bytes does not keep what is written"
        elif controller == "pids":
            self.pids_peak = present(fd, "pids.peak")
            self.pids_events = present(fd, "pids.events")
            write(fd, "pids.max", b"1")
        elif controller == "cpu":
            _set_cpu(fd, 0.5)
        join = os.open("tasks", os.O_WRONLY | os.O_CLOEXEC, dir_fd=fd)
        try:
            return host.visit(join, lambda pid, refused: _inspect(fd, controller, pid, refused))
        finally:
            os.close(join)


def _inspect(fd: int, controller: str, pid: int, refused: bool) -> str | None:
    if b"%d" % pid not in read(fd, "cgroup.procs").split():
        return "a process that entered is not in it"
    if controller == "memory" and int(read(fd, "memory.usage_in_bytes")) < TRIAL_BYTES // 2:
        return "memory is not counted"
    if controller == "pids" and not refused:
        return "pids.max does not stop a fork"
    if controller == "cpuacct" and int(read(fd, "cpuacct.usage")) <= 0:
        return "cpu time is not counted"
    return None


def _set_memory(fd: int, size: int, memsw: bool, raising: bool) -> None:
    # memory.limit_in_bytes covers anonymous memory, tmpfs, page cache and kernel memory.
    # memsw adds swap and may at no moment be below it. A host that does not count swap has
    # no memsw; swappiness 0 then keeps guests out of it.
    names = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"] if memsw else []
    for name in reversed(names) if raising else names or ["memory.limit_in_bytes"]:
        write(fd, name, b"%d" % size)
    # Buffers of sockets are counted apart in v1, and not at all without a limit.
    if present(fd, "memory.kmem.tcp.limit_in_bytes"):
        write(fd, "memory.kmem.tcp.limit_in_bytes", b"%d" % min(size, _SOCKET_BYTES))


def _set_cpu(fd: int, cpus: float) -> None:
    # No burst, and a period of CPU_PERIOD_MICROSECONDS: both are so in a new cgroup.
    try:
        write(fd, "cpu.cfs_quota_us", b"%d" % cpu_quota(cpus))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # v1 refuses a quota above an ancestor's. That one is stricter, and it holds.
        write(fd, "cpu.cfs_quota_us", b"-1")
