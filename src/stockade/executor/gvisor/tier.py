"""The gVisor tier: each sandbox has a kernel of its own, in user space."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from stockade.executor.cgroups import CgroupTree, GuestCeilings, GuestCgroup
from stockade.executor.gvisor.bundle import make_root
from stockade.executor.gvisor.receipt import faults
from stockade.executor.gvisor.runtime import Guest, Runtime
from stockade.executor.gvisor.snapshot import Template
from stockade.executor.namespace.image import HostImage
from stockade.executor.owners import make_readable
from stockade.executor.proof import KEPT_BY_THE_EXECUTOR
from stockade.executor.sandbox import Profile
from stockade.executor.snapshot_tier import SnapshotTier
from stockade.executor.state import StateFolder
from stockade.executor.supervised_boundary import NO_CEILING, SupervisedBoundary
from stockade.port import MIB, Enforcement, Limits, Tier

PARKED_BYTES: Final = 25 * MIB
"""What a parked sandbox holds of the host's memory, where no cgroup counts it."""
KERNEL_BYTES: Final = 64 * MIB
"""What gVisor itself may take beside the guest's memory, within the same cgroup."""


class GvisorBoundary(SupervisedBoundary):
    """The walls of one sandbox: gVisor's kernel, in a pid namespace and cgroups of its own."""

    def ceilings(self, limits: Limits) -> GuestCeilings:
        """The guest's memory and the kernel's are one sum to the cgroup."""
        return GuestCeilings(limits.memory_bytes + KERNEL_BYTES, NO_CEILING, limits.cpus)

    def cpu_rlimit(self, limits: Limits) -> int | None:
        """None where the host counts: gVisor's clock counts waiting for a CPU of the host's, too."""
        if self.enforcement["cpu_seconds"] is Enforcement.ENFORCED:
            return None
        return super().cpu_rlimit(limits)

    def process_rlimit(self, limits: Limits) -> int:
        """gVisor counts a process for the user it was born to: the first is the agent's."""
        return limits.processes - 1


class GvisorTier(SnapshotTier[Template]):
    """Makes sandboxes that runsc starts. One per executor."""

    tier = Tier.GVISOR
    letter = "g"

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
        super().__init__(state, cgroups)
        self._runtime = runtime
        self._image = image
        self._modules = tuple(modules)
        self._snapshots = snapshots
        self._root = state.path / "root"
        self._mounts = make_root(self._root, image)
        make_readable(self._root)
        runtime.see(self._mounts)
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

    async def close(self) -> None:
        """Remove the snapshots. The sandboxes are gone by then."""
        await super().close()
        self._runtime.close()

    def _fixed(self, profile: Profile) -> Profile:
        return replace(profile, inodes=0)

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

    def _ceilings(self, profile: Profile) -> GuestCeilings:
        return GuestCeilings(profile.memory_bytes + KERNEL_BYTES, NO_CEILING, profile.cpus)

    def _boundary(
        self, profile: Profile, cgroup: GuestCgroup, ceilings: GuestCeilings
    ) -> SupervisedBoundary:
        return GvisorBoundary(
            Tier.GVISOR, self._image.digest, self.enforcement, cgroup, ceilings, PARKED_BYTES
        )

    def _send_on(self, guest: Guest, profile: Profile) -> None:
        guest.send_on()

    def _faults(self, receipt: Mapping[str, object], cpus: int | None) -> list[str]:
        return faults(receipt, cpus)
