"""The gVisor tier: each sandbox has a kernel of its own, in user space."""

import asyncio
import itertools
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from stockade.executor.affinity import CpuRotation
from stockade.executor.boundary import BoundaryUsage
from stockade.executor.cgroups import CgroupError, CgroupTree, GuestCeilings, GuestCgroup
from stockade.executor.gvisor.bundle import make_root
from stockade.executor.gvisor.owners import make_readable
from stockade.executor.gvisor.receipt import faults
from stockade.executor.gvisor.runtime import Guest, Runtime
from stockade.executor.gvisor.snapshot import Template
from stockade.executor.gvisor.state import StateFolder
from stockade.executor.link import Link
from stockade.executor.namespace.image import HostImage
from stockade.executor.pid_namespace import PidNamespaceBoundary
from stockade.executor.proof import KEPT_BY_THE_EXECUTOR, abandon, check_receipt
from stockade.executor.sandbox import Profile, Sandbox
from stockade.port import MIB, Enforcement, Limits, SandboxLost, StockadeError, Tier, Unavailable

HELLO_SECONDS: Final = 60.0
# Each takes memory, and tenants come and go.
MOST_TEMPLATES: Final = 16
PARKED_BYTES: Final = 25 * MIB
"""What a parked sandbox holds of the host's memory, where no cgroup counts it."""
KERNEL_BYTES: Final = 64 * MIB
"""What gVisor itself may take beside the guest's memory, within the same cgroup."""
_PROOF_SECONDS: Final = 10.0
"""How long the sandbox that proved the tier may serve a call: the pool does not know its age."""
_SUSPECT: Final = 2
"""After so many failures in a row a snapshot is made anew."""
# A ceiling of the pids controller makes gVisor's kernel crash when it cannot start a thread.
_NO_CEILING: Final = 1 << 15


class GvisorBoundary(PidNamespaceBoundary):
    """The walls of one sandbox: gVisor's kernel, in a pid namespace and cgroups of its own."""

    def __init__(
        self,
        image: str,
        enforcement: Mapping[str, Enforcement],
        cgroup: GuestCgroup,
        ceilings: GuestCeilings,
        guest_ended: Callable[[], None],
    ) -> None:
        super().__init__(
            Tier.GVISOR,
            image,
            enforcement,
            cgroup,
            ceilings,
            counts_processes=False,
            parked_bytes=PARKED_BYTES,
            release_id=guest_ended,
        )
        self._guest: Guest | None = None
        self._spent = 0.0

    def take(self, guest: Guest) -> None:
        """Take over a guest's process tree."""
        self._guest = guest
        self.hold(guest.pidfd)
        guest.pidfd = -1

    def count_from_here(self) -> None:
        """What was used until now was the start's."""
        usage = super().usage()
        self._spent = usage.cpu_seconds or 0.0
        self.parked_bytes = usage.peak_memory_bytes or self.parked_bytes

    def pause(self) -> None:
        """gVisor's kernel wakes 2,500 times a second though its guest sleeps: it is stopped."""
        self.signal_init(signal.SIGUSR1)

    def resume(self) -> None:
        """The supervisor's init lets all of it go on."""
        self.signal_init(signal.SIGUSR2)

    def set_ceilings(self, limits: Limits) -> None:
        """As in every tier; and a kernel that waited has spent some time of its own."""
        super().set_ceilings(limits)
        self._spent = super().usage().cpu_seconds or 0.0

    def ceilings(self, limits: Limits) -> GuestCeilings:
        """The guest's memory and the kernel's are one sum to the cgroup."""
        return GuestCeilings(limits.memory_bytes + KERNEL_BYTES, _NO_CEILING, limits.cpus)

    def cpu_rlimit(self, limits: Limits) -> int | None:
        """None where the host counts: gVisor's clock counts waiting for a CPU of the host's, too."""
        if self.enforcement["cpu_seconds"] is Enforcement.ENFORCED:
            return None
        return super().cpu_rlimit(limits)

    def process_rlimit(self, limits: Limits) -> int:
        """gVisor counts a process for the user it was born to: the first is the agent's."""
        return limits.processes - 1

    def usage(self) -> BoundaryUsage:
        """The cgroup's counters; processes are known to the guest's kernel only."""
        usage = super().usage()
        cpu = usage.cpu_seconds
        return BoundaryUsage(
            cpu_seconds=None if cpu is None else max(0.0, cpu - self._spent),
            peak_memory_bytes=usage.peak_memory_bytes,
            oom_kills=usage.oom_kills,
        )

    @property
    def stops_whole(self) -> bool:
        """Where there are cgroups to know every process by, and to count it."""
        counted = (self.enforcement["memory_bytes"], self.enforcement["cpu_seconds"])
        return all(kept is Enforcement.ENFORCED for kept in counted)

    def stop(self) -> None:
        """SIGKILL to every process.

        None can return to its own code, nor fork, with that signal pending. What is left is
        the kernel's: freeing a guest's memory takes it milliseconds.
        """
        self._cgroup.kill()

    async def release(self) -> None:
        """Remove what runsc and the cgroups keep of it."""
        if self._guest is not None:
            await self._guest.ended()
            self._guest.close()
        await super().release()


@dataclass(slots=True)
class _Kept:
    """A template that is being made, or was."""

    making: asyncio.Task[Template]
    users: int = 0
    """Who waits for it, or starts a sandbox from its files."""
    failures: int = 0
    """Starts from it that failed since one did not."""

    @property
    def failed(self) -> bool:
        """Whether it could not be made."""
        return self.making.done() and (
            self.making.cancelled() or self.making.exception() is not None
        )


class GvisorTier:
    """Makes sandboxes that runsc starts. One per executor.

    With snapshots, a guest is started and warmed once per profile; each sandbox is a copy.
    """

    tier = Tier.GVISOR

    def __init__(
        self,
        runtime: Runtime,
        state: StateFolder,
        image: HostImage,
        cgroups: CgroupTree,
        *,
        modules: Sequence[str],
        snapshots: bool,
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._image = image
        self._cgroups = cgroups
        self._modules = tuple(modules)
        self._snapshots = snapshots
        self._root = state.path / "root"
        self._mounts = make_root(self._root, image)
        make_readable(self._root)
        runtime.see(self._mounts)
        self._templates: dict[Profile, _Kept] = {}  # in order of last use
        self._numbers = itertools.count(1)
        self._proof: Sandbox | None = None
        self._cpus = CpuRotation()
        kept = cgroups.enforcement()
        self.enforcement: dict[str, Enforcement] = {
            **KEPT_BY_THE_EXECUTOR,
            "cpu_seconds": kept["cpu_seconds"],
            "cpus": kept["cpus"],
            "memory_bytes": kept["memory_bytes"],
            # RLIMIT_NPROC, which gVisor's kernel keeps for each user; the guest has one.
            "processes": Enforcement.ENFORCED,
            "inodes": Enforcement.ABSENT,
        }

    def __repr__(self) -> str:
        return f"<GvisorTier {self._runtime!r}, {len(self._templates)} templates>"

    async def prove(self, profile: Profile) -> None:
        """Start a sandbox; it is the first that ``create`` gives. Raises what that raises."""
        self._proof = await self._start(profile)

    async def create(self, profile: Profile) -> Sandbox:
        """A sandbox that has proven its walls. Raises :class:`Unavailable` or SandboxLost."""
        proof, self._proof = self._proof, None
        if proof is not None:
            fresh = time.monotonic() - proof.made_at < _PROOF_SECONDS
            if proof.profile == profile and proof.alive and fresh:
                return proof
            await proof.destroy()
        return await self._start(profile)

    async def _start(self, profile: Profile) -> Sandbox:
        kept = self._keep(profile)
        kept.users += 1
        try:
            template = await asyncio.shield(kept.making)
            try:
                sandbox = await self._start_from(template, profile)
            except StockadeError:
                kept.failures += 1
                raise
            kept.failures = 0
            return sandbox
        finally:
            kept.users -= 1

    async def _start_from(self, template: Template, profile: Profile) -> Sandbox:
        name = f"g{next(self._numbers)}"
        ceilings = GuestCeilings(profile.memory_bytes + KERNEL_BYTES, _NO_CEILING, profile.cpus)
        try:
            cgroup = self._cgroups.create(f"gvisor-{name}", ceilings)
        except (CgroupError, OSError) as error:
            raise Unavailable(f"no cgroup for a sandbox: {error}") from error
        boundary = GvisorBoundary(
            self._image.digest, self.enforcement, cgroup, ceilings, lambda: None
        )
        link = None
        try:
            cpus = self._cpus.choose(profile.cpus)
            guest = await template.start(name, cgroup.join_fds(), cpus)
            boundary.take(guest)
            cgroup.close_fds()
            if not template.saved:
                await guest.ready()
            guest.send_on()
            link = Link(asyncio.get_running_loop(), guest.from_guest, guest.to_guest)
            guest.from_guest = guest.to_guest = -1
            await self._check_receipt(link, guest, len(cpus) or None)
            cgroup.open_counters()
            boundary.count_from_here()
        except OSError as error:
            await asyncio.shield(abandon(boundary, link))
            raise Unavailable(f"no sandbox could be made: {error}") from error
        except BaseException:
            await asyncio.shield(abandon(boundary, link))
            raise
        return Sandbox(profile, boundary, link)

    async def forget(self, tenant: str) -> None:
        """Remove the tenant's snapshots, but one from which a sandbox is being started."""
        for profile in [each for each in self._templates if each.tenant == tenant]:
            self._remove_unless_used(profile)

    async def close(self) -> None:
        """Remove the snapshots. The sandboxes are gone by then."""
        if self._proof is not None:
            await self._proof.destroy()
        making = [kept.making for kept in self._templates.values()]
        for task in making:
            task.cancel()
        if making:
            await asyncio.wait(making)
        for task in making:
            if not task.cancelled():
                task.exception()  # whoever waited for it has heard of it, or is gone
        self._templates.clear()
        self._state.close()
        self._runtime.close()

    def _keep(self, profile: Profile) -> _Kept:
        """The profile's template, begun by whoever asks first; a failure is tried again."""
        profile = replace(profile, inodes=0)  # which nothing here depends on
        kept = self._templates.pop(profile, None)
        if kept is not None and kept.failures >= _SUSPECT and not kept.users:
            # It may be the snapshot that was damaged: another is made.
            kept.making.result().remove()
            kept = None
        if kept is None or kept.failed:
            kept = _Kept(asyncio.create_task(self._make_template(profile)))
        self._templates[profile] = kept
        for other in list(self._templates)[:-MOST_TEMPLATES]:
            self._remove_unless_used(other)
        return kept

    def _remove_unless_used(self, profile: Profile) -> None:
        old = self._templates[profile]
        if old.making.done() and not old.users:
            del self._templates[profile]
            if not old.failed:
                old.making.result().remove()

    async def _make_template(self, profile: Profile) -> Template:
        template = Template(self._runtime, self._state.path / f"t{next(self._numbers)}")
        try:
            template.write(self._root, self._mounts, profile.disk_bytes, self._modules)
            if self._snapshots:
                await template.save(self._cpus.choose(profile.cpus))
        except BaseException:
            template.remove()
            raise
        return template

    async def _check_receipt(self, link: Link, guest: Guest, cpus: int | None) -> None:
        try:
            await check_receipt(link, HELLO_SECONDS, lambda receipt: faults(receipt, cpus))
        except SandboxLost as error:
            words = await guest.last_words()
            raise SandboxLost(f"{error}; runsc: {words}" if words else str(error)) from None
