"""The namespace tier: sandboxes out of a tenant's zygote."""

import asyncio
import contextlib
import itertools
import math
import os
import signal
from collections.abc import Callable, Mapping

from stockade.executor.boundary import BoundaryUsage
from stockade.executor.cgroups import CgroupError, CgroupTree, GuestCeilings, GuestCgroup
from stockade.executor.link import Link
from stockade.executor.namespace.image import HostImage
from stockade.executor.namespace.receipt import faults
from stockade.executor.namespace.zygote import Zygote
from stockade.executor.namespace.zygotes import Zygotes
from stockade.executor.sandbox import Profile, Sandbox
from stockade.port import Enforcement, Limits, Tier, Unavailable

HELLO_SECONDS = 10.0
_UNBOUNDED = GuestCeilings(memory_bytes=1 << 50, processes=1 << 15, cpus=1024)


class NamespaceBoundary:
    """The walls of one sandbox: a pid namespace, known by its pidfd, and its cgroups."""

    tier = Tier.NAMESPACE

    def __init__(
        self,
        image: str,
        enforcement: Mapping[str, Enforcement],
        cgroup: GuestCgroup,
        ceilings: GuestCeilings,
        counts_processes: bool,
        release_id: Callable[[], None],
    ) -> None:
        self.image = image
        self.enforcement = enforcement
        self._cgroup = cgroup
        self._ceilings = ceilings
        self.counts_processes = counts_processes
        self._release_id = release_id
        self._pidfd = -1
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

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

    def set_ceilings(self, limits: Limits) -> None:
        """Memory, processes and CPU share, for the execution that is about to start."""
        wanted = GuestCeilings(limits.memory_bytes, limits.processes, limits.cpus)
        if wanted != self._ceilings:
            self._cgroup.set_ceilings(wanted)
            self._ceilings = wanted

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
        if self._pidfd >= 0 and not self._gone.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

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


class NamespaceTier:
    """Makes sandboxes of fresh Linux namespaces. One per executor."""

    tier = Tier.NAMESPACE

    def __init__(self, image: HostImage, cgroups: CgroupTree, zygotes: Zygotes) -> None:
        self._image = image
        self._cgroups = cgroups
        self._zygotes = zygotes
        self._numbers = itertools.count(1)
        self._cpus = sorted(os.sched_getaffinity(0))
        self._next_cpu = 0
        kept = self._cgroups.enforcement()
        self._counts_processes = kept["processes"] is Enforcement.ENFORCED
        self.enforcement: dict[str, Enforcement] = {
            "wall_seconds": Enforcement.ENFORCED,
            "cpu_seconds": _or_per_process(kept["cpu_seconds"]),
            "cpus": kept["cpus"],
            "memory_bytes": _or_per_process(kept["memory_bytes"]),
            # RLIMIT_NPROC counts per user namespace, and each sandbox has its own.
            "processes": Enforcement.ENFORCED,
            "open_files": Enforcement.PER_PROCESS,
            "disk_bytes": Enforcement.ENFORCED,
            "inodes": Enforcement.ENFORCED,
            "output_bytes": Enforcement.ENFORCED,
            "result_bytes": Enforcement.ENFORCED,
            "artefact_bytes": Enforcement.ENFORCED,
            "record_bytes": Enforcement.ENFORCED,
        }

    def __repr__(self) -> str:
        return f"<NamespaceTier {self._zygotes!r}>"

    async def create(self, profile: Profile) -> Sandbox:
        """A sandbox that has proven its walls. Raises :class:`Unavailable` or SandboxLost."""
        zygote = await self._zygotes.get(profile.tenant)
        await self._house(zygote)
        identity = zygote.identity
        offset = identity.acquire()
        ceilings = GuestCeilings(profile.memory_bytes, profile.processes, profile.cpus)
        try:
            cgroup = self._cgroups.create(f"sandbox-{next(self._numbers)}", ceilings)
        except (CgroupError, OSError) as error:
            identity.release(offset)
            raise Unavailable(f"no cgroup for a sandbox: {error}") from error
        boundary = NamespaceBoundary(
            self._image.digest,
            self.enforcement,
            cgroup,
            ceilings,
            self._counts_processes,
            lambda: identity.release(offset),
        )
        link = None
        try:
            cpus = self._choose_cpus(profile.cpus)
            link = await self._clone(zygote, profile, boundary, cgroup, offset, cpus)
            await self._check_receipt(link, offset, len(cpus) or None)
            cgroup.open_counters()
        except OSError as error:
            await asyncio.shield(_abandon(boundary, link))
            raise Unavailable(f"no sandbox could be made: {error}") from error
        except BaseException:
            await asyncio.shield(_abandon(boundary, link))
            raise
        return Sandbox(profile, boundary, link)

    async def close(self) -> None:
        """End every zygote and remove the executor's cgroups."""
        await self._zygotes.close()
        self._cgroups.close()

    async def _house(self, zygote: Zygote) -> None:
        """Give a zygote, and with it the agents of its sandboxes, cgroups of their own.

        They are no ceiling. What a sandbox sees of cgroups begins there.
        """
        if zygote.housing is None:
            zygote.housing = asyncio.create_task(self._make_house(zygote))
        await asyncio.shield(zygote.housing)

    async def _make_house(self, zygote: Zygote) -> None:
        try:
            cgroup = self._cgroups.create(
                f"zygote-{next(self._numbers)}", _UNBOUNDED, everywhere=True
            )
        except CgroupError as error:
            raise Unavailable(f"no cgroup for a zygote: {error}") from error
        zygote.at_end(cgroup.remove)
        try:
            await zygote.enter_cgroups(cgroup.join_fds())
        finally:
            cgroup.close_fds()

    async def _clone(
        self,
        zygote: Zygote,
        profile: Profile,
        boundary: NamespaceBoundary,
        cgroup: GuestCgroup,
        offset: int,
        cpus: list[int],
    ) -> Link:
        guest_in, to_guest = os.pipe()
        try:
            from_guest, guest_out = os.pipe()
        except OSError:
            os.close(guest_in)
            os.close(to_guest)
            raise
        link = Link(asyncio.get_running_loop(), from_guest, to_guest)
        try:
            descriptors = [guest_in, guest_out, *cgroup.join_fds()]
            boundary.hold(
                await zygote.clone(offset, profile.disk_bytes, profile.inodes, cpus, descriptors)
            )
        except BaseException:
            link.close()
            raise
        finally:
            os.close(guest_in)
            os.close(guest_out)
            cgroup.close_fds()
        return link

    async def _check_receipt(self, link: Link, offset: int, cpus: int | None) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.call_later(HELLO_SECONDS, link.fail, "the agent was silent")
        try:
            hello = await link.hello
        finally:
            deadline.cancel()
        receipt = hello["receipt"]
        assert isinstance(receipt, Mapping)
        missing = faults(receipt, offset, cpus)
        if missing:
            raise Unavailable("the sandbox lacks what was promised: " + "; ".join(missing))

    def _choose_cpus(self, cpus: float) -> list[int]:
        """As many CPUs as the share needs, in turn; none: no restriction."""
        count = math.ceil(cpus)
        if count >= len(self._cpus):
            return []
        first = self._next_cpu
        self._next_cpu = (first + count) % len(self._cpus)
        return [self._cpus[(first + index) % len(self._cpus)] for index in range(count)]


async def _abandon(boundary: NamespaceBoundary, link: Link | None) -> None:
    boundary.kill()
    await boundary.gone()
    if link is not None:
        link.close()
    await boundary.release()


def _or_per_process(kept: Enforcement) -> Enforcement:
    return kept if kept is Enforcement.ENFORCED else Enforcement.PER_PROCESS
