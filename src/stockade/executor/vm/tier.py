"""The tier of dedicated machines: booted for one job, with a disk of their own, and attested."""

import asyncio
import math
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from stockade.executor.cgroups import CgroupTree
from stockade.executor.microvm.digests import Digests
from stockade.executor.microvm.image import Image
from stockade.executor.microvm.qemu import QemuVmm
from stockade.executor.microvm.receipt import faults
from stockade.executor.microvm.snapshot import make_ram
from stockade.executor.microvm.tier import MachineTier, MicrovmBoundary
from stockade.executor.microvm.vmm import Guest, Machine, Vmm
from stockade.executor.sandbox import Profile, Sandbox
from stockade.executor.state import StateFolder
from stockade.executor.vm.attesting import Attestor
from stockade.executor.vm.disk import ScratchDisks, device_bytes
from stockade.port import SandboxLost, Tier, Unavailable

_EARLY_SECONDS: Final = 60.0


class ColdMachine:
    """What the machines of one profile are booted from: nothing of any of them is kept."""

    saved = False

    def __init__(self, vmm: Vmm, machine: Machine, disks: ScratchDisks) -> None:
        self.machine = machine
        self._vmm = vmm
        self._disks = disks

    def __repr__(self) -> str:
        return f"<ColdMachine {self.machine.memory_bytes} bytes, {self.machine.cpus} CPUs>"

    async def start(self, name: str, doors: Sequence[int], cpus: Sequence[int]) -> Guest:
        """A guest about to be ready. Raises Unavailable."""
        machine = self.machine
        disk = self._disks.make(device_bytes(machine.disk_bytes, machine.inodes))
        try:
            ram = make_ram(machine.memory_bytes)
            try:
                guest = await self._vmm.start(name, machine, ram, doors, cpus, disk=disk)
            finally:
                os.close(ram)
        except BaseException:
            self._disks.remove(disk)
            raise
        guest.at_close(partial(self._disks.remove, disk))
        return guest

    def remove(self) -> None:
        """There is nothing."""


class VmTier(MachineTier[ColdMachine]):
    """Boots a machine for each sandbox, and destroys it with that. One per executor."""

    tier = Tier.VM
    letter = "v"

    def __init__(
        self,
        vmm: QemuVmm,
        state: StateFolder,
        image: Image,
        cgroups: CgroupTree,
        digests: Digests,
        *,
        modules: Sequence[str],
    ) -> None:
        """``digests``: of the image's files, as they were when it was opened."""
        super().__init__(vmm, state, image, cgroups, modules=modules)
        self._disks = ScratchDisks()
        self._attestor = Attestor(vmm, digests)

    def _fixed(self, profile: Profile) -> Profile:
        return profile

    async def _make_template(self, profile: Profile) -> ColdMachine:
        machine = Machine(
            image=self._image,
            memory_bytes=profile.machine_bytes,
            cpus=math.ceil(profile.cpus),
            disk_bytes=profile.disk_bytes,
            inodes=profile.inodes,
            modules=self._modules,
            own_disk=True,
        )
        return ColdMachine(self._vmm, machine, self._disks)

    async def _start_from(self, template: ColdMachine, profile: Profile) -> Sandbox:
        await self._attestor.check(template.machine)
        sandbox = await self._boot(template, profile)
        boundary = sandbox.boundary
        assert isinstance(boundary, MicrovmBoundary)
        try:
            boundary.attestation = await self._attestor.attest(template.machine, boundary.pidfd)
        except BaseException:
            await asyncio.shield(sandbox.destroy())
            raise
        return sandbox

    async def _boot(self, template: ColdMachine, profile: Profile) -> Sandbox:
        began = time.monotonic()
        try:
            return await super()._start_from(template, profile)
        except (Unavailable, SandboxLost):
            if not self.emulated or time.monotonic() - began > _EARLY_SECONDS:
                raise
        # An emulated machine that boots dies now and then, with QEMU.
        return await super()._start_from(template, profile)

    def _faults(self, receipt: Mapping[str, object], cpus: int | None) -> list[str]:
        return faults(receipt, cpus, own_disk=True)
