"""Walls that end with a pid namespace: killed, awaited and counted as a whole."""

import asyncio
import contextlib
import math
import os
import signal
from collections.abc import Callable, Mapping

from stockade.executor.boundary import BoundaryUsage
from stockade.executor.cgroups import GuestCeilings, GuestCgroup
from stockade.executor.descendants import process_of, signal_below
from stockade.port import Attestation, Enforcement, Limits, Tier


class PidNamespaceBoundary:
    """The walls of one sandbox: a pid namespace, known by its pidfd, and its cgroups."""

    def __init__(
        self,
        tier: Tier,
        image: str,
        enforcement: Mapping[str, Enforcement],
        cgroup: GuestCgroup,
        ceilings: GuestCeilings,
        counts_processes: bool,
        parked_bytes: int,
        release_id: Callable[[], None],
        own_threads: int = 0,
    ) -> None:
        """``own_threads``: of what runs the guest, beside those that the guest may have."""
        self.tier = tier
        self.image = image
        self.enforcement = enforcement
        self._cgroup = cgroup
        self._ceilings = ceilings
        self.counts_processes = counts_processes
        self.parked_bytes = parked_bytes
        self.attestation: Attestation | None = None
        self._release_id = release_id
        self._own_threads = own_threads
        self._pidfd = -1
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def pidfd(self) -> int:
        """Of the sandbox's pid 1; -1 where there is none."""
        return self._pidfd

    def hold(self, pidfd: int) -> None:
        """Take over the pidfd of the sandbox's pid 1."""
        self._pidfd = pidfd
        loop = asyncio.get_running_loop()

        def ended() -> None:
            # pid 1 becomes a zombie only after the kernel has killed and reaped every other
            # process of its namespace: zap_pid_ns_processes(), kernel/pid_namespace.c.
            loop.remove_reader(pidfd)
            if not self._gone.done():
                self._gone.set_result(None)

        loop.add_reader(pidfd, ended)

    def pause(self) -> None:
        """Nothing to do: a process that waits uses none."""

    def resume(self) -> None:
        """Nothing was paused."""

    async def freeze(self) -> None:
        """SIGSTOP to every process: first to the agent, so that none is started meanwhile."""
        self.signal_init(signal.SIGSTOP)
        await asyncio.to_thread(signal_below, self.init, signal.SIGSTOP)

    async def thaw(self) -> None:
        """SIGCONT to every process, also to one that had stopped itself."""
        await asyncio.to_thread(signal_below, self.init, signal.SIGCONT)
        self.signal_init(signal.SIGCONT)

    def thaw_to_end(self) -> None:
        """The agent alone: what it kills dies, stopped or not."""
        self.signal_init(signal.SIGCONT)

    @property
    def init(self) -> int:
        """The host's pid of pid 1 of the namespace; -1 when it is gone."""
        if self._pidfd < 0 or self._gone.done():
            return -1
        return process_of(self._pidfd)

    def set_ceilings(self, limits: Limits) -> None:
        """Memory, processes and CPU share, for the execution that is about to start."""
        wanted = self.ceilings(limits)
        if wanted != self._ceilings:
            self._cgroup.set_ceilings(wanted)
            self._ceilings = wanted

    def ceilings(self, limits: Limits) -> GuestCeilings:
        """What the cgroup is to keep of them."""
        return GuestCeilings(limits.memory_bytes, limits.processes + self._own_threads, limits.cpus)

    def cpu_rlimit(self, limits: Limits) -> int | None:
        """For each process; the host's count of all of them strikes first."""
        return math.ceil(limits.cpu_seconds) + 1

    def process_rlimit(self, limits: Limits) -> int:
        """The agent is counted, too. Where a cgroup counts, this is a second net only."""
        return limits.processes + self._own_threads + (1024 if self.counts_processes else 1)

    def inner_ceilings(self, limits: Limits) -> tuple[int, int] | None:
        """None: the host's cgroups and the agent's rlimits do."""
        return None

    def watch_memory(self, callback: Callable[[], None]) -> None:
        """Call back when the memory ceiling is hit."""
        self._cgroup.watch_oom(asyncio.get_running_loop(), callback)

    def usage(self) -> BoundaryUsage:
        """The cgroup's counters."""
        usage = self._cgroup.usage()
        return BoundaryUsage(
            cpu_seconds=usage.cpu_seconds,
            peak_memory_bytes=usage.peak_memory_bytes,
            peak_processes=usage.peak_processes,
            oom_kills=usage.oom_kills,
            processes_refused=usage.pids_refused,
        )

    def kill(self) -> None:
        """SIGKILL to pid 1 of the namespace; the kernel does the rest (pid_namespaces(7))."""
        self.signal_init(signal.SIGKILL)

    def signal_init(self, number: signal.Signals) -> None:
        """A signal to pid 1 of the namespace, if it lives."""
        if self._pidfd >= 0 and not self._gone.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    @property
    def stops_whole(self) -> bool:
        """The others die a little later than pid 1 is told to."""
        return False

    def stop(self) -> None:
        """``kill``."""
        self.kill()

    async def gone(self) -> None:
        """Wait until pid 1 is dead, and so all others."""
        if self._pidfd >= 0 and not self._gone.done():
            await asyncio.shield(self._gone)

    async def release(self) -> None:
        """Remove the cgroups, then let the user id be used again."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        await self._cgroup.remove()
        self._release_id()
