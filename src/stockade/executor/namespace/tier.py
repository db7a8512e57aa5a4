"""The namespace tier: sandboxes out of a tenant's zygote."""

import asyncio
import itertools
import os
from dataclasses import dataclass

from stockade.executor.affinity import CpuRotation
from stockade.executor.cgroups import CgroupError, CgroupTree, GuestCeilings, GuestCgroup
from stockade.executor.link import Link
from stockade.executor.namespace.image import HostImage
from stockade.executor.namespace.receipt import faults
from stockade.executor.namespace.zygote import Zygote
from stockade.executor.namespace.zygotes import Zygotes
from stockade.executor.pid_namespace import PidNamespaceBoundary
from stockade.executor.proof import KEPT_BY_THE_EXECUTOR, Faults, abandon, check_receipt
from stockade.executor.sandbox import Profile, Sandbox
from stockade.port import MIB, Enforcement, SandboxLost, Tier, Unavailable

HELLO_SECONDS = 10.0
PARKED_BYTES = 3 * MIB // 2
"""What a parked sandbox does not share with its zygote: docs/performance.md, rounded up."""
_UNBOUNDED = GuestCeilings(memory_bytes=1 << 50, processes=1 << 15, cpus=1024)


@dataclass(frozen=True, slots=True)
class Kind:
    """In what a tier of such sandboxes differs from the plain one."""

    tier: Tier
    parked_bytes: int
    also_mounted: tuple[str, ...] = ()
    """Where its image puts more than the host's."""
    own_threads: int = 0
    """Threads of what runs the guest, which are not the guest's to use up."""


NAMESPACE = Kind(Tier.NAMESPACE, PARKED_BYTES)


class NamespaceTier:
    """Makes sandboxes of fresh Linux namespaces. One per executor."""

    emulated = False

    def __init__(
        self, image: HostImage, cgroups: CgroupTree, zygotes: Zygotes, kind: Kind = NAMESPACE
    ) -> None:
        self.tier = kind.tier
        self._kind = kind
        # Cgroups of all tiers stand side by side.
        self._prefix = "" if kind is NAMESPACE else f"{kind.tier}-"
        self._image = image
        self._cgroups = cgroups
        self._zygotes = zygotes
        self._numbers = itertools.count(1)
        self._cpus = CpuRotation()
        kept = self._cgroups.enforcement()
        self._counts_processes = kept["processes"] is Enforcement.ENFORCED
        self.enforcement: dict[str, Enforcement] = {
            **KEPT_BY_THE_EXECUTOR,
            "cpu_seconds": _or_per_process(kept["cpu_seconds"]),
            "cpus": kept["cpus"],
            "memory_bytes": _or_per_process(kept["memory_bytes"]),
            # RLIMIT_NPROC counts per user namespace, and each sandbox has its own.
            "processes": Enforcement.ENFORCED,
            "inodes": Enforcement.ENFORCED,
        }

    def __repr__(self) -> str:
        return f"<NamespaceTier {self._zygotes!r}>"

    async def create(self, profile: Profile) -> Sandbox:
        """A sandbox that has proven its walls. Raises :class:`Unavailable` or SandboxLost."""
        zygote = await self._zygotes.get(profile.tenant)
        try:
            return await self._create(zygote, profile)
        except SandboxLost:
            if not zygote.dead:
                raise
        # It had died, and nobody had noticed: that is no fault of this call's.
        return await self._create(await self._zygotes.get(profile.tenant), profile)

    async def _create(self, zygote: Zygote, profile: Profile) -> Sandbox:
        # Nothing is waited for before the id is taken: by it the zygote is known to be in use.
        identity = zygote.identity
        offset = identity.acquire()
        ceilings = GuestCeilings(
            profile.memory_bytes, profile.processes + self._kind.own_threads, profile.cpus
        )
        try:
            await self._house(zygote)
            cgroup = self._cgroups.create(f"{self._prefix}sandbox-{next(self._numbers)}", ceilings)
        except (CgroupError, OSError) as error:
            identity.release(offset)
            raise Unavailable(f"no cgroup for a sandbox: {error}") from error
        except BaseException:
            identity.release(offset)
            raise
        boundary = PidNamespaceBoundary(
            self.tier,
            self._image.digest,
            self.enforcement,
            cgroup,
            ceilings,
            self._counts_processes,
            self._kind.parked_bytes,
            lambda: identity.release(offset),
            self._kind.own_threads,
        )
        link = None
        try:
            cpus = self._cpus.choose(profile.cpus)
            link = await self._clone(zygote, profile, boundary, cgroup, offset, cpus)
            count = len(cpus) or None
            await check_receipt(link, HELLO_SECONDS, self._judge(offset, count))
            cgroup.open_counters()
        except OSError as error:
            await asyncio.shield(abandon(boundary, link))
            raise Unavailable(f"no sandbox could be made: {error}") from error
        except BaseException:
            await asyncio.shield(abandon(boundary, link))
            raise
        return Sandbox(profile, boundary, link)

    def _judge(self, offset: int, cpus: int | None) -> Faults:
        return lambda receipt: faults(receipt, offset, cpus, self._kind.also_mounted)

    async def forget(self, tenant: str) -> None:
        """End the tenant's zygote, unless a sandbox of it exists or is being made."""
        await self._zygotes.forget(tenant)

    async def close(self) -> None:
        """End every zygote, and with it its sandboxes."""
        await self._zygotes.close()

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
                f"{self._prefix}zygote-{next(self._numbers)}", _UNBOUNDED, everywhere=True
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
        boundary: PidNamespaceBoundary,
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


def _or_per_process(kept: Enforcement) -> Enforcement:
    return kept if kept is Enforcement.ENFORCED else Enforcement.PER_PROCESS
