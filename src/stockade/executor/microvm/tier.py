"""The microVM tier: each sandbox has a machine of its own, and a kernel of its own in it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from stockade.executor.boundary import BoundaryUsage
from stockade.executor.cgroups import CgroupTree, GuestCeilings, GuestCgroup
from stockade.executor.execution import ProgramExecution
from stockade.executor.microvm.image import Image
from stockade.executor.microvm.receipt import faults
from stockade.executor.microvm.snapshot import Template
from stockade.executor.microvm.vmm import VMM_BYTES, Accelerator, Guest, Machine, Vmm
from stockade.executor.proof import KEPT_BY_THE_EXECUTOR
from stockade.executor.sandbox import Profile, Sandbox
from stockade.executor.snapshot_tier import SnapshotTier
from stockade.executor.snapshot_tier import Template as AnyTemplate
from stockade.executor.state import StateFolder
from stockade.executor.supervised_boundary import NO_CEILING, SupervisedBoundary
from stockade.port import (
    MIB,
    Enforcement,
    ExecutionRequest,
    Limits,
    PythonSource,
    Tier,
    Unavailable,
)

PARKED_BYTES: Final = 50 * MIB
"""What a parked sandbox holds of the host's memory, where no cgroup counts it."""
_REHEARSAL: Final = "import sys; print(1); print(2, file=sys.stderr)"
_BOOT_DISK_BYTES: Final = 16 * MIB
"""Of a template's scratch mount; each copy is given its own size."""


class MicrovmBoundary(SupervisedBoundary):
    """The walls of one sandbox: a machine monitor, in a pid namespace and cgroups of its own."""

    def pause(self) -> None:
        """It goes on: a machine that stood still has all its clock's ticks to catch up with."""

    def resume(self) -> None:
        """It was not paused."""

    def ceilings(self, limits: Limits) -> GuestCeilings:
        """The machine's RAM and its monitor's memory, which are fixed; the share of CPUs is not."""
        return replace(self._ceilings, cpus=limits.cpus)

    def cpu_rlimit(self, limits: Limits) -> int | None:
        """None where the host counts: the guest's clock counts waiting for a CPU of the host's, too."""
        if self.enforcement["cpu_seconds"] is Enforcement.ENFORCED:
            return None
        return super().cpu_rlimit(limits)

    def process_rlimit(self, limits: Limits) -> int:
        """Of the guest's user, which the agent is not. The guest's cgroup strikes first."""
        return limits.processes + 1

    def inner_ceilings(self, limits: Limits) -> tuple[int, int]:
        """By cgroups of the guest's kernel, in which the agent is not."""
        return limits.memory_bytes, limits.processes

    def usage(self) -> BoundaryUsage:
        """Of the machine as a whole, but for memory: of that, the guest's kernel knows."""
        return replace(super().usage(), peak_memory_bytes=None)


T = TypeVar("T", bound=AnyTemplate)


class MachineTier(SnapshotTier[T]):
    """Makes sandboxes that a machine monitor starts, whatever they are started from."""

    def __init__(
        self,
        vmm: Vmm,
        state: StateFolder,
        image: Image,
        cgroups: CgroupTree,
        *,
        modules: Sequence[str],
    ) -> None:
        super().__init__(state, cgroups)
        self._vmm = vmm
        self._image = image
        self._modules = tuple(modules)
        self.emulated = vmm.accelerator is Accelerator.EMULATION
        kept = cgroups.enforcement()
        self.enforcement: dict[str, Enforcement] = {
            **KEPT_BY_THE_EXECUTOR,
            "cpu_seconds": kept["cpu_seconds"],
            "cpus": kept["cpus"],
            # By the guest's own kernel, and by the size of the machine.
            "memory_bytes": Enforcement.ENFORCED,
            "processes": Enforcement.ENFORCED,
            "inodes": Enforcement.ENFORCED,
        }

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._vmm!r}, {len(self._templates)} templates>"

    async def close(self) -> None:
        """Remove the snapshots. The sandboxes are gone by then."""
        await super().close()
        self._vmm.close()
        self._image.close()

    def _ceilings(self, profile: Profile) -> GuestCeilings:
        return GuestCeilings(profile.machine_bytes + VMM_BYTES, NO_CEILING, profile.cpus)

    def _boundary(
        self, profile: Profile, cgroup: GuestCgroup, ceilings: GuestCeilings
    ) -> SupervisedBoundary:
        return MicrovmBoundary(
            self.tier,
            self._image.digest,
            self.enforcement,
            cgroup,
            ceilings,
            PARKED_BYTES,
            counts_processes=True,
        )

    def _send_on(self, guest: Guest, profile: Profile) -> None:
        guest.send_on(profile.disk_bytes, profile.inodes)


class MicrovmTier(MachineTier[Template]):
    """Each sandbox is a copy of a machine that was saved. One per executor."""

    tier = Tier.MICROVM
    letter = "m"

    def __init__(
        self,
        vmm: Vmm,
        state: StateFolder,
        image: Image,
        cgroups: CgroupTree,
        *,
        modules: Sequence[str],
        snapshots: bool,
    ) -> None:
        super().__init__(vmm, state, image, cgroups, modules=modules)
        self._snapshots = snapshots

    def _fixed(self, profile: Profile) -> Profile:
        return replace(profile, disk_bytes=0, inodes=0)

    async def _make_template(self, profile: Profile) -> Template:
        machine = Machine(
            image=self._image,
            memory_bytes=profile.machine_bytes,
            cpus=math.ceil(profile.cpus),
            disk_bytes=_BOOT_DISK_BYTES,
            inodes=0,
            modules=self._modules,
        )
        try:
            return await self._save_template(machine, profile)
        except Unavailable:
            if not self.emulated:
                raise
            # An emulated machine that boots dies now and then, with QEMU.
            return await self._save_template(machine, profile)

    async def _save_template(self, machine: Machine, profile: Profile) -> Template:
        template = Template(self._vmm, machine, self._state.path / f"t{next(self._numbers)}")
        try:
            if self._snapshots:
                await template.save(self._cpus.choose(profile.cpus))
        except BaseException:
            template.remove()
            raise
        return template

    async def _warm(self, sandbox: Sandbox) -> None:
        """Neither a page nor, in emulation, a translation of its code is a copy's own yet."""
        rehearsal = ProgramExecution(
            sandbox,
            ExecutionRequest(PythonSource(_REHEARSAL)),
            Limits(),
            single=False,
            waited=0.0,
            stdin=b"",
            on_output=None,
            rehearsal=True,
        )
        record = await rehearsal.wait()
        if not record.ok:
            raise Unavailable(f"a throw-away program ended as {record.outcome}: {record.detail}")

    def _faults(self, receipt: Mapping[str, object], cpus: int | None) -> list[str]:
        return faults(receipt, cpus)
